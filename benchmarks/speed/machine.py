"""Where and of what a figure was measured: machine, versions, commit, date, command."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from pbprompt import __version__
from pbprompt.bench.measure import on_cuda
from pbprompt.data.processors import available_cpus

COMMIT_VARIABLE = "PBPROMPT_COMMIT"  # for a copy of the sources without their history


def machine(device: str) -> dict[str, Any]:
    """The device by name, and the processors beside it."""
    cpu = cpu_name()
    return {
        "kind": "cuda" if on_cuda(device) else "cpu",
        "device": torch.cuda.get_device_name(device) if on_cuda(device) else cpu,
        "cpu": cpu,
        "cores": available_cpus(),
        "threads": torch.get_num_threads(),
    }


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
    }


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 by itself; without, it is slower than float32."""
    return bool({"avx512_bf16", "amx_bf16"} & set(_cpuinfo("flags").split()))


def commit() -> str:
    """The sources' commit, with a + where they were changed since; empty where nothing tells it."""
    if COMMIT_VARIABLE in os.environ:
        return os.environ[COMMIT_VARIABLE]
    here = Path(__file__).parent
    try:
        head = _git("rev-parse", "--short=10", "HEAD", folder=here)
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", folder=here.parent)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + "+" * bool(changed)


def _git(*words: str, folder: Path) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _cpuinfo(field: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), "")
