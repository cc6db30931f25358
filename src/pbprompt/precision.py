"""How float32 matrices are multiplied on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
