"""The field's four tasks, each a function of a run's settings that returns a record.

    few-shot       tune on k shots of all classes, test on all
    base-to-new    tune on the first half of the classes; test each half within its own names, and jointly
    cross-dataset  tune on one dataset; test on others, with their own class names
    domain-shift   tune on one domain; test on others of the same classes

The test split is read once, after training, with the model of the last step. A run with `split="val"` is
tested on the whole validation split instead, not on what the draw leaves of it.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbprompt import __version__
from pbprompt.config import to_dict
from pbprompt.errors import InputError
from pbprompt.evidence.series import held_out
from pbprompt.evidence.temperature import fit_temperature
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import Method, MethodConfig, make_config
from pbprompt.model.learn import Bank, bank_on
from pbprompt.model.metrics.evaluation import harmonic_mean
from pbprompt.model.metrics.selective import auroc
from pbprompt.model.predictor import predict_features
from pbprompt.model.scoring import log_probabilities, score
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.research.provenance import code_of, commit, machine
from pbprompt.research.runs import BackboneFacts, DataFacts, RunConfig, RunRecord, Split
from pbprompt.vision.features.cache import FeatureCache, Features
from pbprompt.vision.images.build_dataset import OF_A_DRAW
from pbprompt.vision.images.fewshot import base_new, draw
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.images.names import described
from pbprompt.vision.images.sources import open_dataset

REFUSAL = 0.05  # of images of known classes
Arrays = dict[str, NDArray[Any]]


class Datasets:
    """The data of runs under a root: each dataset is opened once, each draw made once."""

    def __init__(self, root: Path | None = None) -> None:
        self._open = cache(lambda name: open_dataset(name, root, held_out=OF_A_DRAW))
        self.drawn = cache(self._drawn)

    def tested(self, name: str, split: Split) -> Dataset:
        """The whole dataset, with the split that is tested on as its test split."""
        whole = self._open(name)
        if split == "test":
            return whole
        if not whole.val:
            raise InputError(f"{name} has no validation images: test it on its test split")
        return replace(whole, test=whole.val)

    def _drawn(self, name: str, shots: int, seed: int, split: Split) -> tuple[Dataset, DataFacts]:
        whole = self._open(name)
        drawn = draw(whole, shots, seed)
        facts = DataFacts(whole.name, whole.content_hash, drawn.hash)
        # a method that chooses by validation images does so on all of them, as the authors of such do
        few = drawn.apply(self.tested(name, split))
        return replace(few, val=whole.val, drawn_from=None), facts  # workers need no more of it


@dataclass(frozen=True)
class Prepared:
    """A run before it starts, all that a worker needs: its settings, its drawn dataset and its targets."""

    config: RunConfig
    few: Dataset
    data: DataFacts
    targets: Mapping[str, Dataset]

    @property
    def kind(self) -> type[Method]:
        return find_method(self.config.method)  # by its name: a worker has yet to load a plugin's file

    @property
    def settings(self) -> MethodConfig:
        return make_config(self.kind, self.config.preset, self.config.variant, self.config.overrides)

    @property
    def tested(self) -> dict[str, Dataset]:
        """By its name everything whose test split is read; base-to-new reads each half of it by itself."""
        return {self.config.dataset: self.few, **self.targets}

    def id(self, fingerprint: str) -> str:
        """The run's name: a hash of settings, draw, weights (by their fingerprint) and code."""
        code = code_of(self.kind)
        facts = [asdict(self.config), to_dict(self.settings), self.data.draw, fingerprint, code]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def prepare_run(config: RunConfig, datasets: Datasets | None = None) -> Prepared:
    """Open the data, draw, and look at the settings: what does not fit shows here."""
    datasets = datasets or Datasets()
    settings = make_config(find_method(config.method), config.preset, config.variant, config.overrides)
    few, data = datasets.drawn(config.dataset, config.shots, config.seed, config.split)
    elsewhere = config.task in ("cross-dataset", "domain-shift")
    if elsewhere and not config.targets:
        raise InputError(f"{config.task}: name the targets to test on")
    targets = {name: datasets.tested(name, config.split) for name in config.targets if elsewhere}
    if config.task == "domain-shift":
        for name, other in targets.items():
            if strange := set(other.classes) - set(few.classes):  # ImageNet-A and -R have 200 of 1,000
                raise InputError(
                    f"domain-shift: {name} has a class {min(strange)!r} that {config.dataset} lacks: "
                    "choose a target of the same classes, or the task cross-dataset"
                )
            targets[name] = replace(other, test=other.test or other.items)  # all, where it has no test split
    names = [name for dataset in (few, *targets.values()) for name in dataset.classes]
    sentences = {name: texts for name, *texts in getattr(settings, "descriptions", ())}
    described(names, sentences, f"descriptions for {config.dataset}")
    return Prepared(config, few, data, targets)


