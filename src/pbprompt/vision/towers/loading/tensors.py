"""What a state dict tells: its sizes, and its fingerprint, the same whatever files a model came in."""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.vision.towers.backbone import BackboneConfig
from pbprompt.vision.towers.timm_tower import TimmConfig

HEAD_WIDTH = 64  # of every tower that OpenAI trained
Names = tuple[tuple[str, str], ...]  # patterns, and what takes their place in a tensor's name


def rename(key: str, names: Names) -> str:
    for pattern, name in names:
        key = re.sub(pattern, name, key)
    return key


def take(path: Path, state: dict[str, Tensor], key: str) -> Tensor:
    """A tensor that is to become a part of another one."""
    if key not in state:
        raise InputError(f"{path}: lacks the tensor {key}; fetch the whole checkpoint again")
    return state.pop(key)


@contextmanager
def fitting_together(path: Path) -> Iterator[None]:
    """While tensors are joined and turned: shapes of which that cannot be done are the file's."""
    try:
        yield
    except (RuntimeError, IndexError):
        raise InputError(
            f"{path}: its tensors do not fit together: the file is damaged; fetch it again"
        ) from None


def count(state: dict[str, Tensor], blocks: str) -> int:
    """One more than the largest index, so that a hole in the numbering shows as a missing tensor."""
    found = (re.match(rf"{re.escape(blocks)}\.(\d+)\.", key) for key in state)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def shape(source: str, state: dict[str, Tensor], key: str, ndim: int) -> tuple[int, ...]:
    """A tensor's shape, where it is there, of `ndim` dimensions, and not empty."""
    if key not in state:
        raise InputError(f"{source}: lacks the tensor {key}; give a whole model, image and text tower")
    if state[key].ndim != ndim or 0 in state[key].shape:
        raise InputError(
            f"{source}: the tensor {key} is {list(state[key].shape)}; {ndim} dimensions are expected"
        )
    return tuple(state[key].shape)


def grid_side(source: str, state: dict[str, Tensor], key: str, more: int = 1) -> int:
    """From the positions: a square grid of patches, and `more` for the whole image."""
    positions = shape(source, state, key, 2)[0]
    side = math.isqrt(max(positions - more, 0))
    if side == 0 or side * side + more != positions:
        raise InputError(
            f"{source}: the tensor {key} has {positions} positions; a square number and {more} is expected"
        )
    return side


def heads_of(
    source: str, tower: str, width: int, declared: Mapping[str, Any], head_width: int = HEAD_WIDTH
) -> int:
    """How many heads a tower has, "vision" or "text": as the config says, else those of `head_width`."""
    heads = declared.get(f"{tower}.heads")
    if heads is None:
        if width % head_width:
            raise InputError(
                f"{source}: the {tower} tower is {width} wide, not a multiple of CLIP's {head_width}"
            )
        return width // head_width
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise InputError(f"{source}: the config says {heads!r} heads, but the {tower} tower is {width} wide")
    return heads


def fingerprint(config: BackboneConfig, state: dict[str, Tensor]) -> str:
    """SHA-256 over what decides the features: the weights in OpenAI's layout, as float32, and the settings
    that the weights do not show (activation, heads, input size and normalisation, how an image is fitted)."""
    heads, text_heads = (getattr(tower, "heads", None) for tower in (config.vision, config.text))
    mean, std, fit, interpolation, resize = config.images
    size, activation = config.vision.image_size, config.activation
    settings: tuple[object, ...] = (activation, heads, text_heads, size, mean, std)
    if (fit, interpolation) != ("crop", "bicubic"):  # CLIP's, older than these settings
        settings += (fit, interpolation)
    if config.text is None or isinstance(config.vision, TimmConfig):
        settings += (config.vision, resize, interpolation)
    elif resize is not None:
        settings += ("short side", resize)
    if config.text is not None and not (config.text.causal or config.text.reads_last):
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
