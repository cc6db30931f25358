"""Reading sizes off a state dict."""

import re

from torch import Tensor

from pbprompt.errors import InputError


def count(state: dict[str, Tensor], pattern: str) -> int:
    """One more than the largest index, so that a hole in the numbering shows as a missing tensor."""
    found = (re.match(pattern, key) for key in state)
    return max((int(match[1]) + 1 for match in found if match), default=0)


def shape(source: str, state: dict[str, Tensor], key: str, ndim: int) -> tuple[int, ...]:
    """A tensor's shape, where it is there, of `ndim` dimensions, and not empty."""
    if key not in state:
        raise InputError(f"{source}: lacks the tensor {key}; give a whole CLIP model, image and text tower")
    if state[key].ndim != ndim or 0 in state[key].shape:
        raise InputError(
            f"{source}: the tensor {key} is {list(state[key].shape)}; {ndim} dimensions are expected"
        )
    return tuple(state[key].shape)
