"""What workers of the tests do in place of training: what the plan in the root folder says, try by try."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np

from pbprompt.research.runs import BackboneFacts, RunRecord
from pbprompt.vision.towers.loading.load import backbone_fingerprint


def write_plan(root: Path, **seeds: list[str]) -> None:
    """seed1=["raise", "ok"]: the run of seed 1 raises at first and then succeeds."""
    (root / "plan.json").write_text(json.dumps({"lite": backbone_fingerprint("lite"), **seeds}))


def tries(root: Path, seed: int) -> list[int]:
    """Process ids that tried the run of a seed, in order."""
    path = root / f"tries-{seed}"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def work(root, run, backbone, device):
    """To be given as `partial(work, root)`, like the others."""
    seed = run.config.seed
    _note(root / f"tries-{seed}")
    plan = json.loads((root / "plan.json").read_text())
    acts = plan.get(f"seed{seed}", ["ok"])
    _act(acts[min(len(tries(root, seed)), len(acts)) - 1], seed)
    return _record(run, run.id(plan[backbone])), {"x": np.full(3, seed, np.int32)}


def misnamed(root, run, backbone, device):
    return _record(run, "another"), {}


def not_picklable(root, run, backbone, device):
    return lambda: None


def encode(root, runs, backbone, device):
    """Notes that it was called, and before which tries."""
    _note(root / "encoded")
    assert not list(root.glob("tries-*"))
    assert len({run.config.dataset for run in runs}) == 1


def encode_in_vain(root, runs, backbone, device):
    _note(root / "encoded")
    raise OSError("an image is torn")


def _record(run, identity):
    return RunRecord(
        id=identity,
        config=run.config,
        settings={},
        data=run.data,
        backbone=BackboneFacts("lite", "f"),
        code="c",
        machine={"worker": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS", "")},
        results={},
        seconds=1.0,
    )


def _note(path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")


def _act(what: str, seed: int) -> None:
    if what == "raise":
        raise ArithmeticError(f"seed {seed} went wrong")
    if what == "exit":
        os._exit(7)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sleep":
        time.sleep(36_000)  # until it is ended
    assert what in ("ok", "sleep"), what
