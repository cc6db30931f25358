"""What workers of the tests do in place of training: what the plan in the root folder says, try by try."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np

from pbprompt.clip.loading.load import load_backbone
from pbprompt.runs.tasks import prepare_run


def write_plan(root: Path, **seeds: list[str]) -> None:
    """seed1=["raise", "ok"]: the run of seed 1 raises at first and then succeeds."""
    (root / "plan.json").write_text(json.dumps(seeds))


def tries(root: Path, seed: int) -> list[int]:
    """Process ids that tried the run of a seed, in order."""
    path = root / f"tries-{seed}"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def work(config, backbone, root, device):
    _note(root / f"tries-{config.seed}")
    plan = json.loads((root / "plan.json").read_text()).get(f"seed{config.seed}", ["ok"])
    number = len(tries(root, config.seed))
    _act(plan[min(number, len(plan)) - 1], config.seed)
    identity = prepare_run(config, load_backbone(backbone), root).id
    record = {"id": identity, "config": {"seed": config.seed}, "worker": os.getpid(), "device": device}
    record["threads"] = os.environ.get("OMP_NUM_THREADS", "")
    record["gpus"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return record, {"x": np.full(3, config.seed, np.int32)}


def misnamed(config, backbone, root, device):
    return {"id": "another"}, {}


def not_picklable(config, backbone, root, device):
    return lambda: None


def encode(configs, backbone, root, device):
    """Notes that it was called, and before which tries."""
    _note(root / "encoded")
    assert not list(root.glob("tries-*"))
    assert len({config.dataset for config in configs}) == 1


def encode_in_vain(configs, backbone, root, device):
    _note(root / "encoded")
    raise OSError("an image is torn")


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
        time.sleep(120)
    assert what in ("ok", "sleep"), what
