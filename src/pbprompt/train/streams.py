"""Random streams that are a function of (seed, purpose, index): nothing to save or to lose."""

import hashlib

import torch


def stream(seed: int, purpose: str, index: int = 0) -> torch.Generator:
    """A CPU generator of its own for one purpose at one step or epoch."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
