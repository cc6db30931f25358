"""The field's four tasks, each a function of a run's settings that returns a record.

    few-shot       tune on k shots of all classes, test on all
    base-to-new    tune on the first half of the classes; test each half within its own names, and jointly
    cross-dataset  tune on one dataset; test on others, with their own class names
    domain-shift   tune on one domain; test on others of the same classes

The test split is read once, after training, with the model of the last step.
"""

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from pbprompt import __version__
from pbprompt.clip.backbone import Backbone
from pbprompt.config import to_dict
from pbprompt.data.fewshot import Draw, base_new, draw
from pbprompt.data.items import Dataset
from pbprompt.data.sources import open_dataset
from pbprompt.errors import InputError
from pbprompt.evaluate.metrics import harmonic_mean, summary
from pbprompt.evaluate.selective import auroc
from pbprompt.features.bank import FeatureBank
from pbprompt.methods.base import Method, MethodConfig, build_method, make_config
from pbprompt.model.predictor import Predictor, predictive
from pbprompt.model.scoring import predict_features
from pbprompt.registry import find_method
from pbprompt.train.tune import Views, tune

Task = Literal["few-shot", "base-to-new", "cross-dataset", "domain-shift"]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run of a table."""

    task: Task
    dataset: str
    method: str = "pbprompt"
    preset: str = "default"
    variant: str = ""
    overrides: tuple[str, ...] = ()
    shots: int = 16
    seed: int = 1
    views: Views = "centre"
    targets: tuple[str, ...] = ()  # what cross-dataset and domain-shift test on besides
    samples: int = 20


@dataclass(frozen=True)
class Prepared:
    """A run before it starts: its data, its settings and its name."""

    config: RunConfig
    dataset: Dataset
    drawn: Draw
    kind: type[Method]
    settings: MethodConfig
    id: str


def prepare_run(
    config: RunConfig, backbone: Backbone, root: Path | None = None, dataset: Dataset | None = None
) -> Prepared:
    """Open the data (unless given), draw, and name the run: a hash of settings, draw, backbone and code."""
    dataset = dataset or open_dataset(config.dataset, root)
    drawn = draw(dataset, config.shots, config.seed)
    kind = find_method(config.method)
    settings = make_config(kind, config.preset, config.variant, config.overrides)
    facts = [asdict(config), to_dict(settings), drawn.hash, backbone.fingerprint, code_version(kind)]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return Prepared(config, dataset, drawn, kind, settings, digest)


def run_task(run: Prepared, bank: FeatureBank, root: Path | None = None) -> tuple[dict[str, Any], Arrays]:
    """Train and test; returns the record and, for every test, what it says of each image."""
    start = time.perf_counter()
    few = run.drawn.apply(run.dataset)
    base, new = base_new(few) if run.config.task == "base-to-new" else (few, None)
    tests = list(_tests(run.config, base, new, few, root))
    method, terms = _tuned(run, base, new, bank)
    results: dict[str, dict[str, Any]] = {}
    arrays: Arrays = {}
    for name, test in tests:
        method.prepare(test.classes, test.template)
        results[name], said = _tested(predictive(method, run.config.samples), test, bank)
        arrays |= {f"{name}/{key}": value for key, value in said.items()}
    if new is not None:
        results["H"] = {"accuracy": harmonic_mean(results["base"]["accuracy"], results["new"]["accuracy"])}
        results["joint"] |= _unknown_classes(arrays, len(base.classes))
    record = {
        "id": run.id,
        "config": asdict(run.config),
        "settings": to_dict(run.settings),
        "data": {"name": run.dataset.name, "content_hash": run.dataset.content_hash, "draw": run.drawn.hash},
        "backbone": {"name": bank.backbone.config.name, "fingerprint": bank.backbone.fingerprint},
        "code": code_version(run.kind),
        "library": __version__,
        "commit": commit(),
        "machine": machine(bank.backbone.device),
        "train": terms,
        "results": results,
        "seconds": time.perf_counter() - start,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return record, arrays


def code_version(kind: type[Method]) -> str:
    """A hash of the file that defines a method: a changed method is another run."""
    file = sys.modules[kind.__module__].__file__ or ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]


@cache
def commit() -> str:
    """The commit of the checkout this runs from; empty for an installed package."""
    ask = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine(device: torch.device) -> dict[str, str]:
    """What a figure's last digits depend on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "float32_products": torch.get_float32_matmul_precision(),  # highest: float32; high: TF32 on a GPU
    }


def _tuned(
    run: Prepared, base: Dataset, new: Dataset | None, bank: FeatureBank
) -> tuple[Method, dict[str, float]]:
    if not run.kind.trains:
        return build_method(run.kind, run.settings, bank.backbone, run.config.seed), {}

    def announce(method: Method) -> None:
        if new is not None and method.needs_unseen_names:
            method.unseen_names = new.classes

    return tune(
        base,
        bank,
        run.kind,
        run.settings,
        shots=run.config.shots,
        seed=run.config.seed,
        views=run.config.views,
        progress=False,
        announce=announce,
    )


def _tests(
    config: RunConfig, base: Dataset, new: Dataset | None, whole: Dataset, root: Path | None
) -> Iterator[tuple[str, Dataset]]:
    """(name, dataset whose test split is read) of everything the task tests on."""
    if new is not None:
        yield from (("base", base), ("new", new), ("joint", whole))
        return
    yield config.dataset, whole
    if config.task in ("cross-dataset", "domain-shift"):
        if not config.targets:
            raise InputError(f"{config.task}: name the targets to test on")
        for target in config.targets:
            other = open_dataset(target, root)
            if config.task == "domain-shift":
                if strange := set(other.classes) - set(whole.classes):  # ImageNet-A and -R have 200 of 1,000
                    raise InputError(
                        f"domain-shift: {target} has a class {min(strange)!r} that {config.dataset} lacks: "
                        "choose a target of the same classes, or the task cross-dataset"
                    )
                other = replace(other, test=other.test or other.items)
            yield target, other


def _tested(predictor: Predictor, test: Dataset, bank: FeatureBank) -> tuple[dict[str, Any], Arrays]:
    features = bank.encode(test.root, test.test)
    said = predict_features(predictor, features)
    probabilities = said.probabilities.double().cpu().numpy()
    labels = features.labels.numpy()
    logs = np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))
    figures: dict[str, Any] = {**summary(logs, labels), "images": len(labels)}
    arrays = {
        "label": labels.astype(np.int32),
        "predicted": probabilities.argmax(1).astype(np.int32),
        "confidence": probabilities.max(1).astype(np.float32),
        "log_likelihood": logs[np.arange(len(labels)), labels].astype(np.float32),
        "entropy": said.entropy.float().cpu().numpy(),
        "mutual_information": said.mutual_information.float().cpu().numpy(),
    }
    return figures, arrays


def _unknown_classes(arrays: Arrays, known: int) -> dict[str, float]:
    """How well doubt under all names tells images of classes that were not tuned on."""
    is_new = arrays["joint/label"] >= known
    return {
        "auroc_entropy": auroc(arrays["joint/entropy"], is_new),
        "auroc_mutual_information": auroc(arrays["joint/mutual_information"], is_new),
    }
