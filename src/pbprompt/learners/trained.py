"""A method that is trained by steps: parameters, a loss of named terms, and what the loop asks of it."""

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt import distributed
from pbprompt.learners.method import Batch, EpochViews, Method
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.taps import Tapped, TappedTower, Taps

Terms = dict[str, Tensor]


class Trained(Method):
    """Its parameters are changed by the loop; `loss` is the cross-entropy, where a method has no other.

    Args:
        config: the settings.
        backbone: the frozen towers.

    Example:
        >>> from pbprompt.registry import find_method
        >>> kind = find_method("coop")
        >>> method = kind(kind.Config(), load_backbone("lite"))
        >>> method.epochs_for(shots=16), method.counted_parameters()
        (200, 1024)
    """

    trains = True
    # Whether every step runs the same kernels: no value is looked at on the host, nothing is moved there, and
    # random numbers come from the given generator alone, on its device. A GPU then replays it as one graph.
    capturable: ClassVar[bool] = False
    crops: int = 0  # random ones of each image that it learns from beside the centre, unless told otherwise
    _tapped: tuple[Tapped] | None = None

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        """Named terms of one step: `total` to minimise, the others to log. `examples`: training images.

        Unless overridden, the cross-entropy of what it says of the images.
        """
        logits = self.sample_logits(batch.images, self.class_features(1, generator))
        return cross_entropy_terms(logits[0], batch.labels)

    @property
    def backbone(self) -> Backbone:
        return self._tapped[0] if self._tapped else self.given

    def tap(self, image: "Taps | Sequence[Taps] | None" = None, text: "Taps | None" = None) -> None:
        """Reach into the towers, once, in `__init__`. What learns in the taps is state as any other."""
        several = [image] if isinstance(image, Taps) else list(image or ())
        self.image_taps, self.text_taps = nn.ModuleList(several), text
        self._tapped = (Tapped(self.given, several, text),)

    def encoded(self, batch: Batch) -> Batch:
        """A batch as the tower with taps sees it, where there is one: it comes as the states before that.

        Several processes share its images, but for those that dropout would blur otherwise than one would.
        """
        tower = self.backbone.visual
        if not isinstance(tower, TappedTower):
            return batch
        (frozen, states), labels, _ = batch
        rank, size = distributed.world()
        shared = len(labels) >= size > 1 and not tower.noisy
        rows = slice(rank, None, size) if shared else slice(None)
        images, patches = tower.finish(states[rows].to(self.backbone.dtype), frozen[rows])
        if shared:
            images, patches = (distributed.gather(part, len(labels)) for part in (images, patches))
        return Batch(Encoded(images, patches), labels, frozen)

    def begin_on(self, views: EpochViews, seed: int) -> None:
        """Once before the first step; what it makes of the training images is kept as state."""

    def end_epoch(self, epoch: int, epochs: int) -> None:
        """After the last step of each epoch, counted from 0."""

    def finish_on(self, views: EpochViews) -> None:
        """Once after the last step, for a method that wants the training images again."""
        self.finish()

    def finish(self) -> None:
        """The same, for one that does not: what rests on all that was learned and is kept as state."""

    def trainable(self) -> list[nn.Parameter]:
        """What the optimiser changes."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def rates(self) -> "list[tuple[float, list[nn.Parameter]]]":
        """What is trained, in groups, and the share of the learning rate that each has."""
        return [(1.0, self.trainable())]

    def backward(self, terms: Terms) -> None:
        """Fill the gradients of one step."""
        terms["total"].backward()

    def epochs_for(self, shots: int) -> int:
        """The method's own schedule where `epochs` is 0."""
        return 50 if shots <= 1 else 100 if shots <= 4 else 200

    def budget_for(self, shots: int) -> int:
        """The method's own budget in steps where `budget` and `epochs` are 0; 0: it counts epochs."""
        return 0

    def batch_for(self, examples: int) -> int:
        """The method's own choice where `batch_size` is 0."""
        return 32

    def images_a_step(self, examples: int) -> int:
        """The batch size for so many training images."""
        return min(self.config.batch_size or self.batch_for(examples), examples)

    def schedule(self, shots: int, examples: int) -> tuple[int, int]:
        """How many epochs and, where steps are the measure, how many of these in all; else 0."""
        budget = self.config.budget or (0 if self.config.epochs else self.budget_for(shots))
        if budget:
            return -(-budget // (examples // self.images_a_step(examples))), budget
        return self.config.epochs or self.epochs_for(shots), 0

    def diagnostics(self, generator: torch.Generator) -> dict[str, float]:
        """What is worth knowing of the parameters besides the loss, logged once per epoch."""
        return {}


def accuracy(logits: Float[Tensor, "*s b c"], labels: Int[Tensor, " b"]) -> Tensor:
    """Share of a batch that is right, for logging."""
    return (logits.detach().argmax(-1) == labels).float().mean()


def cross_entropy_terms(logits: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> Terms:
    """What the `loss` of most methods returns: the cross-entropy, and the accuracy to log."""
    return {"total": F.cross_entropy(logits, labels), "accuracy": accuracy(logits, labels)}
