"""`PromptClassifier`: tune, predict, look into, keep and share a classifier, with scikit-learn's verbs."""

# ruff: noqa: N803 - X is scikit-learn's name
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from pbprompt.apps.classifier import saved, tuning
from pbprompt.apps.classifier.estimator import Estimator
from pbprompt.apps.classifier.inputs import (
    PATHS,
    ClassNames,
    as_image,
    as_pictures,
    encode_inputs,
    names_of,
    read_labels,
)
from pbprompt.apps.classifier.tuning import ClassWeight, item_weights
from pbprompt.errors import InputError
from pbprompt.files import read_records
from pbprompt.learners.fit_options import FitOptions, OnLog
from pbprompt.learners.fitted import PartialFit
from pbprompt.learners.method import Method
from pbprompt.learners.predictive import Predictive
from pbprompt.model.calibration import Calibration
from pbprompt.model.decisions import ANY, ESTIMATE, TRAINED, UNSURE
from pbprompt.model.evaluate import calibrate_and_evaluate, check_temperature
from pbprompt.model.fitting import usual_shares
from pbprompt.model.folder import read_info
from pbprompt.model.manifest import check_free, opened
from pbprompt.model.predictor import SAMPLES
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.loop.checkpoint import LOG
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.names import check_distinct, read_name
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Backbone, Encoded

if TYPE_CHECKING:
    from pbprompt.apps.audit.audit import Audit
    from pbprompt.apps.explain.heat_maps import HeatMaps
    from pbprompt.apps.labelling.next_images import By, Suggestion


