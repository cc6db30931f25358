"""Random streams that are a function of (seed, purpose, index): nothing to save or to lose."""

import hashlib

import torch

from pbprompt.errors import InputError


def generator(seed: int) -> torch.Generator:
    """A CPU generator that starts at a seed."""
    return torch.Generator().manual_seed(checked_seed(seed))


def checked_seed(seed: int) -> int:
    """The seed, if torch's generators can take it."""
    if abs(seed) >= 2**63:
        raise InputError(f"seed {str(seed)[:25]} is too large: give one below 2⁶³")
    return seed


def stream_seed(seed: int, purpose: str, index: int = 0) -> int:
    """The seed of the numbers for one purpose at one step or epoch."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def stream(seed: int, purpose: str, index: int = 0) -> torch.Generator:
    """A CPU generator of its own for one purpose at one step or epoch."""
    return torch.Generator().manual_seed(stream_seed(seed, purpose, index))
