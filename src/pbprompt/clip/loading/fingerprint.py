"""Telling whether two checkpoints are the same model, whatever files they came in."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from pbprompt.clip.backbone import BackboneConfig
from pbprompt.clip.resnet import ResNetConfig
from pbprompt.clip.vit import VitConfig


def fingerprint(config: BackboneConfig, state: dict[str, Tensor]) -> str:
    """SHA-256 over what decides the features: the weights in OpenAI's layout, as float32, and the settings
    that the weights do not show (activation, heads, input size and normalisation)."""
    heads = config.vision.heads if isinstance(config.vision, VitConfig | ResNetConfig) else None
    settings = (
        config.activation,
        heads,
        config.text.heads,
        config.vision.image_size,
        config.mean,
        config.std,
    )
    whole = hashlib.sha256(repr(settings).encode())
    keys = sorted(state)
    with ThreadPoolExecutor() as pool:  # hashing lets go of the interpreter, and large towers take seconds
        for key, digest in zip(keys, pool.map(_digest, (state[key] for key in keys)), strict=True):
            whole.update(f"{key} {tuple(state[key].shape)} ".encode() + digest)
    return whole.hexdigest()


def _digest(tensor: Tensor) -> bytes:
    values = tensor.detach().to("cpu", torch.float32).contiguous()
    return hashlib.sha256(values.reshape(-1).numpy().data.cast("B")).digest()
