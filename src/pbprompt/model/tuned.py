"""`TunedModel`: what the command line, the classifier, the server and the exporter all hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.errors import InputError, suggest
from pbprompt.evidence.label_head import LabelHead
from pbprompt.learners.fit_options import USUAL, FitOptions
from pbprompt.learners.fitted import ComparesParts, CountsClasses, PartialFit
from pbprompt.learners.memory import KnowsClasses
from pbprompt.learners.method import Method, MethodConfig, build_method
from pbprompt.learners.predictive import Predictive
from pbprompt.model import decisions
from pbprompt.model.calibration import Calibration, calibrate_left_out, read_calibration
from pbprompt.model.card import ModelInfo, Provenance, pool_facts
from pbprompt.model.decisions import NO_RULE, Costs, Mix, Rule
from pbprompt.model.folder import Given, copy_method, describe_model, load_model, save_model
from pbprompt.model.learn import Bank, check_unlabelled, fit_labels, tune
from pbprompt.model.manifest import ModelFiles, opened
from pbprompt.model.nothing import Nothing
from pbprompt.model.predictor import (
    SAMPLES,
    Predictor,
    predict_labels,
    predictive,
    thresholds,
    zero_shot,
)
from pbprompt.model.series import possible_series, series_facts, series_of
from pbprompt.vision.features.encode import default_batch
from pbprompt.vision.images.items import DEFAULT_TEMPLATE, Dataset
from pbprompt.vision.images.names import by_any_name, called, known_as, missing_names, name_key
from pbprompt.vision.towers.backbone import Backbone, Encoded


@dataclass(frozen=True, eq=False)
class TunedModel:
    """A method prepared for its classes, what made it, how far to trust it, and how to draw its prompts.

    With a `head` it is multi-label: an image has those classes whose probability is at or above their
    thresholds, perhaps none.

    Example:
        >>> from PIL import Image
        >>> model = TunedModel.zero_shot(load_backbone("lite"), ["cat", "dog"]).with_classes(["zebra"])
        >>> images = model.encode([model.backbone.preprocess(Image.new("RGB", (64, 64)))])
        >>> answer = model.predict(images)[0]
        >>> list(answer.scores), round(sum(answer.scores.values()), 3)
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
        drawn = (self.samples, self.seed)
        if drawn not in self._drawn:
            self._drawn[drawn] = predictive(self.method, *drawn)
        return replace(
            self._drawn[drawn],
            temperature=self.info.temperature,
            independent=self.independent,
            hierarchy=tuple(self.info.hierarchy.items()),
            ratio=self.ratio,
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
        head, terms, groups = None, dict[str, float](), None
        if dataset.multi_label:
            method, head = fit_labels(dataset, bank, kind, config, options)
        else:
            groups = series_of(dataset, dataset.train, bank, options.group)
            method, terms = tune(dataset, bank, kind, config, replace(options, groups=groups))
        by = "" if dataset.multi_label else options.group
        series = series_facts(groups, by) | {
            "perhaps_in_series": possible_series(dataset, dataset.train, bank, by)
        }
        data = replace(Provenance.of(dataset), **pool_facts(method), **series)
        if head is None and isinstance(method.fitted, ComparesParts) and method.fitted.compares:
            shown = tuple(item.path for item in dataset.train)
            data = replace(data, root=str(Path(dataset.root).absolute()), photographs=shown)
        info = describe_model(
            method,
            seed=options.seed,
            shots=dataset.drawn.shots if dataset.drawn else 0,
            data=data,
            multi_label=dataset.multi_label,
            hierarchy=options.hierarchy,
        )
        nothing = None
        if method.backbone.fingerprint == bank.backbone.fingerprint:  # else others than those that answer
            photographs = bank.encode(dataset.root, dataset.train).global_
            nothing = Nothing.fit(method.backbone, photographs)
        return cls(method, info, samples=samples, terms=terms, head=head, nothing=nothing)

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
        check_unlabelled(method).begin_by_names(unlabelled.to(backbone.device))
        info = describe_model(method, seed=seed, data=Provenance(**pool_facts(method)))
        return cls(method, info, nothing=Nothing.fit(backbone, unlabelled))

    def together(self, images: Float[Tensor, "m d"]) -> Self:
        """The model having seen these images without labels too, such as those that it is to classify."""
        method = copy_method(self.single_label().method)
        check_unlabelled(method).add_unlabelled(images.to(self.backbone.device), to_classify=True)
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
        classes = *self.classes, *missing_names(self.classes, labels)
        places, device = by_any_name(classes), self.backbone.device
        rows = torch.tensor([called(places, label)[0] for label in labels], device=device)
        method.learn(images.to(device), rows, classes)
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
        data = replace(self.info.data, **pool_facts(method))
        info = replace(self.info, classes=method.classes, metrics={}, temperature=1.0, data=data)
        return replace(self, method=method, info=info, calibration=None, _drawn={}).with_left_out()

    def class_counts(self) -> Float[Tensor, " c"]:
        """How many training images each class has, where the method knows."""
        method = self.single_label().method
        if not isinstance(method.fitted, CountsClasses):
            raise InputError(
                f"{method.name} does not tell how frequent its classes were: fit `conjugate` for class_mix"
            )
        return method.fitted.class_counts()

    @property
    def ratio(self) -> Float[Tensor, " c"] | None:
        """How much more often classes come than in training; None: as often."""
        return None if self.class_mix is None else decisions.ratio(self._class_shares(), self.class_counts())

    def _class_shares(self) -> Float[Tensor, " c"]:
        assert self.class_mix is not None
        return decisions.shares(self.class_mix, self.classes, self.class_counts())

    def for_class_mix(self, mix: Mix) -> Self:
        """The model for images of which the classes come otherwise than in training (`decisions.py`).

        It is calibrated by its training images, each left out and weighed by its class.

        Args:
            mix: "balanced", or how often each class comes, up to a factor; 0 of those that are not named.
        """
        return replace(self, class_mix=mix, calibration=None).with_left_out()

    def for_costs(self, costs: Costs) -> Self:
        """The model for wrong answers that cost more or less than others, by class and answer: the answer of
        each image is what costs least then, a class or unsure."""
        return replace(self.single_label(), costs=decisions.checked_costs(costs, self.classes, "costs"))

    def estimated_mix(self, images: Encoded) -> dict[str, float]:
        """How often each class comes among these images, most likely."""
        answers = replace(self, class_mix=None).predict(images).probabilities
        found = decisions.estimated(answers, self.class_counts())
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
        """What marks images, by those that the model is calibrated by.

        Args:
            accuracy: how often images that are not unsure are right; less where that cannot be promised.
            coverage: how often sets hold the true class.
            refusal: for what share of images of its classes it may wrongly say that they are of none.
            per_class: whether sets do so for the images of every class.
            back_off: the accuracy of answers that are a group where no class has it.
        """
        if refusal is not None and not 0 < refusal < 1:
            raise InputError(f"none_at is {refusal:g}: give a share between 0 and 1, such as 0.05")
        if self.costs is not None and back_off is not None:
            raise InputError("costs and back_off each choose the answer: give one of them")
        costs = None if self.costs is None else decisions.losses(self.costs, self.classes)
        rule = Rule(refusal=refusal, costs=costs)
        if accuracy is None and coverage is None and back_off is None:
            return rule
        calibration = self.calibration
        if calibration is None:
            raise InputError(
                "the model was fitted without validation images, and without any left out, on which "
                "thresholds and sets rest: fit it again, on two photographs of each class or more, or on "
                "data with a val/ folder"
            )
        if accuracy is not None:
            rule = replace(rule, threshold=calibration.promised(accuracy).threshold)
        if coverage is not None and (per_class or self.class_mix is not None):  # holds for any mix
            rule = replace(rule, quantile=calibration.class_quantiles(self.classes, coverage))
        elif coverage is not None:
            rule = replace(rule, quantile=calibration.quantile(coverage))
        if back_off is not None:
            groups = tuple(self.info.hierarchy.items())
            rule = replace(rule, back_off=calibration.back_off(back_off), hierarchy=groups)
        return rule

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
        labels = method.labels_of_classes() if isinstance(method, KnowsClasses) else [0] * len(self.classes)
        answers = replace(self.predictor(images.to(self.backbone.device)), nothing=nothing)
        return rule.decide(answers, [label < 0 for label in labels])
