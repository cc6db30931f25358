"""What every model is once it is fitted, and what only some can do: small protocols.

    if isinstance(method.fitted, Explains):
        method.fitted.sources(images)

Of a method that learns at once `fitted` is what its `fit` made, of all others they themselves. What adds to
what was learned (`PartialFit`, and those of `evidence/learners.py`) is asked of the method. Nothing is
declared: who has the functions can.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.learners.predictive import Predictive
from pbprompt.vision.towers.backbone import Encoded


@runtime_checkable
class Fitted(Protocol):
    """It answers, and nothing in it changes: to know more, or other classes, is to be another."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Those that it is asked about."""

    def predict(self, images: Encoded) -> Predictive:
        """Probabilities, and what is known of their doubt."""

    def for_classes(self, names: Sequence[str]) -> Self:
        """Asked about others: known ones and, where it can, names alone."""

    def tensors(self) -> dict[str, Tensor]:
        """All there is to save."""


@runtime_checkable
class PartialFit(Protocol):
    """It adds labelled images to what it was fitted on, as if it were fitted on all."""

    def learn(self, images: Encoded, labels: Int[Tensor, " n"], classes: Sequence[str] | None = None) -> None:
        """Add images; the labels are places among these classes, of which some may be new; unless given, the
        present ones."""

    def regroup(self, named: Mapping[str, str | None]) -> None:
        """As if its classes had been called otherwise, several perhaps alike; without those named None."""


class LeftOut(NamedTuple):
    """Training images, each as the model without it, and without its series, sees it."""

    probabilities: Float[Tensor, "n c"]
    labels: Int[Tensor, " n"]
    """places among the present classes"""
    groups: Int[Tensor, " n"] | None = None
    """the series of each; None: each is by itself"""
    familiarity: Float[Tensor, " n"] | None = None
    """as `Familiar` has it; None: not known"""


@runtime_checkable
class LeavesOut(Protocol):
    """It judges each training image as if that one had been left out."""

    def left_out(self) -> LeftOut | None:
        """None where nothing can be left out."""


@runtime_checkable
class CountsClasses(Protocol):
    """It knows how frequent its classes were in training, and answers accordingly."""

    def class_counts(self) -> Float[Tensor, " c"]:
        """How many training images each of the present classes has; 0 of those known by name alone."""


@runtime_checkable
class Familiar(Protocol):
    """It knows whether an image shows any of its classes."""

    def familiarity(self, images: Encoded) -> Float[Tensor, " b"] | None:
        """p-value of each image as one of the classes with images: low, where it shows none of them; None
        where too few images were left out to tell."""


@runtime_checkable
class ReadsNames(Protocol):
    """It knows what its classes' names are worth."""

    def found_by_name(self) -> float | None:
        """Of classes left out whole, the share of images that their name alone was given; None: not known."""

    def told_by_names(self) -> float | None:
        """How much of what tells the classes apart their names alone tell, 0 to 1; None: none are read."""


@runtime_checkable
class Explains(Protocol):
    """Its logits are sums over where they come from, such as names and photographs."""

    def sources(self, images: Encoded) -> dict[str, Float[Tensor, "b c"]]:
        """The summands by their names."""


@runtime_checkable
class ComparesParts(Protocol):
    """It can compare patches of images with those of its training photographs, if it `compares`."""

    @property
    def compares(self) -> bool: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    def parts(self, images: Encoded) -> tuple[Float[Tensor, "b m c"], Int[Tensor, "b m c 2"]]:
        """What each patch adds to a class's logit, and the training image and the place in it that it is most
        like; −1 where there is none."""


@runtime_checkable
class ExpectsNames(Protocol):
    """It trains for classes without images, too."""

    unseen_names: tuple[str, ...]
    """those that will be asked about; set before training"""


@runtime_checkable
class ShowsTokens(Protocol):
    """Its prompts are learned token embeddings, which can be looked at."""

    def prompt_vectors(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s k b w"]:
        """The embeddings; k: the classes, or 1 where they share them."""