@dataclass(eq=False, repr=False)  # scikit-learn takes the parameters from the signature
class PromptClassifier(Estimator):
    """An image classifier tuned on a few labelled images, which says what it does not know.

    `fit(X, y)` takes images or features (`pbprompt.apps.classifier.inputs` lists what X may be) and labels;
    `fit(folder)` takes what `pbprompt fit` takes.

    Args:
        method: what `pbprompt research methods` lists, or one of your own.
        preset: of the method's presets.
        variant: of the method's variants.
        settings: changes the method's own, such as {"epochs": 20}; a search sets them as `settings__epochs`.
        backbone: what `load_backbone` takes, or gives; a list of several, such as ["lite", "ViT-B/16"], for
            methods that see by several (docs/backbones.md).
        activation: "quick_gelu" or "gelu", where a backbone's file does not tell.
        device: "auto" is a GPU where there is one.
        template: a sentence with {} for the class.
        class_names: what the text tower reads in place of the labels: {label: name}, or a list for 0, 1, ….
        shots: images of each class to draw at most; 0: all are used.
        samples: prompts of each class to predict with.
        calibrate: scale the probabilities by a temperature fitted to validation images.
        hierarchy: what each label, and each group of them, belongs to: {label: group}, for `back_off`; of a
            folder or table the string "nested" takes its folders within folders.
        class_weight: how much images of a class count: {label: weight}, or "balanced" for all classes alike.
        random_state: seeds the draw, the start values and the training.
        verbose: 1 shows bars for what takes long.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(8, load_backbone("lite").embed_dim)).astype(np.float32)
        >>> classifier = PromptClassifier().fit(X, ["cat", "dog"] * 4)  # or paths, images, a folder
        >>> classifier.add_classes(["zebra"]).predict_proba(X).shape
        (8, 3)

    After `fit`: `classes_` (sorted), `method_` (the tuned method), `calibration_` (None without validation
    images), `history_` (the records of the training's log), and `n_features_in_` where X was features.
    """

    method: str = "conjugate"
    _: KW_ONLY
    preset: str = "default"
    variant: str = ""
    settings: Mapping[str, Any] | None = None
    backbone: str | Backbone | Sequence[str | Backbone] = "lite"
    activation: str | None = None
    device: str = "auto"
    template: str | None = None
    class_names: ClassNames = None
    shots: int = 0
    samples: int = SAMPLES
    calibrate: bool = False
    hierarchy: Mapping[Any, str] | str | None = None
    class_weight: ClassWeight = None
    random_state: int = 1
    verbose: int = 0

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        eval_set: tuple[Any, Any] | None = None,
        on_log: OnLog | None = None,
        unlabelled: Any = None,
    ) -> Self:
        """Tune on images and their labels, or on a folder (a table, a benchmark's name) without y.

        Validation images, and images that were not drawn, are not trained on: they make `calibration_`.
        Without any, a method that leaves its images out in turn makes it of these. A folder has its own
        validation images; for images and labels they are `eval_set`, another pair (X, y). `sample_weight`
        says how much each image counts; `groups`, as scikit-learn has it, which series each is of, that
        counts as one (unless told, near-certain twins are). `on_log` is called with each record of the
        training's log, a dict with `step`. `unlabelled` are images without a label, to learn from too; they
        may also stand in X with the label None or, beside two whole numbers or more, −1.
        """
        self._check_parameters()
        config = tuning.method_config(str(self.method), self.preset, self.variant, self.settings)
        kind, backbone = find_method(str(self.method)), self._towers()
        seed, progress = int(self.random_state), bool(self.verbose)
        own = {
            "groups": groups,
            "eval_set": eval_set,
            "sample_weight": sample_weight,
            "class_names": self.class_names,
        }
        as_dataset = isinstance(X, PATHS)
        if not as_dataset:
            training = tuning.own_images(X, y, backbone, template=self.template, progress=progress, **own)
        elif y is None and all(given is None for given in own.values()):
            shares = usual_shares(kind, config, few=bool(self.shots))
            nested = self.hierarchy == tuning.NESTED
            whole = open_dataset(X, template=self.template, seed=seed, held_out=shares, nested=nested)
            whole = whole.single_label()
            if whole.skipped:
                warnings.warn(f"{X}: {whole.describe_skipped()}", stacklevel=2)
            features = FeatureCache(backbone, progress=progress)
            training = tuning.Training(whole, features, np.array(whole.classes))
        else:
            raise InputError(
                f"{X}: a dataset has its own labels and images: leave y, class_names, sample_weight, groups "
                "and eval_set out"
            )
        dataset, bank, labels, weights, others = training
        if dataset.descriptions and getattr(config, "descriptions", None) == ():
            config = replace(config, descriptions=dataset.descriptions)  # type: ignore[call-arg]
        if unlabelled is not None:
            more = encode_inputs(unlabelled, backbone, progress=progress).global_
            others = more if others is None else torch.cat([more, others])
        if self.shots:
            dataset = draw(dataset, int(self.shots), seed).apply(dataset)
        if self.calibrate:
            check_temperature(dataset, kind)
        history: list[dict[str, float]] = []

        def log(record: dict[str, float]) -> None:
            history.append(record)
            if on_log is not None:
                on_log(record)

        model = TunedModel.fit(
            dataset,
            bank,
            kind,
            config,
            FitOptions(
                seed=seed,
                progress=progress,
                weights=item_weights(dataset.train, labels.tolist(), self.class_weight, weights),
                on_log=log,
                unlabelled=others,
                hierarchy=tuning.hierarchy_of(dataset, labels.tolist(), self.hierarchy),
            ),
            samples=int(self.samples),
        )
        model = calibrate_and_evaluate(
            model, dataset, bank, figures=eval_set is not None, temperature=bool(self.calibrate)
        )
        if figures := model.info.metrics:
            shown = {f"validation_{name}": figures[name] for name in ("accuracy", "nll", "ece")}
            log({"step": history[-1]["step"] if history else 0, **shown})
        self.__dict__.pop("n_features_in_", None)  # of an earlier fit
        if not as_dataset and as_pictures(X) is None:
            self.n_features_in_ = backbone.embed_dim
        self.history_ = history
        return self._take(model, labels)

    def _check_parameters(self) -> None:
        """Those that nothing later checks."""
        for name, least in (("samples", 1), ("shots", 0), ("random_state", -np.inf)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or int(value) < least:
                hint = "" if least < 0 else f" of {least} or more"
                raise InputError(f"{name} is {value!r}: give a whole number{hint}")

    def _towers(self) -> Backbone:
        if isinstance(self.backbone, Backbone):
            return self.backbone
        given = self.backbone if isinstance(self.backbone, list | tuple) else [self.backbone]
        named = tuple(one if isinstance(one, Backbone) else str(one) for one in given)
        return tuning.shared_backbone(named, self.activation, str(self.device))

    def _take(self, model: TunedModel, labels: NDArray[Any]) -> Self:
        """Become the classifier of a model, whose classes have these labels."""
        self._model, self._labels = model, labels
        # classes_ is sorted, as scikit-learn's metrics expect; the model has its classes in its own order.
        self.classes_, self._columns = np.unique(labels, return_index=True)
        return self

    @property
    def model_(self) -> TunedModel:
        """The tuned model behind the classifier."""
        self._check_is_fitted()
        return self._model

    @property
    def method_(self) -> Method:
        """The tuned method."""
        return self.model_.method

    @property
    def calibration_(self) -> Calibration | None:
        """What the answers on images were that it was not tuned on; None where there are none."""
        return self.model_.calibration

    def _names(self) -> dict[Any, str]:
        """What the model calls the class of each label."""
        return dict(zip(self._labels.tolist(), self.model_.classes, strict=True))

    def _encoded(self, X: Any) -> Encoded:
        return encode_inputs(X, self.model_.backbone, progress=bool(self.verbose))

    def predict_uncertainty(
        self,
        X: Any,
        *,
        reject_at: float | None = None,
        coverage: float | None = None,
        none_at: float | None = None,
        per_class: bool = False,
        class_mix: str | Mapping[Any, float] | None = None,
        back_off: float | None = None,
        costs: Mapping[tuple[Any, Any], float] | None = None,
    ) -> Predictive:
        """Probabilities of every class, and how unsure they are and why, for each image, as arrays.

        `reject_at`, `coverage`, `none_at`, `per_class` and `back_off` ask for what they promise in
        `pbprompt predict`;
        `calibration_` says what it rests on. `class_mix`, where classes come otherwise than in training:
        "balanced", "estimate" (from these images), or how often each label comes. `costs`, by class and
        answer: what wrong answers cost, where not 1; "*" is any, and the answer "unsure" may have a cost.
        """
        model, images, names = self.model_, self._encoded(X), self._names()
        if class_mix == ESTIMATE:
            class_mix = model.estimated_mix(images)
        elif isinstance(class_mix, Mapping):
            if unknown := [label for label in class_mix if label not in names]:
                raise InputError(f"class_mix: {unknown[0]!r} is none of the classes")
            class_mix = {names[label]: often for label, often in class_mix.items()}
        if class_mix is not None and class_mix != TRAINED:
            model = model.for_class_mix(class_mix)
        if costs is not None:
            named = {**names, ANY: ANY, UNSURE: UNSURE}
            model = model.for_costs(
                {(named.get(c, str(c)), named.get(k, str(k))): cost for (c, k), cost in costs.items()}
            )
        rule = model.rule(reject_at, coverage, none_at, per_class=per_class, back_off=back_off)
        found = model.predict(images, rule)
        if found.answer is not None:  # a class by its label
            labels = {name: label for label, name in names.items()}
            for row, (name, score) in enumerate(found.answer):
                found.answer[row] = (labels.get(name, name), score)
        return found.of_classes(self.classes_.tolist(), self._columns.tolist()).numpy()

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Probabilities [n, c], a column for each of `classes_`."""
        return self.predict_uncertainty(X).probabilities

    def encode(self, X: Any) -> NDArray[np.float32]:
        """Features [n, 1 + m, d] of images (of several backbones [n, d]), to give as X again and again: a
        search then encodes them once."""
        images = encode_inputs(X, self._towers(), progress=bool(self.verbose))
        if not images.patches.shape[1]:
            return images.global_.numpy()
        return torch.cat([images.global_[:, None], images.patches.float()], dim=1).numpy()

    def add_classes(self, names: Sequence[str] | Mapping[Any, str]) -> Self:
        """Predict these classes too, from their names alone; where labels are no strings: {label: name}.

        `classes_` stays sorted, so the columns of `predict_proba` move.
        """
        model = self.model_
        if isinstance(names, str) or not len(names):
            raise InputError(f"names is {names!r}: give a list of class names, such as ['zebra']")
        new = np.array(list(names))  # of a mapping, its labels
        labels, read = self._with_new(new, names if isinstance(names, Mapping) else None, "names")
        if len(np.unique(labels)) < len(labels):
            raise InputError(f"labels {new.tolist()}: one is in classes_ already: give others")
        return self._take(model.with_classes(read[len(model.classes) :]), labels)

    def _with_new(
        self, new: NDArray[Any], class_names: ClassNames, what: str
    ) -> tuple[NDArray[Any], tuple[str, ...]]:
        """All labels and their names; new labels must be of the former ones' kind."""
        old = self._labels
        if len(new) and new.dtype.kind != old.dtype.kind:
            kind = type(old.tolist()[0]).__name__
            raise InputError(f"the labels {new.tolist()} are no {kind} as y's are: give {{label: name}}")
        labels = np.concatenate([old, new])
        names = (*self._model.classes, *names_of(new.tolist(), class_names))
        check_distinct([*map(str, labels)], [*map(read_name, names)], what)
        return labels, names

    @property
    def partial_fit(self) -> Callable[..., Self]:
        """`partial_fit(X, y)`: learn these images too, without the former ones, as if fitted on all of them.

        Labels may be new, or of classes that were added by name; the first call is a fit. There is none for
        methods that cannot learn on, as scikit-learn expects.
        """
        if not issubclass(find_method(str(self.method)), PartialFit):
            raise AttributeError(f"{self.method} cannot learn on: fit it again, or use 'conjugate'")
        return self._partial_fit

    def _partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """`classes`, which scikit-learn's callers give at first, may come as they come."""
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        images = self._encoded(X)
        given = read_labels(y, len(images.global_), fewest=1)
        labels, names = self._with_new(np.setdiff1d(given, self._labels), self.class_names, "y")
        named = dict(zip(labels.tolist(), names, strict=True))
        return self._take(self._model.partial_fit(images, [named[label] for label in given.tolist()]), labels)

    def next_images(self, X: Any, n: int, by: "By" = "diverse", seed: int = 0) -> "list[Suggestion]":
        """Which `n` of the unlabelled images X to label next, in order: `row` is the place in X.

        `by` is "diverse", "margin", "epistemic" or "random" (docs/label-next.md).
        """
        from pbprompt.apps.labelling.next_images import next_images

        images = self._encoded(X)
        return next_images(images.global_, self.model_.predict(images), n, by, seed)

    def look(self, data: str | Path) -> "Audit":
        """What is in a folder, table or benchmark, as this classifier's backbone sees it: duplicates, likely
        label errors, overlapping classes. It need not be fitted (docs/look.md)."""
        from pbprompt.apps.audit.audit import look

        return look(data, backbone=self._towers(), progress=bool(self.verbose))

    def explain(self, image: Any, names: Sequence[Any] | None = None, samples: int = 4) -> "HeatMaps":
        """Where in an image (a path, PIL image or array) the prompts of some classes look.

        `names` are labels; None: the three likeliest.
        """
        from pbprompt.apps.explain.heat_maps import heat_maps

        known = self._names()
        chosen = None if names is None else [known.get(label, label) for label in np.asarray(names).tolist()]
        return heat_maps(self.model_.predictor, as_image(image), chosen, samples)

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a model folder, which `from_pretrained` and the command line (`--model`) read.

        A folder that holds anything is refused; with `overwrite` a model that is there is replaced.
        """
        path, model = Path(folder).expanduser(), self.model_
        if not overwrite:
            try:
                check_free(path)
            except InputError as error:
                raise InputError(f"{error}, or replace a model by overwrite=True") from None
        saved.write_folder(path, model, self._labels, str(folder), self.class_weight)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        backbone: str | Backbone | Sequence[str] | None = None,
        device: str = "auto",
        token: str | None = None,
    ) -> Self:
        """A saved classifier: a folder of `save_pretrained` or `pbprompt fit`, or a hub id such as ORG/NAME.

        `backbone`: where its weights are, if not where they were; of several a list.
        """
        files = opened(saved.find_folder(str(source), token))
        info = read_info(files)
        names = [one["name"] for one in info.towers]
        made = cls(
            info.method,
            settings=info.config,
            backbone=backbone or (names if names[1:] else names[0]),
            activation=info.activation,
            device=device,
            template=info.template,
            shots=info.shots,
            calibrate=info.temperature != 1,
            hierarchy=dict(info.hierarchy) or None,
            random_state=info.seed,
        )
        model, labels, made.class_weight = saved.read_folder(files, made._towers())
        made.samples = model.samples
        made.history_ = [row for row in read_records(files.folder / LOG) if isinstance(row, dict)]
        if labels != (names := [*map(read_name, info.classes)]):
            made.class_names = dict(zip(labels, names, strict=True))
        return made._take(model, np.array(labels))

    def push_to_hub(
        self, repo_id: str, *, private: bool = False, token: str | None = None, message: str = "Add the model"
    ) -> str:
        """Save into a repository of the Hugging Face hub, made where there is none; returns its address."""
        name = repo_id.split("/")[-1]
        with TemporaryDirectory() as folder:
            saved.write_folder(Path(folder), self.model_, self._labels, name, self.class_weight)
            return saved.upload(folder, repo_id, private=private, token=token, message=message)

    def __getstate__(self) -> dict[str, Any]:
        """A pickle carries the model folder's files; the towers are loaded again."""
        state = self.__dict__.copy()
        if self.__sklearn_is_fitted__():
            state["_model"] = saved.in_memory(self._model, self._labels)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.__sklearn_is_fitted__():
            self._take(saved.read_folder(state["_model"], self._towers())[0], self._labels)
