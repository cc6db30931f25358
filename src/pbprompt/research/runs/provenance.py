"""Where a figure comes from: the machine, the commit of the sources, the revision of the code behind it."""

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

from pbprompt.learners.method import Method
from pbprompt.prompts.loop.loop import LOOP_REVISION
from pbprompt.vision.images.workers import available_cpus

COMMIT_VARIABLE = "PBPROMPT_COMMIT"  # for a copy of the sources without their history


def machine(device: torch.device | str) -> dict[str, str | int]:
    """The device by name, and the processors beside it."""
    cpu = cpuinfo("model name") or platform.processor() or platform.machine()
    kind = torch.device(device).type
    return {
        "kind": kind,
        "device": torch.cuda.get_device_name(device) if kind == "cuda" else cpu,
        "cpu": cpu,
        "cores": available_cpus(),
        "threads": torch.get_num_threads(),
    }


def code_revision(kind: type[Method]) -> str:
    """What of the code a method's results depend on; its authors raise a revision when they change.

    "pbprompt 1, loop 1": runs of other revisions are other runs.
    """
    return f"{kind.name} {kind.revision}, loop {LOOP_REVISION}"


def commit() -> str:
    """The sources' commit, with a + where they were changed since; empty where nothing tells it."""
    return os.environ.get(COMMIT_VARIABLE) or _checkout()


def cpuinfo(field: str) -> str:
    """A line of Linux's description of the processor; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), "")


@cache
def _checkout() -> str:
    try:
        head = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + "+" * bool(changed)


def _git(*words: str) -> str:
    package = Path(__file__).parents[2]
    done = subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, check=True)
    return done.stdout.strip()
