"""How good a model is, and how far to trust it, by labelled images that it did not learn from.

They are those of a split, or training images: each fifth answered by a model fitted to the other four.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.errors import InputError, suggest
from pbprompt.evidence.label_head import LabelHead
from pbprompt.evidence.temperature import fit_temperature
from pbprompt.learners.fitted import LeavesOut
from pbprompt.learners.method import Method
from pbprompt.learners.predictive import DIGITS, Predictive, rounded
from pbprompt.learners.trained import Trained
from pbprompt.model.calibration import Calibration, calibrate, calibrate_left_out
from pbprompt.model.hierarchy import holds
from pbprompt.model.learn import Bank, bank_on, targets
from pbprompt.model.metrics.conformal import prediction_sets
from pbprompt.model.metrics.evaluation import Evaluation, MultiLabelEvaluation, mean_average_precision
from pbprompt.model.predictor import predict_features, predict_labels, thresholds, zero_shot
from pbprompt.model.scoring import RIVALS, Fit, rival_figures, score
from pbprompt.model.series import apart_from, series_of
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import Features
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.names import class_rows, missing_names
from pbprompt.vision.images.series import apart
from pbprompt.vision.similarity import unit

LEFT_OUT = "left-out"  # in place of a split: training images, each answered by a model that did not see it
ENOUGH = 100  # validation images, for a temperature that nobody asked for, or to be calibrated by alone
BACKED_OFF = (0.8, 0.9, 0.95)  # accuracies of answers that may be groups
COVERAGE = 0.9  # of the sets
MOST_HELD_OUT = 1000  # training images that were not drawn and are judged instead
HARD = 0.25  # share of images that the model is least sure of

Unlabelled = Float[Tensor, "m d"] | None  # features of images that a model was fitted to beside the labelled


def calibrate_and_evaluate(
    model: TunedModel,
    dataset: Dataset,
    bank: Bank,
    *,
    figures: bool = True,
    temperature: bool = False,
    unlabelled: Unlabelled = None,
) -> TunedModel:
    """The model calibrated by images that it was not tuned on and, unless left out, with its figures.

    It is calibrated by validation images, or else by training images that were not drawn. A method that
    leaves its training images out in turn adds its answers on these, unless the data has a hundred
    validation images of its own, which may be more like those to come.

    The figures are of the test split, or of the validation split where there is no other and it chose
    nothing there, or else of the training images by models fitted without them, where that takes no steps;
    under `rivals`, what plain classifiers make of the same training images.

    With `temperature` (and of a method that leaves images out, wherever a hundred validation images are
    at hand) its probabilities are scaled first, as the validation images ask for; without such
    images they stay. A multi-label model has its thresholds already, and gets figures alone.
    """
    whole, method, calibration = dataset.whole, model.method, None
    split = "test" if whole.test else "val" if whole.val else LEFT_OUT
    metrics: dict[str, Any] = {}
    if model.multi_label:
        if whole.test:
            metrics = {"split": "test", **evaluate(model, dataset, "test", bank)[0]}
        return replace(model, info=replace(model.info, metrics=metrics))
    chooses = method.needs_validation(method.config)
    held_out, groups = apart_from(
        dataset, held_out_items(dataset, chooses=chooses), bank, model.info.data.group
    )
    if held_out:
        features = bank_on(bank, model.backbone).encode(dataset.root, held_out)
        answers = predict_features(replace(model.predictor, temperature=1.0), features)
        if temperature or (isinstance(method.fitted, LeavesOut) and len(held_out) >= ENOUGH):
            model = replace(model, info=replace(model.info, temperature=temperature_of(answers, features)))
        answers = answers.tempered(model.info.temperature)
        calibration = calibrate(
            model.predictor, answers.probabilities, features.labels, groups, answers.familiarity
        )

    def on_folds() -> Calibration:
        _, features, answers, groups = _answers(model, dataset, LEFT_OUT, bank, unlabelled)
        given = answers.probabilities, features.labels, groups, answers.familiarity
        return calibrate(model.predictor, *given, left_out=True)

    foldable = can_leave_out(model, dataset)
    if whole.split_by_seed or len(held_out) < ENOUGH:  # the training images are as good witnesses
        # beside images without a label a method leaves its own out one by one, so that series take folds
        folds = unlabelled is not None and isinstance(method.fitted, LeavesOut) and foldable
        folds = folds and series_of(dataset, dataset.train, bank, model.info.data.group) is not None
        left = on_folds() if folds else calibrate_left_out(model.predictor)
        calibration = calibration.joined(left) if calibration and left else calibration or left
    if figures and (foldable if split == LEFT_OUT else not (split == "val" and chooses)):
        if calibration is None and split == LEFT_OUT:
            calibration = on_folds()
        model = replace(model, calibration=calibration)
        metrics = evaluate(model, dataset, split, bank, rivals=True, unlabelled=unlabelled)[0]
        metrics = {"split": split, **metrics}
    return replace(model, calibration=calibration, info=replace(model.info, metrics=metrics))


def can_leave_out(model: TunedModel, dataset: Dataset) -> bool:
    """Whether training images can be left out: fitting takes no steps, and a class has two of them."""
    method = model.method
    fitted = method.trains and not isinstance(method, Trained) and not model.multi_label
    several = len({item.label for item in dataset.train}) < len(dataset.train)
    return fitted and several and not method.needs_validation(method.config)


def evaluate(
    model: TunedModel,
    dataset: Dataset,
    split: str,
    bank: Bank,
    *,
    rivals: bool = False,
    unlabelled: Unlabelled = None,
) -> tuple[dict[str, Any], Evaluation | MultiLabelEvaluation]:
    """A model's figures on a split, and its answers image by image.

    Of the split `left-out` they are those of its training images, each fifth of which is answered by a
    model fitted to the other four; an image that is its class's only one is not. `unlabelled`: the images
    without a label that it was fitted to beside them.

    Under `zero_shot` those of the untuned backbone, if that reads names; under `rivals`, if wanted, what
    plain classifiers make of the same training images; under `sets`, of the test split and where it is
    calibrated for its classes, how well prediction sets hold the true class. Those of a multi-label model
    are mAP, precision, recall and F1, of all labels and of each.
    """
    if model.multi_label and not dataset.multi_label:
        raise InputError(
            f"{dataset.name} is single-label, and the model multi-label: give a table with a column "
            "'labels', as in beach|dog"
        )
    if not model.multi_label:
        dataset.single_label()
    items = dataset.train if split == LEFT_OUT else dataset.whole.split(split)
    if not items:
        raise InputError(f"{dataset.name} has no {split} images: choose another split")
    if model.head is not None:
        features = bank_on(bank, model.backbone).encode(dataset.root, items)
        return _evaluate_labels(model, model.head, dataset, items, features)
    items, features, answers, groups = _answers(model, dataset, split, bank, unlabelled)
    paths = [item.path for item in items]
    evaluation = Evaluation.of(answers.probabilities.cpu(), features.labels.cpu(), model.classes, paths)
    given, info = model.method.given, model.info
    untuned = bank_on(bank, given)
    frozen = features if model.backbone is given else untuned.encode(dataset.root, items)
    figures: dict[str, Any] = {**score(answers, features), "images": len(items)}
    if groups is not None:
        figures["series"] = len(groups.unique())
    if given.reads_text:
        names = zero_shot(given, model.classes, model.method.template)
        figures["zero_shot"] = score(predict_features(names, frozen), frozen)
    if split == "test" and model.calibration is not None and model.calibrated:
        figures["sets"] = _set_figures(answers, features, model.classes, model.calibration)
        shown = np.round(evaluation.confidence, DIGITS)
        figures["trade"] = [one.kept(shown, evaluation.right) for one in model.calibration.promises]
        if model.has_groups:
            figures["groups"] = [_backed_off(model, answers, features, one) for one in BACKED_OFF]
    if rivals:
        train = untuned.encode(dataset.root, dataset.train)
        series = series_of(dataset, dataset.train, bank, info.data.group)
        others = [name for name in RIVALS if name != info.method]
        test = None if split == LEFT_OUT else frozen
        figures["rivals"] = rival_figures(given, model.classes, train, test, info.seed, others, series)
    return figures, evaluation


def _evaluate_labels(
    model: TunedModel, head: LabelHead, dataset: Dataset, items: Sequence[Item], features: Features
) -> tuple[dict[str, Any], MultiLabelEvaluation]:
    """Figures on labelled images, whose labels are found among the model's by name, and what is said of each.

    `zero_shot_map` is the mAP of ranking images by their cosine to the names, if the backbone reads names.
    """
    classes, backbone = model.classes, model.backbone
    if new := missing_names(classes, dataset.classes):
        hint = suggest(new[0], classes)
        raise InputError(f"{dataset.name}: the model does not know the label {new[0]!r}: {hint}")
    has = torch.zeros(len(items), len(classes), dtype=torch.bool)
    has[:, class_rows(classes, dataset.classes)] = targets(items, len(dataset.classes)).bool()
    answers = predict_labels(head, classes, features.images).probabilities
    paths = tuple(item.path for item in items)
    evaluation = MultiLabelEvaluation(classes, paths, has, answers, tuple(thresholds(head)))
    figures = dict(evaluation.figures)
    if backbone.reads_text:
        names = unit(zero_shot(backbone, classes, model.method.template).bank[0])
        cosines = (unit(features.global_.to(names)) @ names.T).cpu()
        figures["zero_shot_map"] = mean_average_precision(cosines, has)
    return figures, evaluation


def _answers(
    model: TunedModel, dataset: Dataset, split: str, bank: Bank, unlabelled: Unlabelled
) -> tuple[tuple[Item, ...], Features, Predictive, Int[Tensor, " n"] | None]:
    """The images of a split that can be judged, their features, what is said of them, and their series."""
    items = dataset.train if split == LEFT_OUT else dataset.whole.split(split)
    features = bank_on(bank, model.backbone).encode(dataset.root, items)
    if split != LEFT_OUT:
        return items, features, predict_features(model.predictor, features), None
    groups, method = series_of(dataset, items, bank, model.info.data.group), model.method
    made = (type(method), model.backbone, model.classes, method.template, model.info.seed, method.config)
    found = Fit(*made, unlabelled).on_folds(features, groups)
    if found is None:
        raise InputError("no class has two images, so that none can be left out: add images")
    rows, answers = found
    answers = answers.tempered(model.info.temperature, model.ratio)
    left = tuple(items[row] for row in rows.tolist())
    return left, features.subset(rows), answers, None if groups is None else groups[rows]


def _set_figures(
    answers: Predictive, features: Features, classes: tuple[str, ...], calibration: Calibration
) -> dict[str, str | int | float]:
    """How often prediction sets hold the true class, how large they are, and the class that fares worst."""
    shown, labels = np.asarray(rounded(answers.probabilities)), features.labels.cpu().numpy()
    likely, top = prediction_sets(shown, calibration.quantile(COVERAGE)), shown.max(1)
    held = likely[np.arange(len(shown)), labels]
    images = np.bincount(labels, minlength=len(classes))
    shares = np.bincount(labels, weights=held, minlength=len(images)) / np.maximum(images, 1)
    worst = int(np.where(images > 0, shares, np.inf).argmin())
    return {
        "asked": COVERAGE,
        "coverage": float(held.mean()),
        "hard_coverage": float(held[top <= np.quantile(top, HARD)].mean()),
        "mean_size": float(likely.sum(1).mean()),
        "worst_class": classes[worst],
        "worst_class_coverage": float(shares[worst]),
        "worst_class_images": int(images[worst]),
    }


def _backed_off(
    model: TunedModel, answers: Predictive, features: Features, accuracy: float
) -> dict[str, float | None]:
    """What comes of `--back-off`: answers by a class and by a group, and how many of them are right."""
    rule = model.rule(back_off=accuracy)
    decided = rule.decide(answers, [False] * len(model.classes))
    found = [one.answer[0] if one.answer else "" for one in decided]
    true = [model.classes[label] for label in features.labels.tolist()]
    right = [holds(*pair, rule.hierarchy) for pair in zip(found, true, strict=True) if pair[0]]
    by_class = sum(name in model.classes for name in found)
    return {
        "promised": accuracy,
        "by_class": by_class / len(found),
        "by_group": (len(right) - by_class) / len(found),
        "right": sum(right) / len(right) if right else None,
    }


def held_out_items(dataset: Dataset, *, chooses: bool = False) -> list[Item]:
    """Labelled images that a model is not tuned on (nor `chooses` by), nor their series, beside those of the
    test split.

    Those of the validation split, or else training images that were not drawn: any thousand of them, so that
    classes are as frequent among them as they are.
    """
    whole = dataset.whole
    learned = (*dataset.train, *(dataset.val if chooses else ()))
    used = {item.path for item in learned}
    held_out = apart([item for item in whole.val if item.path not in used], learned)
    if held_out or dataset.drawn is None:
        return held_out
    left = apart([item for item in whole.train if item.path not in used], learned)
    some = Random(dataset.drawn.seed).sample(range(len(left)), min(len(left), MOST_HELD_OUT))
    return [left[place] for place in sorted(some)]


def check_temperature(dataset: Dataset, kind: type[Method]) -> None:
    """Refuse, before any training, to fit a temperature to images that are not there.

    A method that leaves its own images out in turn needs none: its probabilities are calibrated by these.
    """
    if not held_out_items(dataset) and not issubclass(getattr(kind, "makes", kind), LeavesOut):
        raise InputError(
            f"{dataset.name} has no validation images, which a temperature is fitted to: draw fewer shots, "
            "add a val/ folder, or fit `conjugate`, which is calibrated by its training images"
        )


def temperature_of(answers: Predictive, features: Features) -> float:
    """T for mean class distributions of temperature 1, of labelled images that nothing was tuned on.

    One number fitted to the images that thresholds and sets rest on too: what they promise then holds up to
    that number's freedom, which is small beside that of tens of images.
    """
    logits = answers.probabilities.cpu().clamp_min(torch.finfo(torch.float32).tiny).log()
    return fit_temperature(logits, features.labels.cpu(), smoothing=1 / (len(features) + 2))
