"""Matrix products in bfloat16 on a CPU: twice as fast as float32, and approximate.

A product rounds its two factors and its result to 8 bits. Between products everything stays in float32:
norms, attention (whose backward pass in bfloat16 takes longer than all that is gained) and the sums that
carry a token from block to block, so that the rounding of one block does not add up in the next.
"""

import warnings
from collections.abc import Mapping
from copy import deepcopy

import torch

from pbprompt.clip.layers import Block

INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def rounded(block: Block, dtype: torch.dtype) -> Block:
    """A copy whose products with its weights are in `dtype`."""
    other = deepcopy(block)
    other.attn.to(dtype)
    other.mlp.to(dtype)
    return other


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether it is a CPU with instructions for it, without which bfloat16 is slower than float32."""
    tell = getattr(torch.cpu, "get_capabilities", dict)  # not in every torch: then nothing is known
    capabilities: Mapping[str, object] = tell()
    if device.type == "cpu" and any(capabilities.get(name) for name in INSTRUCTIONS):
        return True
    why = "this processor has no instructions for it" if device.type == "cpu" else "that is for a CPU"
    warnings.warn(f"training without products in bfloat16, exactly: {why}", stacklevel=2)
    return False
