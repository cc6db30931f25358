"""`EvidenceClassifier`: the default model from features alone, without a backbone, a file or an image."""

# ruff: noqa: N803 - X and Z are scikit-learn's and the model's names
import json
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pbprompt.apps.classifier.estimator import Estimator
from pbprompt.apps.classifier.inputs import feature_table, read_labels, read_sample_weight, unlabelled_rows
from pbprompt.errors import InputError, first_line
from pbprompt.evidence.evidence import Evidence, Kept, Statistics, joined, kept_rows, unit_features
from pbprompt.evidence.fitted import FittedEvidence, fit_evidence
from pbprompt.evidence.shown import Shown, Sight
from pbprompt.files import write_bytes
from pbprompt.model.metrics.conformal import by_difficulty
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.loading.files import check_finite

FORMAT = "pbprompt-embeddings-1"


class EvidenceClassifier(Estimator):
    """A classifier of embeddings: names as prior, labelled examples as evidence, in closed form.

    Args:
        text_features: text embeddings of the class names by the same model: an array whose row c is of
            `classes_[c]` (the sorted labels), or a mapping from a label to its embedding. Rows of NaN, labels
            that are missing and None are names without a text. For several models a list of these, and
            then X is a list of arrays.
        logit_scale: exp of the model's logit scale, 100 for CLIP's; for several models one or a list.

    Attributes:
        classes_: the labels, sorted.
        left_out_: probabilities [n, c] of each row of X held out; NaN where it could not be (unlabelled, the
            only one of its class or its class's only series, or beyond the 4,096 that stand for all).
        weights_: how much each expert counts, by name; of several models "1/name" is of the second.

    Example:
        >>> import numpy as np
        >>> from pbprompt import EvidenceClassifier
        >>> chance = np.random.default_rng(0)
        >>> centres = chance.normal(size=(3, 16))
        >>> y = np.repeat(["cat", "dog", "owl"], 5)
        >>> X = centres.repeat(5, axis=0) + 0.3 * chance.normal(size=(15, 16))
        >>> classifier = EvidenceClassifier(text_features=centres).fit(X, y)
        >>> [str(label) for label in classifier.predict(centres)]
        ['cat', 'dog', 'owl']
    """

    _loader = "load"
    classes_: NDArray[Any]
    n_features_in_: int
    left_out_: NDArray[np.float64]
    weights_: dict[str, float]
    _widths: list[int]  # columns of each model
    _shown: Shown  # of all models' features, side by side
    _pool: Tensor  # the same of rows without a label
    _fitted: FittedEvidence
    _held_out: tuple[NDArray[Any], NDArray[Any]] | None  # probabilities: highest, true one's

    def __init__(self, text_features: Any = None, logit_scale: float | Sequence[float] = 100.0) -> None:
        self.text_features = text_features
        self.logit_scale = logit_scale

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Self:
        """From embeddings [n, d] and their labels; −1 among other numbers, or None, is an unlabelled one.

        Args:
            X: an array, or a list of arrays with the same rows, one for each model.
            y: labels, strings or whole numbers. With None for all, `text_features` is a mapping.
            sample_weight: how often each row counts; 0: not at all.
            groups: which series each row is of, such as a burst or a video: it is held out whole.
        """
        for name in ("_shown", "_pool", "classes_", "n_features_in_", "left_out_"):
            self.__dict__.pop(name, None)
        return self._add(X, y, sample_weight, groups, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn these rows too, as if fitted on all of them; new labels make new classes.

        `classes`: labels that may come later, known by their names until then.
        """
        self.__dict__.pop("left_out_", None)
        return self._add(X, y, sample_weight, None, classes)

    def predict_proba(self, Z: Any) -> NDArray[np.float64]:
        """Probabilities [n, c], a column for each of `classes_`."""
        self._check_is_fitted()
        return cast(NDArray[np.float64], self._fitted.predict(self._encoded(Z)).probabilities.numpy())

    def familiarity(self, Z: Any) -> NDArray[np.float64] | None:
        """Of each row the share of examples that look no more familiar, held out: low is like none of them.

        None with fewer than 19 examples whose class has another: too few for a share of 0.05.
        """
        self._check_is_fitted()
        found = self._fitted.familiarity(self._encoded(Z))
        return None if found is None else found.double().numpy()

    def predict_sets(self, Z: Any, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Whether each class is in the set [n, c] that holds the true one with a probability of `coverage`.

        By the examples held out, one of each series: where these are too few for that, every class is in
        every set.
        """
        if not (isinstance(coverage, Real) and 0 < coverage < 1):
            raise InputError(f"coverage is {coverage!r}: give a share between 0 and 1, such as 0.9")
        probabilities = self.predict_proba(Z)
        if self._held_out is None:
            return np.ones_like(probabilities, dtype=bool)
        quantile = by_difficulty(*self._held_out, float(coverage))
        return 1 - probabilities <= quantile(probabilities.max(1))[:, None] + 1e-12

    def save(self, path: str | Path) -> None:
        """One file of safetensors: sums, the examples that are kept, and texts; `load` reads it."""
        self._check_is_fitted()
        place = torch.from_numpy(np.searchsorted(self.classes_, np.array(self._shown.names)))
        sums, kept = self._shown.evidence.relabelled(place, len(place))
        tensors = {**sums._asdict(), "images": kept.images, "labels": kept.labels, "weights": kept.weights}
        if self._shown.groups is not None:
            tensors["groups"] = self._shown.groups
        texts = {f"text/{place}": text for place, text in enumerate(self._texts())}
        about = {
            "format": FORMAT,
            "classes": json.dumps(self.classes_.tolist()),
            "scales": json.dumps(self._scales()),
            "widths": json.dumps(self._widths),
        }
        every = {name: part.contiguous() for name, part in {**tensors, **texts, "pool": self._pool}.items()}
        write_bytes(path, save(every, about))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """What `save` wrote; `left_out_` is not in it."""
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: {error}: give a file that EvidenceClassifier.save wrote") from None
        if about.get("format") != FORMAT:
            raise InputError(f"{path} is no file of an EvidenceClassifier: give one that its save wrote")
        check_finite(Path(path), tensors)
        try:
            return cls._of(tensors, {key: json.loads(about[key]) for key in ("classes", "scales", "widths")})
        except (KeyError, ValueError, TypeError, IndexError, RuntimeError, RecursionError) as error:
            raise InputError(f"{path}: damaged ({first_line(error)}): save it again") from None

    @classmethod
    def _of(cls, tensors: dict[str, Tensor], about: dict[str, Any]) -> Self:
        """What a file's tensors and facts make."""
        widths, scales = about["widths"], about["scales"]
        texts = [tensors[f"text/{place}"].numpy() for place in range(len(widths))]
        several = len(widths) > 1
        made = cls(texts if several else texts[0], scales if several else scales[0])
        made.classes_, made._widths, made._pool = np.array(about["classes"]), widths, tensors["pool"]
        made.n_features_in_ = sum(widths)
        sums = Statistics(tensors["counts"], tensors["sums"], tensors["moment"])
        kept = Kept.of(tensors["images"], tensors["labels"], tensors["weights"])
        made._shown = Shown(tuple(about["classes"]), Evidence(sums, kept), tensors.get("groups"))
        made._refit()
        return made

    # features and texts

    def _joined(self, X: Any) -> Float[Tensor, "n d"]:
        """The features of all models side by side, each of length 1."""
        listed = isinstance(X, list | tuple) and all(np.asarray(part).ndim == 2 for part in X)
        if isinstance(self.text_features, list | tuple) and not listed:
            raise InputError("text_features is a list, one for each model: give X as a list of arrays too")
        tables = [feature_table(part) for part in (X if listed else [X])]
        if any(table.ndim != 2 for table in tables):
            raise InputError(f"X has the shape {tables[0].shape}: give embeddings [n, d]")
        if len({len(table) for table in tables}) > 1:
            raise InputError(f"X has {[len(t) for t in tables]} rows: give the same rows of each model")
        widths = [table.shape[1] for table in tables]
        if hasattr(self, "n_features_in_") and widths != self._widths:
            raise InputError(
                f"X has {sum(widths)} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                f"features as input: give embeddings of {self._widths} columns"
            )
        self._widths, self.n_features_in_ = widths, sum(widths)
        return unit_features(torch.from_numpy(np.concatenate(tables, axis=1)), widths)

    def _encoded(self, X: Any) -> Encoded:
        images = self._joined(X)
        return Encoded(images, images[:, None])

    def _scales(self) -> list[float]:
        given = self.logit_scale
        scales = list(given) if isinstance(given, Sequence | np.ndarray) else [given] * len(self._widths)
        if len(scales) != len(self._widths) or not all(
            isinstance(scale, Real) and 0 < scale < np.inf for scale in scales
        ):
            raise InputError(f"logit_scale is {given!r}: give a number above 0, or one for each model")
        return [float(scale) for scale in scales]

    def _texts(self) -> list[Float[Tensor, "..."]]:
        """Of all classes, of length 1; of those without a text the others' mean, which tells nothing."""
        several = isinstance(self.text_features, list | tuple)
        given = self.text_features if several else [self.text_features] * len(self._widths)
        if len(given) != len(self._widths):
            raise InputError(f"text_features has {len(given)} parts, and X {len(self._widths)}: one each")
        return [self._text(each, width) for each, width in zip(given, self._widths, strict=True)]

    def _text(self, given: Any, width: int) -> Float[Tensor, "k d"]:
        rows = np.full((len(self.classes_), width), np.nan)
        if isinstance(given, Mapping):
            own = [(at, given[label]) for at, label in enumerate(self.classes_.tolist()) if label in given]
            if not own:
                raise InputError(
                    f"text_features has none of the labels: its keys are as {[*given][:1]}, and y has "
                    f"{self.classes_.tolist()[:1]}: give each label's embedding under the label itself"
                )
            for at, row in own:
                vector = _numbers(row, f"text_features[{self.classes_.tolist()[at]!r}]").reshape(-1)
                rows[at] = vector if vector.size == width else np.inf
        elif given is not None:
            table = _numbers(given, "text_features")
            if table.shape != rows.shape:
                raise InputError(
                    f"text_features has the shape {table.shape}: give [{len(rows)}, {width}], a row for "
                    "each of classes_ (the sorted labels), or a mapping from label to embedding"
                )
            rows = table
        if np.isinf(rows).any():
            raise InputError(f"text_features holds infinity or rows that are not {width} wide: mend them")
        known = torch.from_numpy(~np.isnan(rows).any(1) & (np.abs(np.nan_to_num(rows)).sum(1) > 0))
        texts = unit(torch.nan_to_num(torch.from_numpy(rows)))
        texts[~known] = texts[known].mean(0) if known.any() else 0.0
        return texts.float()

    # fitting

    def _add(self, X: Any, y: Any, sample_weight: Any, groups: Any, classes: Any) -> Self:
        x = self._joined(X)
        labels, labelled = self._labels(y, len(x))
        weights = read_sample_weight(sample_weight, len(x))
        weights = np.ones(len(x)) if weights is None else weights
        counted = labelled & (weights > 0)
        if labelled.any() and not counted.any():
            raise InputError("sample_weight is zero for every labelled row: give one a weight above 0")
        series = None if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1].ravel()
        if series is not None and series.shape != (len(x),):
            raise InputError(f"groups has {len(series)} rows, and X {len(x)}: give one for each")
        old = getattr(self, "classes_", np.array([], dtype=labels.dtype))
        names: list[Any] = []
        if not counted.any() and not len(old):
            if not isinstance(self.text_features, Mapping):
                raise InputError("y has no label: give text_features as a mapping from label to embedding")
            names = list(self.text_features)
        known = [old, labels[counted], names, [] if classes is None else classes]
        self.classes_ = np.unique(np.concatenate([each for each in known if len(each)] or [[]]))
        if len(self.classes_) < 2:
            raise InputError(f"y has {len(self.classes_)} class: a classifier needs at least two")
        own = torch.from_numpy(np.searchsorted(self.classes_, labels[counted]))
        first = not hasattr(self, "_shown")
        shown = Shown.nothing(x.shape[1]) if first else self._shown
        often, few = torch.from_numpy(weights[counted]), x[counted]
        own_series = None if series is None else torch.from_numpy(series[counted])
        self._shown = shown.with_more(few, own, self.classes_.tolist(), often, own_series)
        self._pool = x[~labelled] if first else torch.cat([self._pool, x[~labelled]])
        self._refit()
        if first:
            held_out = self._fitted.held_out_answers()
            held_out[~self._fitted.held_out.several] = torch.nan
            self.left_out_ = np.full((len(x), len(self.classes_)), np.nan)
            rows = np.flatnonzero(counted)[kept_rows(few, own)[self._shown.judged]]
            self.left_out_[rows] = held_out.numpy()
        return self

    def _labels(self, y: Any, rows: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """As numbers or strings, and which rows have one."""
        if y is None and not isinstance(self.text_features, Mapping):
            raise InputError(
                "requires y to be passed, but the target y is None: give labels, or text_features as a "
                "mapping from label to embedding to fit by names and unlabelled rows alone"
            )
        has = np.zeros(rows, dtype=bool) if y is None else ~unlabelled_rows(y, others=0)
        if len(has) != rows or has.all():
            return read_labels(y, rows, fewest=1), np.ones(rows, dtype=bool)
        if not has.any():
            return np.zeros(rows, dtype=int), has
        known = [label for label, there in zip(y, has, strict=True) if there]
        some = read_labels(known, len(known), fewest=1)
        labels = np.full(rows, some[0], dtype=some.dtype)
        labels[has] = some
        return labels, has

    def _refit(self) -> None:
        """The model, and what examples held out say of it, from what was learned."""
        labels = self.classes_.tolist()
        read = partial(_rows, joined(self._texts()), {label: at for at, label in enumerate(labels)})
        sight = Sight(tuple(self._widths), tuple(self._scales()), read)
        self._fitted = fit_evidence(self._shown, sight, labels, self._pool)
        views = enumerate(self._fitted.posterior.views)
        names = [f"{at}/{name}" if at else name for at, view in views for name in view.experts]
        self.weights_ = dict(zip(names, self._fitted.posterior.weights.best.tolist(), strict=True))
        self._held_out = None
        if (found := self._fitted.left_out()) is not None:
            (probabilities, own), series = (part.numpy() for part in found[:2]), found.groups
            one = np.random.default_rng(0).permutation(len(own))  # of each series
            one = one if series is None else one[np.unique(series.numpy()[one], return_index=True)[1]]
            self._held_out = probabilities[one].max(1), probabilities[one, own[one]]


def _rows(
    texts: Float[Tensor, "c d"], places: Mapping[Any, int], labels: Sequence[Any]
) -> Float[Tensor, "m d"]:
    return texts[[places[label] for label in labels]]


def _numbers(given: Any, what: str) -> NDArray[np.float64]:
    try:
        return np.asarray(given, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} holds no numbers ({first_line(error)}): give numbers") from None
