"""Towers in fewer bits; on a CPU, matrix products in bfloat16: twice as fast as float32, and approximate.

A product rounds its two factors and its result to 8 bits. Between products everything stays in float32:
norms, attention (whose backward pass in bfloat16 takes longer than all that is gained) and the sums that
carry a token from block to block, so that the rounding of one block does not add up in the next.
"""

import warnings
from collections.abc import Mapping
from copy import deepcopy

import torch

from pbprompt.errors import InputError
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.layers import Block

INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def precision_of(name: str, device: str) -> torch.dtype:
    """What --precision asks of both towers; refused where a CPU would take longer with it."""
    if name not in PRECISIONS:
        raise InputError(f"--precision {name}: choose {', '.join(PRECISIONS)}")
    if device == "cpu" and name != "float32":
        other, why = "leave it out", _why_not(torch.device("cpu"))
        if name == "float16":
            other, why = ("leave it out" if why else "use bfloat16"), "that is for a GPU"
        if why:
            raise InputError(f"--precision {name}: {why}: {other}")
    return PRECISIONS[name]


def rounded(block: Block, dtype: torch.dtype) -> Block:
    """A copy whose products with its weights are in `dtype`."""
    other = deepcopy(block)
    other.attn.to(dtype)
    other.mlp.to(dtype)
    return other


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether it is a CPU with instructions for it; that training is exact otherwise is told."""
    if why := _why_not(device):
        warnings.warn(f"training without products in bfloat16, exactly: {why}", stacklevel=2)
    return not why


def round_image_tower(backbone: Backbone) -> None:
    """From here on the image tower computes in bfloat16, all of it; what texts give stays exact."""
    if why := _why_not(backbone.device):
        raise InputError(f"precision bfloat16: {why}: leave it out")
    if backbone.base is not backbone:
        raise InputError("precision bfloat16: the model reaches into the image tower: leave it out")
    for tower in backbone.towers:
        tower.visual.to(torch.bfloat16)


def _why_not(device: torch.device) -> str:
    """Nothing, or why products in bfloat16 would take longer here than those in float32."""
    tell = getattr(torch.cpu, "get_capabilities", dict)  # not in every torch: then nothing is known
    capabilities: Mapping[str, object] = tell()
    if device.type != "cpu":
        return "that is for a CPU"
    able = any(capabilities.get(name) for name in INSTRUCTIONS)
    return "" if able else f"this processor has no instructions for it ({' or '.join(INSTRUCTIONS)})"
