"""`TunedModel`: what the command line, the classifier, the server and the exporter all hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.errors import InputError, suggest
from pbprompt.evidence.label_head import LabelHead
from pbprompt.evidence.learners import TakesUnlabelled
from pbprompt.evidence.unlabelled import Absorbed
from pbprompt.learners.fit_options import USUAL, FitOptions
from pbprompt.learners.fitted import ComparesParts, CountsClasses, LeavesOut, PartialFit
from pbprompt.learners.memory import Memory
from pbprompt.learners.method import Method, MethodConfig, build_method
from pbprompt.learners.predictive import DIGITS, Predictive
from pbprompt.learners.trained import Trained
from pbprompt.model.calibration import (
    Calibration,
    calibrate,
    calibrate_folds,
    calibrate_left_out,
    held_out_items,
    read_calibration,
    temperature_of,
)
from pbprompt.model.card import ModelInfo
from pbprompt.model.class_mix import Mix, estimated, ratio, shares
from pbprompt.model.costs import Costs, checked_costs, matrix
from pbprompt.model.folder import Given, copy_method, describe_model, load_model, save_model
from pbprompt.model.hierarchy import holds
from pbprompt.model.learn import Bank, bank_on, learn_beside, tune
from pbprompt.model.manifest import ModelFiles, opened
from pbprompt.model.metrics.conformal import ByDifficulty
from pbprompt.model.metrics.evaluation import Evaluation, MultiLabelEvaluation
from pbprompt.model.multi_label import check_multi_label, fit_head, judge_labels, predict_labels, thresholds
from pbprompt.model.nothing import Nothing
from pbprompt.model.predictor import SAMPLES, Predictor, predict_features, predictive, zero_shot
from pbprompt.model.provenance import Provenance, pool_facts
from pbprompt.model.rule import NO_RULE, Rule
from pbprompt.model.scoring import (
    RIVALS,
    Fit,
    leaderboard,
    rival_figures,
    score,
    set_figures,
    standard_figures,
)
from pbprompt.model.series import apart_from, series_facts, series_of
from pbprompt.vision.features.cache import Features
from pbprompt.vision.features.encode import default_batch
from pbprompt.vision.images.items import DEFAULT_TEMPLATE, Dataset
from pbprompt.vision.images.names import by_any_name, called, known_as, missing_names, name_key
from pbprompt.vision.towers.backbone import Backbone, Encoded

ENOUGH = 100  # validation images, for a temperature that nobody asked for, or to be calibrated by alone
LEFT_OUT = "left-out"  # in place of a split: training images, each judged by a model that did not see it
BACKED_OFF = (0.8, 0.9, 0.95)  # accuracies of answers that may be groups, that `evaluate` tells of
COVERAGE = 0.9  # of the sets whose figures `evaluate` gives


@dataclass(frozen=True, eq=False)
class TunedModel:
    """A method prepared for its classes, what made it, how far to trust it, and how to draw its prompts.

    With a `head` it is multi-label: an image has those classes whose probability is at or above their
    thresholds, perhaps none.

    Example:
        >>> from PIL import Image
        >>> model = TunedModel.zero_shot(load_backbone("lite"), ["cat", "dog"]).with_classes(["zebra"])
        >>> images = model.encode([model.backbone.preprocess(Image.new("RGB", (64, 64)))])
        >>> said = model.predict(images)[0]
        >>> list(said.scores), round(sum(said.scores.values()), 3)
        (['cat', 'dog', 'zebra'], 1.0)
    """

    method: Method
    info: ModelInfo
    calibration: Calibration | None = None
    samples: int = SAMPLES  # prompts of each class
    seed: int = 0  # of the sampled prompts
    terms: dict[str, float] = field(default_factory=dict)  # of the loss in the last epoch of training
    independent: bool = False  # each name by itself, as `zero_shot` says
    head: LabelHead | None = None  # of a multi-label model
    class_mix: Mix | None = None  # how often classes come; None: as in training
    costs: Costs | None = None  # of wrong answers; None: all alike
    nothing: Nothing | None = None  # what tells images without content
    _drawn: dict[tuple[int, int], Predictor] = field(default_factory=dict, repr=False)  # by samples and seed

    def __repr__(self) -> str:
        backbone, kinds = self.info.backbone["name"], "labels" if self.multi_label else "classes"
        return f"TunedModel({self.info.method!r}, backbone={backbone!r}, {len(self.classes)} {kinds})"

    @property
    def predictor(self) -> Predictor:
        """The sampled classifiers, drawn when they are first needed, once for all copies of this model."""
        self.single_label()
        drawn = self._drawn.get((self.samples, self.seed))
        if drawn is None:
            drawn = self._drawn[self.samples, self.seed] = predictive(self.method, self.samples, self.seed)
        return replace(
            drawn,
            temperature=self.info.temperature,
            independent=self.independent,
            hierarchy=tuple(self.info.hierarchy.items()),
            ratio=self._ratio(),
        )

    @property
    def multi_label(self) -> bool:
        return self.head is not None

    def single_label(self) -> Self:
        """Itself, refused where it is multi-label."""
        if self.multi_label:
            raise InputError(
                f"the model of {self.info.data.dataset or 'own data'} is multi-label, and this needs a "
                "single-label one: fit a table with a column 'label'"
            )
        return self

    @property
    def thresholds(self) -> dict[str, float]:
        """Of a multi-label model: the probability from which on an image is said to have a label."""
        return dict(zip(self.classes, thresholds(self.head), strict=True)) if self.head else {}

    @property
    def backbone(self) -> Backbone:
        return self.method.backbone

    @property
    def classes(self) -> tuple[str, ...]:
        return self.method.classes

    @property
    def has_groups(self) -> bool:
        """Whether an answer may be a group of its classes."""
        return self.calibration is not None and bool(self.calibration.group_confidence)

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
        options: FitOptions = USUAL,
        *,
        samples: int = SAMPLES,
    ) -> Self:
        """Tune a method on a dataset's training items: all of them, unless it is a few-shot draw.

        A multi-label dataset is fitted in one step, by methods that can.

        Args:
            dataset: the items, such as `open_dataset` gives.
            bank: where the features of the dataset's items come from.
            kind: the method, as `find_method` has it.
            config: its settings.
            options: how to fit: seed, crops, checkpoints and the like.
            samples: prompts of each class to predict with.
        """
        seed = options.seed
        if dataset.multi_label:
            check_multi_label(kind)
            method = build_method(kind, config, bank.backbone, seed, dataset.classes, dataset.template)
            options.announce(method)
            info = describe_model(method, seed=seed, data=Provenance.of(dataset), multi_label=True)
            head = fit_head(dataset, bank, method)
            return cls(method, info, head=head)._telling_nothing(dataset, bank)
        groups = series_of(dataset, dataset.train, bank, options.group)
        method, terms = tune(dataset, bank, kind, config, replace(options, groups=groups))
        shots = dataset.drawn.shots if dataset.drawn else 0
        facts = pool_facts(absorbed_by(method)) | series_facts(groups, options.group)
        data = replace(Provenance.of(dataset), **facts)
        if isinstance(method, ComparesParts) and method.compares:
            shown = tuple(item.path for item in dataset.train)
            data = replace(data, root=str(Path(dataset.root).absolute()), photographs=shown)
        info = describe_model(method, seed=seed, shots=shots, data=data)
        info = replace(info, hierarchy=options.hierarchy)
        return cls(method, info, samples=samples, terms=terms)._telling_nothing(dataset, bank)

    def _telling_nothing(self, dataset: Dataset, bank: Bank) -> Self:
        """By the training photographs, where the towers that see them are those that answer."""
        if self.backbone.fingerprint != bank.backbone.fingerprint:
            return self
        photographs = bank.encode(dataset.root, dataset.train).global_
        return replace(self, nothing=Nothing.beside(self.backbone, photographs))

    @classmethod
    def fit_by_names(
        cls,
        backbone: Backbone,
        classes: Sequence[str],
        unlabelled: Float[Tensor, "m d"],
        kind: type[Method],
        config: MethodConfig,
        *,
        template: str = DEFAULT_TEMPLATE,
        seed: int = 1,
    ) -> Self:
        """Without any label: names say where the classes lie, and features of other images correct them."""
        method = build_method(kind, config, backbone, seed, classes, template)
        learn_beside(method, unlabelled)
        assert isinstance(method, TakesUnlabelled)  # as `learn_beside` saw to
        method.begin_by_names()
        method.finish()
        data = Provenance(**pool_facts(absorbed_by(method)))
        nothing = Nothing.beside(backbone, unlabelled)
        return cls(method, describe_model(method, seed=seed, data=data), nothing=nothing)

    def together(self, images: Float[Tensor, "m d"]) -> Self:
        """The model having seen these images without labels too, such as those that it is to classify."""
        method = copy_method(self.single_label().method)
        learn_beside(method, images, asked=True)
        method.finish()
        method.prepare(self.classes, method.template)
        return self._relearned(method)

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
        backbone: Given = None,
        device: str | torch.device = "cpu",
        *,
        samples: int = SAMPLES,
        seed: int = 0,
    ) -> Self:
        """A saved model, of its folder or of what was read of that.

        Args:
            folder: the model's, or what `opened` read of it.
            backbone: one that is loaded already, or where its weights are if they moved; of several a list.
            device: of a backbone that is loaded here.
            samples: prompts of each class to predict with.
            seed: of the sampled prompts.

        Example:
            >>> TunedModel.zero_shot(load_backbone("lite"), ["cat", "dog"]).save("model")
            >>> TunedModel.load("model").classes
            ('cat', 'dog')
        """
        files = opened(folder)
        method, info, head, nothing = load_model(files, backbone, device)
        return cls(method, info, read_calibration(files), samples, seed, head=head, nothing=nothing)

    def save(self, folder: str | Path, name: str = "", labels: str | None = None) -> None:
        """Write a model folder, whose card calls it `name`; `labels` is the text of `classifier.json`."""
        save_model(Path(folder), self, name or str(folder), labels)

    def with_classes(self, names: Sequence[str]) -> Self:
        """The same model with more classes, known by their names."""
        if isinstance(names, str):
            raise InputError(f"names is {names!r}: give a list of class names, such as ['zebra']")
        known = by_any_name(self.classes)
        for name in names:
            if called(known, name):
                raise InputError(f"class {name!r} is there already: give other names")
            known[name_key(name)] = [-1]
        return self.for_classes((*self.classes, *names))

    def for_classes(self, classes: Sequence[str], template: str | None = None) -> Self:
        """The same model prepared for other classes (or another sentence); this one stays as it is."""
        method = copy_method(self.single_label().method)
        method.prepare(classes, template or method.template)
        info = replace(self.info, classes=method.classes, template=method.template)
        if info.classes != self.info.classes:
            info = replace(info, metrics={})  # they were measured for the former classes
        return replace(self, method=method, info=info, _drawn={})

    def partial_fit(self, images: Encoded, labels: Sequence[str]) -> Self:
        """The model having learned these images too, as if fitted on all; new labels are new classes."""
        method = self._learning("learn on: fit it again on all images")
        assert isinstance(method, PartialFit)
        method.expect((*self.classes, *missing_names(self.classes, labels)), method.template)
        places, device = by_any_name(method.classes), self.backbone.device
        rows = torch.tensor([called(places, label)[0] for label in labels], device=device)
        method.learn(images.to(device), rows)
        nothing = self.nothing and self.nothing.knowing(images.global_)
        return replace(self, nothing=nothing)._relearned(method)

    def regrouped(self, named: Mapping[str, str | None]) -> Self:
        """The model with classes called otherwise, several perhaps alike, or (None) forgotten: as if it had
        been fitted so. Both may be given as the model's labels, or as the names of these."""
        method = self._learning("regroup its classes: fit it again")
        assert isinstance(method, PartialFit)
        named = self.own_labels(named)
        for name in named:
            if name not in self.classes:
                raise InputError(f"class {name!r} is none of the model's: {suggest(name, self.classes)}")
        names = [named.get(name, name) for name in self.classes]
        left = tuple(dict.fromkeys(name for name in names if name is not None))
        if len(left) < 2:
            raise InputError("fewer than two classes would be left: keep two or more")
        method.regroup(named)
        method.prepare(left, method.template)
        pairs = ((named.get(name, name), group) for name, group in self.info.hierarchy.items())
        kept = {name: group for name, group in pairs if name is not None}
        return replace(self, info=replace(self.info, hierarchy=kept))._relearned(method)

    def own_labels(self, named: Mapping[str, str | None]) -> dict[str, str | None]:
        """What `regrouped` takes, by label; a class may get its own name as its label."""
        given = list(named.values())
        own, now = (known_as(self.classes, [one or "" for one in each]) for each in (named, given))
        return {
            old: new if new is None or (old == known and given.count(new) == 1) else known
            for old, new, known in zip(own, given, now, strict=True)
        }

    def _learning(self, what: str) -> Method:
        """A copy of the method, which is to learn on; refused where it cannot."""
        if self.multi_label or not isinstance(self.method, PartialFit):
            kind = "a multi-label model" if self.multi_label else self.method.name
            raise InputError(f"{kind} cannot {what}")
        return copy_method(self.method)

    def _relearned(self, method: Method) -> Self:
        """With a method that knows more: figures, temperature and calibration are of before, so they go, and
        its training images, each left out, calibrate it anew."""
        data = replace(self.info.data, **pool_facts(absorbed_by(method)))
        info = replace(self.info, classes=method.classes, metrics={}, temperature=1.0, data=data)
        return replace(self, method=method, info=info, calibration=None, _drawn={}).with_left_out()

    def assessed(
        self,
        dataset: Dataset,
        bank: Bank,
        *,
        figures: bool = True,
        temperature: bool = False,
        unlabelled: Float[Tensor, "m d"] | None = None,
    ) -> Self:
        """With its answers on images that it was not tuned on and, unless left out, its figures.

        The answers are on validation images, or else on training images that were not drawn. A method that
        leaves its training images out in turn adds its answers on these, unless the data has a hundred
        validation images of its own, which may be more like those to come.

        The figures are of the test split, or of the validation split where there is no other and it chose
        nothing there, or else of the training images by models fitted without them (`judge`), where that
        takes no steps; under `rivals`, what plain classifiers make of the same training images.

        With `temperature` (and of a method that leaves images out, wherever a hundred validation images are
        at hand) its probabilities are scaled first, as the validation images ask for; without such
        images they stay. A multi-label model has its thresholds already, and gets figures alone.
        """
        whole = dataset.whole
        split = "test" if whole.test else "val" if whole.val else LEFT_OUT
        if self.multi_label:
            metrics = {"split": "test", **self.judge(dataset, "test", bank)[0]} if whole.test else {}
            return replace(self, info=replace(self.info, metrics=metrics))
        chooses = self.method.needs_validation(self.method.config)
        model, calibration = self, None
        held_out = held_out_items(dataset, chooses=chooses)
        if held_out:
            held_out, groups = apart_from(dataset, held_out, bank, self.info.data.group)
        if held_out:
            features = bank_on(bank, self.backbone).encode(dataset.root, held_out)
            said = predict_features(replace(self.predictor, temperature=1.0), features)
            if temperature or (isinstance(self.method, LeavesOut) and len(held_out) >= ENOUGH):
                scaled = temperature_of(said, features)
                model = replace(self, info=replace(self.info, temperature=scaled))
            said = said.tempered(model.info.temperature)
            calibration = calibrate(model.predictor, features, said, groups)
        if whole.split_by_seed or len(held_out) < ENOUGH:  # the training images are as good witnesses
            left = model._calibrated_left_out(dataset, bank, unlabelled)
            calibration = calibration.with_left_out(left) if calibration and left else calibration or left
        model, metrics = replace(model, calibration=calibration), {}
        judged = model.can_leave_out(dataset) if split == LEFT_OUT else not (split == "val" and chooses)
        if figures and judged:
            if calibration is None and split == LEFT_OUT:
                model = replace(model, calibration=model._calibrated_on_folds(dataset, bank, unlabelled))
            found = model.judge(dataset, split, bank, rivals=True, unlabelled=unlabelled)[0]
            metrics = {"split": split, **found}
        return replace(model, info=replace(model.info, metrics=metrics))

    def _calibrated_left_out(
        self, dataset: Dataset, bank: Bank, unlabelled: Float[Tensor, "m d"] | None
    ) -> Calibration | None:
        """By training images that the method leaves out itself; beside images without a label it does so one
        by one, so that series are left out by folds."""
        series = unlabelled is not None and isinstance(self.method, LeavesOut) and self.can_leave_out(dataset)
        if series and series_of(dataset, dataset.train, bank, self.info.data.group) is not None:
            return self._calibrated_on_folds(dataset, bank, unlabelled)
        return calibrate_left_out(self.predictor)

    def _calibrated_on_folds(
        self, dataset: Dataset, bank: Bank, unlabelled: Float[Tensor, "m d"] | None
    ) -> Calibration:
        _, features, said, groups = self._left_out(dataset, bank, unlabelled)
        return calibrate_folds(self.predictor, features, said, groups)

    def can_leave_out(self, dataset: Dataset) -> bool:
        """Whether `judge` can judge its training images: it takes no steps, and a class has two of them."""
        fitted = self.method.trains and not isinstance(self.method, Trained) and not self.multi_label
        several = len({item.label for item in dataset.train}) < len(dataset.train)
        return fitted and several and not self.method.needs_validation(self.method.config)

    def class_counts(self) -> Float[Tensor, " c"]:
        """How many training images each class has, where the method knows."""
        if self.multi_label or not isinstance(self.method, CountsClasses):
            kind = "a multi-label model" if self.multi_label else self.method.name
            raise InputError(
                f"{kind} does not tell how frequent its classes were: fit `conjugate` for class_mix"
            )
        return self.method.class_counts()

    def _ratio(self) -> Float[Tensor, " c"] | None:
        return None if self.class_mix is None else ratio(self._class_shares(), self.class_counts())

    def _class_shares(self) -> Float[Tensor, " c"]:
        assert self.class_mix is not None
        return shares(self.class_mix, self.classes, self.class_counts())

    def for_class_mix(self, mix: Mix) -> Self:
        """The model for images of which the classes come otherwise than in training (`class_mix.py`).

        It is calibrated by its training images, each left out and weighed by its class.

        Args:
            mix: "balanced", or how often each class comes, up to a factor; 0 of those that are not named.
        """
        changed = replace(self, class_mix=mix, calibration=None)
        changed._class_shares()  # refused now
        return changed.with_left_out()

    def for_costs(self, costs: Costs) -> Self:
        """The model for wrong answers that cost more or less than others, by class and answer (`costs.py`):
        the `answer` of each image is what costs least then, a class or unsure."""
        return replace(self.single_label(), costs=checked_costs(costs, self.classes, "costs"))

    def estimated_mix(self, images: Encoded) -> dict[str, float]:
        """How often each class comes among these images, most likely."""
        said = replace(self, class_mix=None).predict(images).probabilities
        found = estimated(said, self.class_counts())
        return dict(zip(self.classes, found.tolist(), strict=True))

    def with_left_out(self) -> Self:
        """Calibrated for its present classes by its training images, each left out, where its method does so.

        They vouch for images of their own classes, among all classes: not for those of an added one.
        """
        calibration = calibrate_left_out(self.predictor)
        if calibration is None:
            return self
        if self.class_mix is not None:
            mix = dict(zip(self.classes, self._class_shares().tolist(), strict=True))
            calibration = replace(calibration, mix=mix)
        return replace(self, calibration=calibration)

    def judge(
        self,
        dataset: Dataset,
        split: str,
        bank: Bank,
        *,
        rivals: bool = False,
        unlabelled: Float[Tensor, "m d"] | None = None,
    ) -> tuple[dict[str, Any], Evaluation | MultiLabelEvaluation]:
        """Its figures on a split, and what it said of each image.

        Of the split `left-out` they are those of its training images, each fifth of which is judged by a
        model fitted to the other four; an image that is its class's only one is not judged. `unlabelled`: the
        images without a label that it was fitted to beside them.

        Under `zero_shot` those of the untuned backbone, if that reads names; under `rivals`, if wanted, what
        plain classifiers make of the same training images; under `sets`, of the test split and where it is
        calibrated for its classes, how well prediction sets hold the true class. Those of a multi-label model
        are mAP, precision, recall and F1, of all labels and of each.
        """
        if self.multi_label and not dataset.multi_label:
            raise InputError(
                f"{dataset.name} is single-label, and the model multi-label: give a table with a column "
                "'labels', as in beach|dog"
            )
        whole = (dataset if self.multi_label else dataset.single_label()).whole
        items = dataset.train if split == LEFT_OUT else whole.split(split)
        if not items:
            raise InputError(f"{dataset.name} has no {split} images: choose another split")
        if self.head is not None:
            features = bank_on(bank, self.backbone).encode(dataset.root, items)
            return judge_labels(self.head, self.method, dataset, items, features)
        groups = None
        if split == LEFT_OUT:
            rows, features, said, groups = self._left_out(dataset, bank, unlabelled)
            items = tuple(items[row] for row in rows.tolist())
        else:
            features = bank_on(bank, self.backbone).encode(dataset.root, items)
            said = predict_features(self.predictor, features)
        paths = [item.path for item in items]
        answers = Evaluation.of(said.probabilities.cpu(), features.labels.cpu(), self.classes, paths)
        given, info = self.method.given, self.info
        untuned = bank_on(bank, given)
        frozen = features if self.backbone is given else untuned.encode(dataset.root, items)
        figures: dict[str, Any] = {**standard_figures(said, features), "images": len(items)}
        if groups is not None:
            figures["series"] = len(groups.unique())
        if given.reads_text:
            names = zero_shot(given, self.classes, self.method.template)
            figures["zero_shot"] = score(names, frozen)
        if split == "test" and self.calibration is not None and self.calibrated:
            quantile = self.calibration.quantile(COVERAGE)
            figures["sets"] = set_figures(said, features, self.classes, COVERAGE, quantile)
            shown = np.round(answers.confidence, DIGITS)
            figures["trade"] = [one.kept(shown, answers.right) for one in self.calibration.promises]
            if self.has_groups:
                figures["groups"] = [self._backed_off(said, features, one) for one in BACKED_OFF]
        if rivals:
            train, asked = untuned.encode(dataset.root, dataset.train), (given, self.classes)
            series = series_of(dataset, dataset.train, bank, info.data.group)
            plain = [name for name in RIVALS if name != info.method]
            figures["rivals"] = (
                leaderboard(*asked, "{}", train, info.seed, plain, series)
                if split == LEFT_OUT
                else rival_figures(*asked, train, frozen, info.seed, info.method, series)
            )
        return figures, answers

    def _backed_off(self, said: Predictive, features: Features, accuracy: float) -> dict[str, float | None]:
        """What comes of `--back-off`: answers by a class and by a group, and how many of them are right."""
        rule = self.rule(back_off=accuracy)
        found = [
            one.answer[0] if one.answer else "" for one in rule.decide(said, [False] * len(self.classes))
        ]
        true = [self.classes[label] for label in features.labels.tolist()]
        right = [holds(*pair, rule.hierarchy) for pair in zip(found, true, strict=True) if pair[0]]
        by_class = sum(name in self.classes for name in found)
        return {
            "promised": accuracy,
            "by_class": by_class / len(found),
            "by_group": (len(right) - by_class) / len(found),
            "right": sum(right) / len(right) if right else None,
        }

    def _left_out(
        self, dataset: Dataset, bank: Bank, unlabelled: Float[Tensor, "m d"] | None
    ) -> tuple[Int[Tensor, " n"], Features, Predictive, Int[Tensor, " n"] | None]:
        """Which training images can be left out, their features, what is said of them then, their series."""
        method = self.method
        features = bank_on(bank, self.backbone).encode(dataset.root, dataset.train)
        groups = series_of(dataset, dataset.train, bank, self.info.data.group)
        fit = Fit(
            type(method),
            self.backbone,
            self.classes,
            method.template,
            self.info.seed,
            method.config,
            unlabelled,
        )
        found = fit.on_folds(features, groups)
        if found is None:
            raise InputError("no class has two images, so that none can be left out: add images")
        rows, said = found
        of_rows = None if groups is None else groups[rows]
        return rows, features.subset(rows), said.tempered(self.info.temperature, self._ratio()), of_rows

    @torch.inference_mode()
    def encode(self, pixels: Sequence[Float[Tensor, "3 h w"]]) -> Encoded:
        """Preprocessed images through the frozen tower, so many at once as are fastest."""
        device = self.backbone.device
        parts = torch.stack(list(pixels)).split(default_batch(device))
        encoded = [self.backbone.image(part.to(device)) for part in parts]
        return Encoded(*(torch.cat(both) for both in zip(*encoded, strict=True)))

    def rule(
        self,
        accuracy: float | None = None,
        coverage: float | None = None,
        refusal: float | None = None,
        *,
        per_class: bool = False,
        back_off: float | None = None,
    ) -> Rule:
        """What marks an image as unsure so that the others are this accurate (or as accurate as can be
        promised, `Calibration.promised`), and fills sets that hold the
        true class this often (`per_class`: whatever class it is), judged by the validation images; and what
        marks one as none of the classes, wrongly so for this share of images of theirs. `back_off`: answers
        of this accuracy, a group where no class has it (`Calibration.back_off`)."""
        if refusal is not None and not 0 < refusal < 1:
            raise InputError(f"none_at is {refusal:g}: give a share between 0 and 1, such as 0.05")
        if self.costs is not None and back_off is not None:
            raise InputError("costs and back_off each choose the answer: give one of them")
        losses = None if self.costs is None else matrix(self.costs, self.classes)
        costs = None if losses is None else tuple(map(tuple, losses.tolist()))
        if self.calibration is None:
            if accuracy is None and coverage is None and back_off is None:
                return Rule(refusal=refusal, costs=costs)
            raise InputError(
                "the model was fitted without validation images, on which thresholds and sets rest: "
                "fit it again on data that has some"
            )
        quantile: ByDifficulty | tuple[float, ...] | None = None
        per_class = per_class or self.class_mix is not None  # holds for any mix
        if coverage is not None:
            per = self.calibration
            quantile = per.class_quantiles(self.classes, coverage) if per_class else per.quantile(coverage)
        threshold = None if accuracy is None else self.calibration.promised(accuracy)[1]
        if back_off is None:
            return Rule(threshold, quantile, refusal, costs=costs)
        nodes, hierarchy = self.calibration.back_off(back_off), tuple(self.info.hierarchy.items())
        return Rule(threshold, quantile, refusal, nodes, hierarchy)

    def predict(self, images: Encoded, rule: Rule = NO_RULE) -> Predictive:
        """What is in each image, how sure that is and, by a rule, what to do with it.

        Args:
            images: what `encode` gives.
            rule: what to mark and which sets to give, as `self.rule` makes it.
        """
        nothing = None if self.nothing is None else self.nothing.shown_by(images.global_)
        if self.head is not None:
            return replace(predict_labels(self.head, self.classes, images), nothing=nothing)
        method = self.method
        labels = method.labels_of_classes() if isinstance(method, Memory) else [0] * len(self.classes)
        said = replace(self.predictor(images.to(self.backbone.device)), nothing=nothing)
        return rule.decide(said, [label < 0 for label in labels])


def absorbed_by(method: Method) -> Absorbed | None:
    """What became of images without a label."""
    return method.absorbed if isinstance(method, TakesUnlabelled) else None
