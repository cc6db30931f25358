"""Fixtures shared by the suite: small backbones with random weights, and shape checks on every signature."""

import contextlib
import functools
import gc
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from shape_checks import check_shapes

gc.set_threshold(50_000, 20, 50)  # else it goes through all that is imported, again and again
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach out
check_shapes("pbprompt")  # before anything of the package is imported, and for the whole session
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as shells start what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or no child of a test can be interrupted

from pbprompt.vision.towers import tokenizer  # noqa: E402
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, random_backbone  # noqa: E402
from pbprompt.vision.towers.loading import load  # noqa: E402
from pbprompt.vision.towers.loading.load import load_backbone  # noqa: E402
from pbprompt.vision.towers.resnet import ResNetConfig  # noqa: E402
from pbprompt.vision.towers.text import TextConfig  # noqa: E402
from pbprompt.vision.towers.vit import VitConfig  # noqa: E402

TINY_TEXT = TextConfig(context_length=77, vocab_size=49408, width=64, heads=4, layers=3)


@pytest.fixture(scope="session", autouse=True)
def suite_cache(tmp_path_factory) -> Iterator[Path]:
    """No test reads or fills the user's cache: all processes of a run of the suite share one of their own.

    Features are kept by what an image holds, so that each of the sample's is encoded once, wherever it lies.
    """
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # which the workers share
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PBPROMPT_CACHE", str(place / "cache"))
        yield place / "cache"


@pytest.fixture(scope="session", autouse=True)
def lite_is_read_once() -> Iterator[None]:
    """Commands load the embedded model anew, whose file and sums are the same each time."""
    read, plain = functools.cache(load.read_embedded), load.fingerprint
    of_lite = functools.cache(lambda: plain(*read("lite")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "read_embedded", read)
        patch.setattr(load, "fingerprint", lambda *of: of_lite() if of[1] is read("lite")[1] else plain(*of))
        yield


@pytest.fixture(scope="session", autouse=True)
def words_are_cleaned_once() -> Iterator[None]:
    """Tests name the same few hundred classes again and again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "clean", functools.cache(tokenizer.clean))
        yield


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, for tests of what is in it."""
    monkeypatch.setenv("PBPROMPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes, each the head of a group that ends with the test, whatever happens."""
    started: list[subprocess.Popen[str]] = []

    def start(command: Sequence[object], **options: Any) -> subprocess.Popen[str]:
        words = [str(word) for word in command]
        started.append(subprocess.Popen(words, text=True, start_new_session=True, **options))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def sweeps_here(monkeypatch) -> None:
    """Sweeps are done in this process."""
    from inline_executor import Inline

    monkeypatch.setattr("pbprompt.executors.LocalExecutor", lambda jobs, device: Inline())


@pytest.fixture(scope="session")
def one_onnx_registry() -> Iterator[None]:
    """torch lists operators, those of ONNX and its own, anew for every export; here once a session."""
    from torch._export import utils
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    listed = functools.cache(ONNXRegistry.from_torchlib.__func__)
    own = functools.cache(utils._materialize_cpp_cia_ops)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", classmethod(listed))
        patch.setattr(utils, "_materialize_cpp_cia_ops", own)
        yield


@pytest.fixture
def plain_exports(one_onnx_registry, monkeypatch):
    """What is exported has a plain tower: for tests of commands and pages, not of the graph."""
    from plain_tower import PlainTower

    from pbprompt.apps import export

    class Plain(export.ImageClassifier):
        def __init__(self, predictor, tower_dtype):
            super().__init__(predictor, tower_dtype)
            self.visual = PlainTower(predictor.method.backbone).to(tower_dtype)

    monkeypatch.setattr(export, "ImageClassifier", Plain)


@pytest.fixture(scope="session")
def tiny_vit() -> Backbone:
    return random_backbone(BackboneConfig("tiny-vit", 32, VitConfig(32, 8, 64, 2, 4), TINY_TEXT))


@pytest.fixture(scope="session")
def tiny_resnet() -> Backbone:
    return random_backbone(
        BackboneConfig("tiny-resnet", 32, ResNetConfig(64, (1, 1, 1, 1), 16, 8), TINY_TEXT)
    )


@pytest.fixture(scope="session")
def lite() -> Backbone:
    return load_backbone("lite")


@pytest.fixture(scope="session")
def lite_vit() -> Backbone:
    return load_backbone("lite-vit")


@pytest.fixture(scope="session")
def double_vit() -> Backbone:
    config = BackboneConfig("tiny-vit", 32, VitConfig(32, 8, 64, 2, 4), TINY_TEXT)
    return random_backbone(config).to(torch.float64)


@pytest.fixture
def stub_path(monkeypatch):
    """For workers that do not take sys.path over."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "support"), prepend=os.pathsep)
