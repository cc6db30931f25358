"""Reading sizes off a state dict."""

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pbprompt.errors import InputError

HEAD_WIDTH = 64  # of every tower that OpenAI trained


def count(state: dict[str, Tensor], pattern: str) -> int:
    """One more than the largest index, so that a hole in the numbering shows as a missing tensor."""
    found = (re.match(pattern, key) for key in state)
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


def image_size(
    source: str, state: dict[str, Tensor], key: str, patch: int, told: Mapping[str, Any], more: int = 1
) -> int:
    """From the positions: a square grid of patches, and `more` for the whole image."""
    positions = shape(source, state, key, 2)[0]
    side = math.isqrt(max(positions - more, 0))
    if side == 0 or side * side + more != positions:
        raise InputError(
            f"{source}: the tensor {key} has {positions} positions; a square number and {more} is expected"
        )
    size = told.get("vision.image_size", side * patch)
    if not isinstance(size, int) or size // patch != side:
        raise InputError(f"{source}: the config says images of {size} pixels, the tensors say {side * patch}")
    return size


def heads_of(source: str, tower: str, width: int, head_width: int = HEAD_WIDTH) -> int:
    """How many heads a tower has whose heads are `head_width` wide."""
    if width % head_width:
        raise InputError(
            f"{source}: the {tower} tower is {width} wide, not a multiple of CLIP's {head_width}"
        )
    return width // head_width
