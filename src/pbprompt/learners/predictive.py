"""What a model says of images: one type from the equations to HTTP.

    p̄ = (1/S) Σ_s p_s                                        over S sampled classifiers
    H[p̄] = (1/S) Σ_s H[p_s] + (1/S) Σ_s KL[p_s ‖ p̄]          in nats

The whole doubt, H[p̄], is the doubt that every sampled classifier shares (a blurred image, `expected_entropy`)
plus what they disagree on (an unfamiliar one, `mutual_information`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat
from typing import Any, Self, overload

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from pbprompt.vision.similarity import at_least_float32

DIGITS = 6  # probabilities are compared as they are saved and shown, so that what is read is what decided


@dataclass(frozen=True)
class Prediction:
    """One image of a `Predictive` as plain numbers, rounded as they are shown.

    Of a multi-label model `labels` are those at or above their thresholds, and `label` is the likeliest,
    given or not; the probabilities do not sum to 1.

    Example:
        >>> said = Prediction("cat", {"cat": 0.9, "dog": 0.1}, {"cat": 0.02, "dog": 0.02}, 0.33, 0.01)
        >>> said.score, said.likeliest(1)
        (0.9, [('cat', 0.9)])
    """

    label: str
    scores: dict[str, float]  # probability of every class, in the classes' order
    spreads: dict[str, float]  # standard deviation of each over the sampled classifiers
    entropy: float  # the whole doubt, in nats
    epistemic: float  # the part of it that the sampled classifiers disagree on
    unsure: bool | None = None  # the label's probability is below the threshold; None without a threshold
    prediction_set: tuple[str, ...] | None = None  # likeliest first; None without a quantile
    familiarity: float | None = None  # share of images of its classes that look less so; None: cannot be told
    unknown: bool | None = None  # it looks like none of the classes; None without a rate of refusals
    nothing: bool | None = None  # there is nothing to see in it; None: cannot be told
    answer: tuple[str, float] | None = None  # a class or group, or "" where none is sure; None if not asked
    labels: tuple[str, ...] | None = None  # likeliest first, perhaps none; None of a single-label model

    @property
    def score(self) -> float:
        """The probability of the label."""
        return self.scores[self.label]

    @property
    def spread(self) -> float:
        """The spread of the label's probability."""
        return self.spreads[self.label]

    def likeliest(self, top_k: int | None = None) -> list[tuple[str, float]]:
        """Classes with their probabilities, likeliest first."""
        return sorted(self.scores.items(), key=lambda pair: -pair[1])[:top_k]

    def to_dict(self, top_k: int | None = None) -> dict[str, Any]:
        """As it is written and sent, the same fields everywhere: all classes in order, or the likeliest."""
        shown = self.likeliest(top_k) if top_k else list(self.scores.items())
        if self.labels is not None:
            return {"labels": list(self.labels), "scores": dict(shown), "nothing": self.nothing}
        return {
            "label": self.label,
            "score": self.score,
            "spread": self.spread,
            "scores": dict(shown),
            "spreads": {name: self.spreads[name] for name, _ in shown},
            "entropy": self.entropy,
            "epistemic": self.epistemic,
            "unsure": self.unsure,
            "prediction_set": None if self.prediction_set is None else list(self.prediction_set),
            "familiarity": self.familiarity,
            "unknown": self.unknown,
            "nothing": self.nothing,
            **({"answer": self.answer[0] or None, "answer_score": self.answer[1]} if self.answer else {}),
        }


