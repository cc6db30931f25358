"""Telling whether two checkpoints are the same model, whatever files they came in."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from pbprompt.clip.backbone import BackboneConfig
from pbprompt.clip.lite import LiteConfig
from pbprompt.clip.text import TextConfig
from pbprompt.clip.timm_tower import TimmConfig


def fingerprint(config: BackboneConfig, state: dict[str, Tensor]) -> str:
    """SHA-256 over what decides the features: the weights in OpenAI's layout, as float32, and the settings
    that the weights do not show (activation, heads, input size and normalisation, how an image is fitted)."""
    heads = None if isinstance(config.vision, LiteConfig | TimmConfig) else config.vision.heads
    settings: tuple[object, ...] = (
        config.activation,
        heads,
        config.text.heads if config.text else None,
        config.vision.image_size,
        config.mean,
        config.std,
    )
    if (config.fit, config.interpolation) != ("crop", "bicubic"):  # CLIP's, older than these settings
        settings += (config.fit, config.interpolation)
    if config.text is None or isinstance(config.vision, TimmConfig):
        settings += (config.vision, config.resize, config.interpolation)
    elif config.resize is not None:
        settings += ("short side", config.resize)
    if isinstance(config.text, TextConfig) and not config.text.causal:
        settings += ("not causal",)
    whole = hashlib.sha256(repr(settings).encode())
    keys = sorted(state)
    with ThreadPoolExecutor() as pool:  # hashing lets go of the interpreter, and large towers take seconds
        for key, digest in zip(keys, pool.map(_digest, (state[key] for key in keys)), strict=True):
            whole.update(f"{key} {tuple(state[key].shape)} ".encode() + digest)
    return whole.hexdigest()


def _digest(tensor: Tensor) -> bytes:
    values = tensor.detach().to("cpu", torch.float32).contiguous()
    return hashlib.sha256(values.reshape(-1).numpy().data.cast("B")).digest()
