"""Two processes give what one gives: features, losses, gradients, trained parameters and figures."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pbprompt
from pbprompt import distributed
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.towers.backbone import Encoded

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"

SCRIPT = """
import json, os, sys
import torch
from pathlib import Path
from unittest import mock
from pbprompt import distributed
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images import records
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.features.progress import Progress
from pbprompt.model.fitting import fit_stream_into
from pbprompt.model.scoring import score
from pbprompt.model.fitting import gather_stream, stream_checkpoint
from pbprompt.learners.method import make_config
from pbprompt.model.predictor import predict_features, predictive
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.learners.fit_options import FitOptions
from pbprompt.model.learn import bank_on, tune
from dataclasses import replace

torch.set_num_threads(1)
distributed.start("cpu")
out = Path(sys.argv[1])
whole = open_dataset("sample:fluent")
keep = lambda items: tuple(item for item in items if item.label < 5)
small = replace(whole, classes=whole.classes[:5], train=keep(whole.train), val=(), test=keep(whole.test)[:7])
few = draw(small, 2, 1).apply(small)
bank, blocks = (
    FeatureCache(load_backbone(towers), cache=out / "cache", progress=False)
    for towers in ("lite", "lite-vit")
)
results = {}
for name in sys.argv[2:]:
    kind = find_method(name)
    own, length = (blocks, "budget=4") if kind.tunes_towers else (bank, "epochs=2")
    config = make_config(kind, overrides=[length, "batch_size=5", "warmup_epochs=0"])
    options = FitOptions(shots=2, seed=1, folder=out / name, progress=False)
    method, terms = tune(few, own, kind, config, options)
    test = bank_on(own, method.backbone).encode(few.root, few.test)
    figures = score(predict_features(predictive(method), test), test)
    weights = {key: value.flatten()[:50].tolist() for key, value in method.state_dict().items()}
    results[name] = {"terms": terms, "figures": figures, "weights": weights}
main, kind, photos = distributed.is_main(), find_method("conjugate"), out.parent / "photos"
with mock.patch.object(records, "FILES_AT_ONCE", 6):  # a unit and more for each process
    stream = Stream([str(photos)])
    try:  # every process is interrupted after its first batch, and goes on from there
        with mock.patch.object(Progress, "advance", side_effect=KeyboardInterrupt):
            kept = stream_checkpoint(out / "streamed", stream, bank.backbone)
            gather_stream(stream, bank.backbone, checkpoint=kept, progress=False)
    except KeyboardInterrupt:
        results["interrupted"] = kept.path.exists()
    results["kept"] = distributed.gather_objects(kept.path.name)
    fit_stream_into(out / "streamed", Stream([str(photos)]), bank.backbone, kind, kind.Config())
distributed.stop()
if main:
    (out / "results.json").write_text(json.dumps(results))
"""
METHODS = ["pbprompt", "coop", "prograd", "cocoop", "maple", "tower-evidence"]


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[Path, dict, dict]:
    """Where, and what one process and two come to."""
    root = tmp_path_factory.mktemp("both")
    for name in ("clock", "heart", "mammal"):
        for file in sorted((SAMPLE / name).iterdir())[:7]:
            (root / "photos" / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, root / "photos" / name)
    return root, by_one(root / "one"), by_two(root / "two")


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
def test_two_processes_equal_one(both):
    root, one, two = both
    for name in METHODS:
        for part in ("terms", "figures"):
            assert two[name][part] == pytest.approx(one[name][part], rel=1e-3, abs=1e-4), (name, part)
        for key, wanted in one[name]["weights"].items():
            if "fitted" in key:  # by eigenvectors, whose signs are free
                continue
            found = torch.tensor(two[name]["weights"][key])
            torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-3, atol=1e-5, msg=f"{name} {key}")
        assert (root / "two" / name / "log.jsonl").exists()


@pytest.mark.slow
def test_two_processes_share_a_pass_each_with_a_checkpoint_of_its_own(both, lite):
    root, one, two = both
    assert one["interrupted"] and two["interrupted"]
    assert one["kept"] == ["0.safetensors"] and two["kept"] == ["0.safetensors", "1.safetensors"]
    alone, shared = (TunedModel.load(root / name / "streamed", lite) for name in ("one", "two"))
    assert shared.classes == alone.classes and shared.info.data == alone.info.data
    wanted, found = alone.method.state_dict(), shared.method.state_dict()
    assert alone.info.data.images == 21
    for key in ("counts", "sums", "moment", "fitted_kernel_bandwidth"):
        torch.testing.assert_close(found[key], wanted[key], rtol=1e-6, atol=1e-6)
    for key in ("fitted_names", "fitted_weights_log", "fitted_novelty_familiar"):  # texts are of 32 bits
        torch.testing.assert_close(found[key], wanted[key], rtol=1e-4, atol=1e-5)
    images = Encoded(torch.randn(4, lite.embed_dim), torch.randn(4, 49, lite.embed_dim))
    torch.testing.assert_close(
        shared.predictor(images).probabilities, alone.predictor(images).probabilities, rtol=1e-4, atol=1e-5
    )
    assert not list((root / "two").glob(".*"))


def test_auto_is_a_gpu_where_there_is_one(monkeypatch):
    for here, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda here=here: here)
        assert distributed.pick("auto") == expected
    assert distributed.pick("cuda:1") == "cuda:1"