@dataclass(frozen=True, eq=False)
class Predictive:
    """What is said of n images: tensors or, of `numpy()`, arrays. As a sequence, a `Prediction` of each.

    What a rule decides is None where none was given, and `familiarity` where it cannot be told.

    Example:
        >>> said = Predictive.of_logits(torch.tensor([[[2.0, 0.0]], [[0.0, 0.0]]])).of_classes(["cat", "dog"])
        >>> said[0].label, said[0].score
        ('cat', 0.690399)
    """

    probabilities: Float[Any, "n c"]
    """p̄"""
    entropy: Float[Any, " n"]
    """H[p̄], between 0 and log C"""
    mutual_information: Float[Any, " n"]
    """(1/S) Σ_s KL[p_s ‖ p̄], between 0 and min(log C, log S)"""
    spreads: Float[Any, "n c"]
    """standard deviation over the samples of each class's probability; 0 for one sample"""
    classes: tuple[Any, ...] = ()
    familiarity: Float[Any, " n"] | None = None
    """share of images of its classes that look less so"""
    unsure: Bool[Any, " n"] | None = None
    """the likeliest class's probability is below a threshold"""
    in_set: Bool[Any, "n c"] | None = None
    """members of the prediction sets"""
    unknown: Bool[Any, " n"] | None = None
    """it looks like none of the classes"""
    nothing: Bool[Any, " n"] | None = None
    """there is nothing to see in it (`model/nothing.py`)"""
    answer: Any = None
    """array [n] of the class or group that is sure enough, and its probability (`hierarchy.py`)"""
    given: Bool[Any, "n c"] | None = None
    """of a multi-label model: at or above the label's threshold"""

    @classmethod
    def of_logits(cls, logits: Float[Tensor, "s n c"]) -> Self:
        """Of the S class distributions of every image."""
        log_p = at_least_float32(logits).log_softmax(-1)
        log_mean = log_p.logsumexp(0) - math.log(len(log_p))
        p, mean = log_p.exp(), log_mean.exp()
        return cls(
            probabilities=mean,
            entropy=-(mean * log_mean).sum(-1),
            # As a mean of divergences, not a difference of entropies: small values keep their digits.
            mutual_information=(p * (log_p - log_mean)).sum(-1).mean(0).clamp_min(0),
            spreads=(p - mean).square().mean(0).sqrt(),
        )

    @classmethod
    def of_independent(cls, probabilities: Float[Tensor, "n c"]) -> Self:
        """Of classes each by itself: an image may show several of them, or none.

        Its entropy is the sum over the classes, each a question of yes or no; nothing can disagree.
        """
        p = probabilities
        entropy = (torch.special.entr(p) + torch.special.entr(1 - p)).sum(-1)
        return cls(p, entropy, torch.zeros_like(entropy), torch.zeros_like(p))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """One after another."""
        names = [part.name for part in fields(cls) if isinstance(getattr(parts[0], part.name), Tensor)]
        joined: dict[str, Any] = {name: torch.cat([getattr(one, name) for one in parts]) for name in names}
        return replace(parts[0], **joined)

    @property
    def expected_entropy(self) -> Float[Any, " n"]:
        """(1/S) Σ_s H[p_s]"""
        return (self.entropy - self.mutual_information).clip(0)

    @property
    def spread(self) -> Float[Any, " n"]:
        """That of the likeliest class."""
        return self.spreads[range(len(self)), self.probabilities.argmax(-1)]

    @property
    def sets(self) -> list[list[Any]] | None:
        """The classes of each image's prediction set, likeliest first."""
        return None if self.in_set is None else self._listed(self.in_set)

    def of_classes(self, classes: Sequence[Any], columns: Sequence[int] | None = None) -> Self:
        """With the classes' names, or with some of the columns, which have these names."""
        named = replace(self, classes=tuple(classes))
        if columns is None:
            return named
        tables = ("probabilities", "spreads", "in_set", "given")
        chosen = {name: table[:, columns] for name in tables if (table := getattr(self, name)) is not None}
        return replace(named, **chosen)

    def tempered(self, temperature: float, ratio: Float[Tensor, " c"] | None = None) -> Self:
        """The mean class distribution at a temperature and, where classes come r times as often as the model
        takes them to, with that: softmax(ln p̄ / T + ln r), with its entropy.

        T is of the mean over the samples, not of each draw: p̄ is what decides and what T was fitted to.
        The draws' share of the doubt (mutual information / entropy) stays, and spreads follow to first order:
        dp/p(1 − p) becomes dp/(T p(1 − p)), at most √(p(1 − p)).
        """
        if temperature == 1 and ratio is None:
            return self
        tiny = torch.finfo(torch.float32).tiny
        p = self.probabilities
        often = 0.0 if ratio is None else ratio.to(p).log()
        log_p = (p.clamp_min(tiny).log() / temperature + often).log_softmax(-1)
        scaled = log_p.exp()
        entropy = torch.special.entr(scaled).sum(-1)
        most = scaled * (1 - scaled)
        spreads = self.spreads / temperature * most / (p * (1 - p)).clamp_min(tiny)
        return replace(
            self,
            probabilities=scaled,
            entropy=entropy,
            mutual_information=self.mutual_information / self.entropy.clamp_min(tiny) * entropy,
            spreads=torch.minimum(spreads, most.clamp_min(0).sqrt()),
        )

    def numpy(self) -> Self:
        """With arrays in place of tensors."""
        return self.mapped(_array)

    def __len__(self) -> int:
        return len(self.probabilities)

    @overload
    def __getitem__(self, rows: int) -> Prediction: ...
    @overload
    def __getitem__(self, rows: slice) -> Self: ...
    def __getitem__(self, rows: int | slice) -> Prediction | Self:
        if isinstance(rows, slice):
            return self.mapped(lambda values: values[rows])
        row = range(len(self))[rows]
        return next(iter(self[row : row + 1]))

    def __iter__(self) -> Iterator[Prediction]:
        """All at once, since this is most of what an answer on many classes takes."""
        none = repeat(None)
        columns = (
            _array(self.probabilities).argmax(-1).tolist(),  # the first of equals
            rounded(self.probabilities),
            rounded(self.spreads),
            self.entropy.tolist(),
            self.mutual_information.tolist(),
            *(
                none if marks is None else marks.tolist()
                for marks in (self.unsure, self.unknown, self.nothing)
            ),
            none if self.familiarity is None else rounded(self.familiarity),
            none if self.answer is None else self.answer,
            *(none if mask is None else self._listed(mask) for mask in (self.in_set, self.given)),
        )
        for (
            top, row, spreads, entropy, epistemic, unsure, unknown, nothing, familiar, answer, among, given
        ) in zip(*columns, strict=False):  # fmt: skip
            yield Prediction(
                label=self.classes[top],
                scores=dict(zip(self.classes, row, strict=True)),
                spreads=dict(zip(self.classes, spreads, strict=True)),
                entropy=round(entropy, DIGITS),
                epistemic=round(epistemic, DIGITS),
                unsure=unsure,
                prediction_set=None if among is None else tuple(among),
                familiarity=familiar,
                unknown=unknown,
                nothing=nothing,
                answer=answer,
                labels=None if given is None else tuple(given),
            )

    def _listed(self, mask: Bool[Any, "n c"]) -> list[list[Any]]:
        """The classes of each row of a mask, likeliest first."""
        order = np.argsort(-np.asarray(rounded(self.probabilities)), axis=1, kind="stable")
        held = np.take_along_axis(_array(mask), order, axis=1)
        return [
            [self.classes[place] for place in row[own].tolist()] for row, own in zip(order, held, strict=True)
        ]

    def mapped(self, change: Callable[[Any], Any]) -> Self:
        """With every array changed."""
        parts = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "classes"}
        return replace(self, **{name: change(part) for name, part in parts.items() if part is not None})


def rounded(probabilities: Float[Any, "*n"]) -> list[Any]:
    """As they are saved, shown and compared; sums a hair above 1 are 1.

    All at once, since it is most of what an answer on many classes takes. A number of 32 bits times a million
    is exact in 64, so each is what Python's `round` gives.
    """
    values = _array(probabilities).astype(np.float64)
    return np.minimum(np.rint(values * 10**DIGITS) / 10**DIGITS, 1.0).tolist()


def _array(values: Any) -> NDArray[Any]:
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
