"""What only some methods can do: an ability is a mixin, whose hooks the method implements.

    class MyMethod(Memory, LearnsOn, LeavesOut):  # has two of them
        def learn(self, images, labels): ...
        def left_out(self): ...

    if can(method, LearnsOn):  # how everyone asks, of a method or of its class
        method.learn(images, labels)

A method whose settings take an ability away names it in `without`, in its `__init__`.
"""

from collections.abc import Mapping, Sequence
from typing import TypeGuard, TypeVar, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.evidence import Evidence
from pbprompt.evidence.label_head import LabelHead
from pbprompt.evidence.unlabelled import Absorbed
from pbprompt.learners.method import Method
from pbprompt.vision.towers.backbone import Encoded

Ability = TypeVar("Ability", bound=Method)


@overload
def can(method: type[Method], ability: type[Ability]) -> TypeGuard[type[Ability]]: ...
@overload
def can(method: Method, ability: type[Ability]) -> TypeGuard[Ability]: ...
def can(method: Method | type[Method], ability: type[Method]) -> bool:
    """Whether a method has an ability with its settings; of a class, whether it has it with some settings."""
    if isinstance(method, type):
        return issubclass(method, ability)
    return isinstance(method, ability) and ability not in method.without


class LearnsOn(Method):
    """It adds labelled images to what it was fitted on, as if it were fitted on all."""

    def expect(self, classes: Sequence[str], template: str) -> None:
        """`prepare` for classes of which `learn` gets the first images next."""
        self.prepare(classes, template)

    def learn(self, images: Encoded, labels: Int[Tensor, " n"]) -> None:
        """Add images; the labels are places among the present classes."""
        raise NotImplementedError

    def regroup(self, named: Mapping[str, str | None]) -> None:
        """As if its classes had been called otherwise, several perhaps alike; without those named None."""
        raise NotImplementedError


class Streams(Method):
    """It is fitted by evidence that one pass over any number of images gathered."""

    def begin_with(self, evidence: Evidence) -> None:
        """`begin` without the images themselves; the evidence's labels are places among the classes."""
        raise NotImplementedError


class TakesUnlabelled(Method):
    """It learns from images without a label, beside those that have one."""

    absorbed: Absorbed | None = None
    """what became of them; None: there were none, or the model was loaded"""

    def beside(self, images: Float[Tensor, "m d"], *, asked: bool = False) -> None:
        """Features of images without a label, before `finish` or, of a fitted method, before another one;
        `asked`: they are themselves to be classified."""
        raise NotImplementedError

    def begin_by_names(self) -> None:
        """`begin` without any labelled image."""
        raise NotImplementedError


class MultiLabel(Method):
    """It tells images that have several labels each, or none."""

    def label_head(self, images: Encoded, targets: Float[Tensor, "n k"]) -> LabelHead:
        """What tells the labels; targets: 1 for a label, else 0."""
        raise NotImplementedError


class LeavesOut(Method):
    """It judges each training image as if that one had been left out."""

    def left_out(self) -> "tuple[Float[Tensor, 'n c'], Int[Tensor, ' n']] | None":
        """Probabilities of training images, and their places among the present classes; None where nothing
        can be left out."""
        raise NotImplementedError


class TellsFamiliarity(Method):
    """It knows whether an image shows any of its classes."""

    def familiarity(self, images: Encoded) -> Float[Tensor, " b"] | None:
        """p-value of each image as one of the classes with images: low, where it shows none of them; None
        where too few images were left out to tell."""
        raise NotImplementedError

    def has_enough_to_tell(self) -> bool:
        """Whether `familiarity` says anything."""
        none = torch.empty(0, self.backbone.embed_dim, device=self.backbone.device)
        return self.familiarity(Encoded(none, none.unsqueeze(1))) is not None

    def found_by_name(self) -> float | None:
        """Of classes left out whole, the share of images that their name alone was given; None: not known."""
        return None

    def told_by_names(self) -> float | None:
        """How much of what tells the classes apart their names alone tell, 0 to 1; None: none are read."""
        return None


class NamesSources(Method):
    """Its logits are sums over where they come from, such as names and photographs."""

    def sources(self, images: Encoded) -> dict[str, Float[Tensor, "b c"]]:
        """The summands by their names."""
        raise NotImplementedError


class ShowsTokens(Method):
    """Its prompts are learned token embeddings, which can be looked at."""

    def prompt_vectors(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s k b w"]:
        """The embeddings; k: the classes, or 1 where they share them."""
        raise NotImplementedError
