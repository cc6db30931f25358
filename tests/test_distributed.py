"""Two processes give what one gives: features, losses, gradients, trained parameters and figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pbprompt import distributed

SCRIPT = """
import json, os, sys
import torch
from pathlib import Path
from pbprompt import distributed
from pbprompt.clip.loading.load import load_backbone
from pbprompt.data.fewshot import draw
from pbprompt.data.sources import open_dataset
from pbprompt.model.scoring import score
from pbprompt.methods.base import make_config
from pbprompt.model.predictor import predictive
from pbprompt.registry import find_method
from pbprompt.features.bank import FeatureBank
from pbprompt.train.tune import tune
from dataclasses import replace

torch.set_num_threads(1)
distributed.start("cpu")
out = Path(sys.argv[1])
whole = open_dataset("sample:fluent")
keep = lambda items: tuple(item for item in items if item.label < 5)
small = replace(whole, classes=whole.classes[:5], train=keep(whole.train), val=(), test=keep(whole.test))
few = draw(small, 2, 1).apply(small)
bank = FeatureBank(load_backbone("lite"), cache=out / "cache", progress=False)
results = {}
for name in sys.argv[2:]:
    kind = find_method(name)
    config = make_config(kind, overrides=["epochs=3", "batch_size=5", "warmup_epochs=0"])
    method, terms = tune(few, bank, kind, config, shots=2, seed=1, folder=out / name, progress=False)
    figures = score(predictive(method), bank.encode(few.root, few.test))
    weights = {key: value.flatten()[:50].tolist() for key, value in method.state_dict().items()}
    results[name] = {"terms": terms, "figures": figures, "weights": weights}
main = distributed.is_main()
distributed.stop()
if main:
    (out / "results.json").write_text(json.dumps(results))
"""
METHODS = ["pbprompt", "coop", "prograd", "cocoop"]


def by_one(folder: Path) -> dict:
    """In this process."""
    folder.mkdir()
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["script.py", str(folder), *METHODS])
        exec(compile(SCRIPT, "script.py", "exec"), {"__name__": "__main__"})
    torch.set_num_threads(threads)
    return json.loads((folder / "results.json").read_text())


def by_two(folder: Path) -> dict:
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*start, folder / "script.py", folder, *METHODS],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "results.json").read_text())


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    one, two = by_one(tmp_path / "one"), by_two(tmp_path / "two")
    for name in METHODS:
        for part in ("terms", "figures"):
            assert two[name][part] == pytest.approx(one[name][part], rel=1e-3, abs=1e-4), (name, part)
        for key, wanted in one[name]["weights"].items():
            found = torch.tensor(two[name]["weights"][key])
            torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-3, atol=1e-5, msg=f"{name} {key}")
        assert (tmp_path / "two" / name / "log.jsonl").exists()


def test_auto_is_a_gpu_where_there_is_one(monkeypatch):
    for here, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda here=here: here)
        assert distributed.pick("auto") == expected
    assert distributed.pick("cuda:1") == "cuda:1"
