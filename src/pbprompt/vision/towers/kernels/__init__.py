"""Equations on CUDA, where a kernel a step of an equation would take longer than the equation.

Each module has Triton kernels and the function that takes the place of the one written out, which stays the
reference: the tests hold them against each other.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


@cache
def available() -> bool:
    """Whether there are kernels at all: PBPROMPT_KERNELS=off leaves the equations written out."""
    return os.environ.get("PBPROMPT_KERNELS") != "off" and find_spec("triton") is not None  # CPU builds: none


def takes(*tensors: Tensor) -> bool:
    """Whether there are kernels for these, in training: a few predictions are not worth compiling them."""
    if not torch.is_grad_enabled():
        return False
    return all(tensor.is_cuda and tensor.dtype != torch.float64 for tensor in tensors) and available()


@contextmanager
def float32_products(*, tensor_cores: bool) -> Iterator[None]:
    """On the tensor cores factors keep the 10 bits of a float16 (TF32): exact for what was one or a bfloat16.

    Sums stay float32 either way. Off, as torch has it, factors keep all of their bits.
    """
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "tf32" if tensor_cores else "ieee"
    try:
        yield
    finally:
        settings.fp32_precision = before