def run_task(run: Prepared, bank: FeatureCache) -> tuple[RunRecord, Arrays]:
    """Train and test; returns the record and, for every test, what it says of each image."""
    start = time.perf_counter()
    base, new = base_new(run.few) if run.config.task == "base-to-new" else (run.few, None)
    model = _tuned(run, base, new, bank)
    if run.config.temper:
        model = replace(model, info=replace(model.info, temperature=_temperature(run, base, new, bank)))
    results: dict[str, dict[str, int | float]] = {}
    arrays: Arrays = {}
    tuned = bank_on(bank, model.backbone)
    tests = run.tested if new is None else {"base": base, "new": new, "joint": run.few}
    for name, test in tests.items():
        results[name], own = _tested(model.for_classes(test.classes, test.template), test, tuned)
        arrays |= {f"{name}/{key}": value for key, value in own.items()}
    if new is not None:
        results["H"] = {"accuracy": harmonic_mean(results["base"]["accuracy"], results["new"]["accuracy"])}
        joint = tuned.encode(run.few.root, run.few.test)
        is_new = joint.labels.numpy() >= len(base.classes)
        figures, strange = _none_of_these(model, joint, is_new)
        for doubt in ("entropy", "mutual_information"):  # under all names
            figures[f"auroc_{doubt}"] = auroc(arrays[f"joint/{doubt}"], is_new)
        results["joint"] |= figures
        arrays["joint/none_of_these"] = strange
    record = RunRecord(
        id=run.id(bank.backbone.fingerprint),
        config=run.config,
        settings=to_dict(run.settings),
        data=run.data,
        backbone=BackboneFacts(bank.backbone.config.name, bank.backbone.fingerprint),
        code=code_of(run.kind),
        library=__version__,
        commit=commit(),
        machine={
            **machine(bank.backbone.device),
            "torch": torch.__version__,
            "float32_products": torch.get_float32_matmul_precision(),  # highest: float32; high: TF32 on a GPU
        },
        train=model.terms,
        results=results,
        seconds=time.perf_counter() - start,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return record, arrays


def _tuned(run: Prepared, base: Dataset, new: Dataset | None, bank: FeatureCache) -> TunedModel:
    if run.config.split == "val" and run.kind.needs_validation(run.settings):
        raise InputError(
            f"{run.kind.name} chooses by validation images with these settings, so that it cannot be tested "
            "on them: test it on the test split, or search nothing"
        )
    # the classes that are tested and not trained: the new half, or all targets' together
    known = set(base.classes)
    targets = dict.fromkeys(name for target in run.targets.values() for name in target.classes)
    unseen = new.classes if new is not None else tuple(name for name in targets if name not in known)
    options = FitOptions(seed=run.config.seed, views=run.config.views, progress=False, unseen_names=unseen)
    return TunedModel.fit(base, bank, run.kind, run.settings, options, samples=run.config.samples)


def _temperature(run: Prepared, base: Dataset, new: Dataset | None, bank: FeatureCache) -> float:
    """By what models of five folds say of the training images that they were not given; 1 where no class has
    two."""
    labels = torch.tensor([item.label for item in base.train])
    answers = []
    for held in held_out(labels):
        others = tuple(item for item, out in zip(base.train, held, strict=True) if not out)
        model = _tuned(run, replace(base, train=others), new, bank)
        tested = tuple(item for item, out in zip(base.train, held, strict=True) if out)
        features = bank_on(bank, model.backbone).encode(base.root, tested)
        answers.append((log_probabilities(predict_features(model.predictor, features)), labels[held]))
    if not answers:
        return 1.0
    logs, own = (torch.cat(part) for part in zip(*answers, strict=True))
    return fit_temperature(logs, own)


def _tested(model: TunedModel, test: Dataset, bank: Bank) -> tuple[dict[str, int | float], Arrays]:
    features = bank.encode(test.root, test.test)
    answers = predict_features(model.predictor, features)
    probabilities, logs = answers.probabilities.double().cpu().numpy(), log_probabilities(answers).numpy()
    labels = features.labels.numpy()
    figures: dict[str, int | float] = {**score(answers, features), "images": len(labels)}
    arrays = {
        "label": labels.astype(np.int32),
        "predicted": probabilities.argmax(1).astype(np.int32),
        "confidence": probabilities.max(1).astype(np.float32),
        "log_likelihood": logs[np.arange(len(labels)), labels].astype(np.float32),
        "entropy": answers.entropy.float().cpu().numpy(),
        "mutual_information": answers.mutual_information.float().cpu().numpy(),
    }
    return figures, arrays


def _none_of_these(
    model: TunedModel, images: Features, is_new: NDArray[np.bool_]
) -> tuple[dict[str, float], NDArray[np.float32]]:
    """How well a model of the known classes alone tells images of others, and how strange each is to it.

    By its own p-value where the method has one, with the shares refused at 5 %; else by its top probability.
    """
    answers, refused = predict_features(model.predictor, images).numpy(), {}
    familiar = answers.probabilities.max(1) if answers.familiarity is None else answers.familiarity
    if answers.familiarity is not None:
        refused = {
            "refused_known": float((familiar[~is_new] <= REFUSAL).mean()),
            "refused_new": float((familiar[is_new] <= REFUSAL).mean()),
        }
    strange = -familiar.astype(np.float32)
    return {"auroc_none_of_these": auroc(strange, is_new), **refused}, strange
