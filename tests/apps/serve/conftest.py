"""A small model folder, an app around it, and images to send."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

import pbprompt
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.calibration import Calibration
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.images.workers import Workers
from pbprompt.vision.towers.backbone import Backbone

CLASSES = ("cat", "dog", "guitar", "apple", "car")
SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"


@pytest.fixture(scope="session")
def model_folder(lite: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PBPrompt as it starts, which is enough to tell a cat from a guitar, with a calibration."""
    folder = tmp_path_factory.mktemp("served") / "model"
    kind = find_method("pbprompt")
    method = build_method(kind, make_config(kind), lite, seed=1)
    method.prepare(CLASSES, "a photo of a {}.")
    info = describe_model(method, seed=1, shots=1)
    # Of sixty validation images those from 0.5 on are right, which is enough to promise an accuracy of 0.9.
    confidence = tuple(round(0.3 + 0.0115 * n, 4) for n in range(60))
    right = tuple(c >= 0.5 for c in confidence)
    true = tuple(c if ok else 0.1 for c, ok in zip(confidence, right, strict=True))
    calibration = Calibration(
        confidence, right, true, len(CLASSES), len(CLASSES), 20, 0, (CLASSES[0],) * len(true)
    )
    TunedModel(method, info, calibration).save(folder)
    return folder


@pytest.fixture(scope="session")
def model(model_folder: Path, lite: Backbone) -> TunedModel:
    """Loaded and its prompts drawn once: nothing that a server does changes it."""
    return TunedModel.load(model_folder, lite)


class LastingWorkers(Workers):
    """Decoders that outlive the server that asks them: a process takes longer to start than an image."""

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def lasting_workers() -> Iterator[Callable[..., LastingWorkers]]:
    """Processes by what they are asked to be, for all servers of a run."""
    made: dict[str, LastingWorkers] = {}

    def workers(count: int, **options: Any) -> LastingWorkers:
        return made.setdefault(f"{count} {options}", LastingWorkers(count, **options))

    yield workers
    for one in made.values():
        Workers.close(one)


@pytest.fixture
def shared_decoders(lasting_workers: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of answers, not of the processes that decode."""
    monkeypatch.setattr("pbprompt.apps.serve.service.Workers", lasting_workers)


@pytest.fixture
def service(model: TunedModel) -> Iterator[Any]:
    from pbprompt.apps.serve.limits import Limits
    from pbprompt.apps.serve.middleware import Metrics
    from pbprompt.apps.serve.service import Service

    service = Service(model, Limits(), Metrics())
    yield service
    service.close()


@pytest.fixture(scope="session")
def cat() -> bytes:
    return (SAMPLE / "mammal" / "1f408.webp").read_bytes()


@pytest.fixture(scope="session")
def guitar() -> bytes:
    return (SAMPLE / "musical-instrument" / "1f3b8.webp").read_bytes()


@pytest.fixture(scope="session")
def jpeg(cat: bytes) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(cat)).convert("RGB").save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def client(model: TunedModel, shared_decoders: None) -> Iterator:
    from real_server import RealServer

    from pbprompt.apps.serve.app import create_app

    with RealServer(create_app(model), "http://localhost") as client:
        yield client


@pytest.fixture
def sharing(model: TunedModel, shared_decoders: None) -> Iterator:
    """A client of a server that keeps the classes that clients add."""
    from real_server import RealServer

    from pbprompt.apps.serve.app import create_app

    with RealServer(create_app(model, shared_classes=True), "http://localhost") as client:
        yield client


@pytest.fixture
def serve_at() -> Iterator[Callable[..., str]]:
    """Start real servers on free ports; gives their addresses."""
    from real_server import RealServer

    from pbprompt.apps.serve.app import create_app

    started = []

    def serve(model: TunedModel, proxy: str | None = None, **options: object) -> str:
        started.append(RealServer(create_app(model, **options), proxy=proxy))
        return started[-1].start()

    yield serve
    for server in started:
        server.stop()


@pytest.fixture
def running(model: TunedModel, serve_at: Callable[..., str]) -> str:
    return serve_at(model)
