"""`TunedModel`: what the command line, the classifier, the server and the exporter all hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.data.fewshot import Draw
from pbprompt.data.items import DEFAULT_TEMPLATE, Dataset, Item
from pbprompt.data.names import name_key
from pbprompt.errors import InputError
from pbprompt.evaluate.answers import Answers
from pbprompt.features.bank import FeatureBank, Features
from pbprompt.methods.abilities import ChoosesByValidation, LearnsOn, LeavesOut, can
from pbprompt.methods.base import Method, MethodConfig
from pbprompt.model.calibration import (
    Calibration,
    calibrate,
    calibrate_left_out,
    read_calibration,
    temperature_of,
)
from pbprompt.model.card import ModelInfo
from pbprompt.model.folder import copy_method, describe_model, load_model, save_model
from pbprompt.model.manifest import ModelFiles, opened
from pbprompt.model.predictions import NO_RULE, Prediction, Rule, predictions
from pbprompt.model.predictor import SAMPLES, Predictor, predictive
from pbprompt.model.rivals import rival_figures
from pbprompt.model.scoring import compare, predict_features, set_figures, zero_shot
from pbprompt.train.journal import OnLog
from pbprompt.train.tune import Bank, Views, draw_facts, tune

COVERAGE = 0.9  # of the sets whose figures `evaluate` gives
MOST_HELD_OUT = 1000  # training images that were not drawn and are judged instead
PATHS_AT_ONCE = 256  # of many files: answers come as they are made
AnyPath = TypeVar("AnyPath", str, Path)


@dataclass(frozen=True, eq=False)
class TunedModel:
    """A method prepared for its classes, what made it, how far to trust it, and how to draw its prompts."""

    method: Method
    info: ModelInfo
    calibration: Calibration | None = None
    samples: int = SAMPLES  # prompts of each class
    seed: int = 0  # of the sampled prompts
    terms: dict[str, float] = field(default_factory=dict)  # of the loss in the last epoch of training
    independent: bool = False  # each name by itself, as `zero_shot` says

    def __repr__(self) -> str:
        backbone = self.info.backbone["name"]
        return f"TunedModel({self.info.method!r}, backbone={backbone!r}, {len(self.classes)} classes)"

    @cached_property
    def predictor(self) -> Predictor:
        """The sampled classifiers, drawn when they are first needed."""
        drawn = predictive(self.method, self.samples, self.seed)
        return replace(drawn, temperature=self.info.temperature, independent=self.independent)

    @property
    def backbone(self) -> Backbone:
        return self.method.backbone

    @property
    def classes(self) -> tuple[str, ...]:
        return self.method.classes

    @property
    def calibrated(self) -> bool:
        """Whether doubt can be judged: not with a class that no validation image could be of."""
        return self.calibration is not None and self.calibration.classes == len(self.classes)

    @classmethod
    def fit(
        cls,
        dataset: Dataset,
        bank: Bank,
        kind: type[Method],
        config: MethodConfig,
        *,
        drawn: Draw | None = None,
        seed: int = 1,
        samples: int = SAMPLES,
        views: Views = "centre",
        folder: Path | None = None,
        max_steps: int | None = None,
        progress: bool = True,
        announce: Callable[[Method], None] = lambda method: None,
        weights: Mapping[str, float] | None = None,
        on_log: OnLog | None = None,
    ) -> Self:
        """Tune a method on the drawn training items (all of them without a draw).

        With a `folder` the training is logged and checkpointed there. `announce` gets the method before the
        first step. `weights`: how much each training item counts, by its path. `on_log` is called with each
        record of the training's log.
        """
        few = drawn.apply(dataset) if drawn else dataset
        method, terms = tune(
            few,
            bank,
            kind,
            config,
            shots=drawn.shots if drawn else None,
            seed=seed,
            views=views,
            folder=folder,
            max_steps=max_steps,
            progress=progress,
            announce=announce,
            weights=weights,
            on_log=on_log,
        )
        shots = drawn.shots if drawn else 0
        info = describe_model(method, seed=seed, shots=shots, data=draw_facts(dataset, drawn))
        return cls(method, info, samples=samples, terms=terms)

    @classmethod
    def zero_shot(
        cls,
        backbone: Backbone,
        classes: Sequence[str],
        template: str = DEFAULT_TEMPLATE,
        *,
        independent: bool = False,
    ) -> Self:
        """The untuned backbone, which knows the classes by their names alone.

        `independent`: the probability of each name by itself, so that an image may show several or none;
        for backbones with a logit bias, such as SigLIP's.
        """
        if not backbone.reads_text:
            raise InputError(
                f"{backbone.config.name} is an image tower that reads no class names: fit it to a few images "
                "of each class first, or use a backbone with a text tower, such as lite"
            )
        if independent and backbone.logit_bias is None:
            raise InputError(
                f"{backbone.config.name} has no logit bias, by which each name would have a probability of "
                "its own: use a SigLIP backbone, or let the names share one"
            )
        method = zero_shot(backbone, classes, template).method
        return cls(method, describe_model(method), independent=independent)

    @classmethod
    def load(
        cls,
        folder: str | Path | ModelFiles,
        backbone: Backbone | str | None = None,
        device: str | torch.device = "cpu",
        *,
        samples: int = SAMPLES,
        seed: int = 0,
    ) -> Self:
        """A saved model, of its folder or of what was read of that.

        `backbone`: one that is loaded already, or where its weights are if they moved.
        """
        files = opened(folder)
        method, info = load_model(files, backbone, device)
        return cls(method, info, read_calibration(files), samples, seed)

    def save(self, folder: str | Path, name: str = "", labels: str | None = None) -> None:
        """Write a model folder, whose card calls it `name`; `labels` is the text of `classifier.json`."""
        save_model(Path(folder), self.method, self.info, self.calibration, name or str(folder), labels)

    def with_classes(self, names: Sequence[str]) -> Self:
        """The same model with more classes, known by their names."""
        if isinstance(names, str):
            raise InputError(f"names is {names!r}: give a list of class names, such as ['zebra']")
        known = {name_key(name) for name in self.classes}
        for name in names:
            if name_key(name) in known:
                raise InputError(f"class {name!r} is there already: give other names")
            known.add(name_key(name))
        return self.for_classes((*self.classes, *names))

    def for_classes(self, classes: Sequence[str], template: str | None = None) -> Self:
        """The same model prepared for other classes (or another sentence); this one stays as it is."""
        method = copy_method(self.method)
        method.prepare(classes, template or method.template)
        return self._with(method)

    def _with(self, method: Method) -> Self:
        info = replace(self.info, classes=method.classes, template=method.template)
        if info.classes != self.info.classes:
            info = replace(info, metrics={})  # they were measured for the former classes
        return replace(self, method=method, info=info)

    def partial_fit(self, images: Encoded, labels: Sequence[str]) -> Self:
        """The model having learned these images too, as if fitted on all; new labels are new classes.

        Its figures, temperature and calibration are of before, so they go.
        """
        if not can(self.method, LearnsOn):
            raise InputError(f"{self.method.name} cannot learn on: fit it again on all images")
        known = {name_key(name): place for place, name in enumerate(self.classes)}
        new = [name for name in dict.fromkeys(labels) if name_key(name) not in known]
        method = copy_method(self.method)
        assert can(method, LearnsOn)
        method.expect((*self.classes, *new), method.template)
        model = self._with(method)
        known = {name_key(name): place for place, name in enumerate(model.classes)}
        device = self.backbone.device
        rows = torch.tensor([known[name_key(label)] for label in labels], device=device)
        method.learn(Encoded(*(part.to(device) for part in images)), rows)
        return replace(model, info=replace(model.info, metrics={}, temperature=1.0), calibration=None)

    def checked(
        self,
        dataset: Dataset,
        bank: Bank,
        drawn: Draw | None,
        *,
        figures: bool = True,
        temperature: bool = False,
    ) -> Self:
        """With its answers on images that it was not tuned on and, unless left out, its figures.

        The answers are on validation images; where there are none, on training images that were not drawn;
        where all were, on these, each left out in turn, if the method does that.

        The figures are of the test split, or of the validation split where there is no other and it chose
        nothing there; under `rivals`, what plain classifiers make of the same training images.

        With `temperature` its probabilities are scaled first, as the validation images ask for; without such
        images they stay.
        """
        held_out = validation_items(dataset, drawn, chooses=can(self.method, ChoosesByValidation))
        if not held_out:
            calibration = calibrate_left_out(self.predictor, self.seed)
            return self._measured(dataset, bank, drawn, figures, calibration)
        features = bank.encode(dataset.root, held_out)
        model = self
        if temperature:
            scaled = temperature_of(self.predictor, features)
            model = replace(self, info=replace(self.info, temperature=scaled))
        calibration = calibrate(model.predictor, features, self.seed)
        return model._measured(dataset, bank, drawn, figures, calibration)

    def _measured(
        self,
        dataset: Dataset,
        bank: Bank,
        drawn: Draw | None,
        figures: bool,
        calibration: Calibration | None,
    ) -> Self:
        split = "test" if dataset.test else "val"
        metrics: dict[str, Any] = {}
        chose_there = split == "val" and can(self.method, ChoosesByValidation)
        if figures and (items := dataset.split(split)) and not chose_there:
            judged = replace(self, calibration=calibration)
            features = bank.encode(dataset.root, items)
            few = drawn.apply(dataset) if drawn else dataset
            rivals = rival_figures(few, bank, features, self.info.seed, own=self.info.method)
            metrics = {
                "split": split,
                **judged.evaluate(features, sets=split == "test"),
                "rivals": rivals,
            }
        return replace(self, info=replace(self.info, metrics=metrics), calibration=calibration)

    def with_left_out(self) -> Self:
        """Calibrated for its present classes by its training images, each left out, where its method does so.

        They vouch for images of their own classes, among all classes: not for those of an added one.
        """
        calibration = calibrate_left_out(self.predictor, self.seed)
        if calibration is None:
            return self
        judged = replace(self, calibration=calibration)
        judged.__dict__["predictor"] = self.predictor  # its prompts are drawn already
        return judged

    def evaluate(self, features: Features, *, sets: bool = True) -> dict[str, Any]:
        """Its figures on labelled images, and under `zero_shot` those of the untuned backbone.

        Where it is calibrated for its classes, `sets` are how well prediction sets hold the true class, over
        all and of the class that they hold worst; not for the images that it was calibrated with.
        """
        return self.judge(features, [""] * len(features), sets=sets)[0]

    def judge(
        self, features: Features, paths: Sequence[str], *, sets: bool = True
    ) -> tuple[dict[str, Any], Answers]:
        """The figures of `evaluate`, and what it said of each image, which is known by its path."""
        said = predict_features(self.predictor, features)
        answers = Answers.of(said.probabilities.cpu(), features.labels.cpu(), self.classes, paths)
        figures = compare(self.predictor, features, said)
        if sets and self.calibration is not None and self.calibrated:
            quantile = self.calibration.quantile(COVERAGE)
            figures["sets"] = set_figures(said, features, self.classes, COVERAGE, quantile)
        return figures, answers

    @torch.inference_mode()
    def encode(self, pixels: Sequence[Float[Tensor, "3 size size"]]) -> Encoded:
        """Preprocessed images through the frozen tower, in one pass."""
        return self.backbone.image(torch.stack(list(pixels)).to(self.backbone.device))

    def rule(
        self,
        accuracy: float | None = None,
        coverage: float | None = None,
        refusal: float | None = None,
        *,
        per_class: bool = False,
    ) -> Rule:
        """What marks an image as unsure so that the others are this accurate, and fills sets that hold the
        true class this often (`per_class`: whatever class it is), judged by the validation images; and what
        marks one as none of the classes, wrongly so for this share of images of theirs."""
        if self.calibration is None:
            if accuracy is None and coverage is None:
                return Rule(refusal=refusal)
            raise InputError(
                "the model was fitted without validation images, on which thresholds and sets rest: "
                "fit it again on data that has some"
            )
        quantile: float | tuple[float, ...] | None = None
        if coverage is not None and per_class:
            quantile = self.calibration.class_quantiles(self.classes, coverage)
        elif coverage is not None:
            quantile = self.calibration.quantile(coverage)
        return Rule(None if accuracy is None else self.calibration.threshold(accuracy), quantile, refusal)

    def predict(self, images: Encoded, rule: Rule = NO_RULE) -> list[Prediction]:
        """What is in each image, how sure that is and, by a rule, what to do with it."""
        device = self.backbone.device
        return predictions(self.predictor, Encoded(*(part.to(device) for part in images)), rule)

    def predict_files(
        self, paths: Sequence[AnyPath], rule: Rule = NO_RULE, *, progress: bool = True
    ) -> Iterator[tuple[AnyPath, Prediction | InputError]]:
        """The prediction of each file, in order; an unreadable one gives its error."""
        bank = FeatureBank(self.backbone, progress=progress)
        for at in range(0, len(paths), PATHS_AT_ONCE):
            some = paths[at : at + PATHS_AT_ONCE]
            failures: dict[str, InputError] = {}
            features = bank.encode(Path(), [Item(str(path), 0) for path in some], failures)
            images = Encoded(features.global_, features.patches)
            said = iter(self.predict(images, rule)) if len(features) else iter(())
            yield from ((path, failures.get(str(path)) or next(said)) for path in some)


def validation_items(dataset: Dataset, drawn: Draw | None, *, chooses: bool = False) -> list[Item]:
    """Labelled images that a model is not tuned on (nor `chooses` by), beside those of the test split.

    Those of the validation split, or else training images that were not drawn: any thousand of them, so that
    classes are as frequent among them as they are.
    """
    few = drawn.apply(dataset) if drawn else dataset
    used = {item.path for item in (*few.train, *(few.val if chooses else ()))}
    held_out = [item for item in dataset.val if item.path not in used]
    if held_out or drawn is None:
        return held_out
    left = [item for item in dataset.train if item.path not in used]
    some = Random(drawn.seed).sample(range(len(left)), min(len(left), MOST_HELD_OUT))
    return [left[place] for place in sorted(some)]


def check_temperature(dataset: Dataset, drawn: Draw | None, kind: type[Method]) -> None:
    """Refuse, before any training, to fit a temperature to images that are not there.

    A method that leaves its own images out in turn needs none: its probabilities are calibrated by these.
    """
    if not validation_items(dataset, drawn) and not can(kind, LeavesOut):
        raise InputError(
            f"{dataset.name} has no validation images, which a temperature is fitted to: draw fewer shots, "
            "add a val/ folder, or fit `conjugate`, which is calibrated by its training images"
        )
