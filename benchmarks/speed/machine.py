"""Where and of what a figure was measured: machine, versions, commit, date, command."""

import os
import platform
import sys
from datetime import UTC, datetime
from typing import Any

import torch

from pbprompt import __version__
from pbprompt.bench import on_cuda
from pbprompt.runs.provenance import commit, cpuinfo, machine


def stamp(device: str, quick: bool) -> dict[str, Any]:
    """What every part of the results carries."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "pbprompt": __version__}
    if on_cuda(device):
        versions["cuda"] = str(torch.version.cuda)
    return {
        "machine": machine(device),
        "versions": versions,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m benchmarks.speed", *sys.argv[1:]]),
        "quick": quick,
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,  # before it began
    }


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 by itself; without, it is slower than float32."""
    return bool({"avx512_bf16", "amx_bf16"} & set(cpuinfo("flags").split()))
