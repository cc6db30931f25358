"""The nearest training images: their mean by class, or the images themselves. No text and no training."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.learners.memory import Memory, Remembered, TrainingImages
from pbprompt.registry import register
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Encoded

MOST = 64
AT_ONCE = 1024  # photographs compared with all


@dataclass(frozen=True, eq=False)
class ClassMeans(Remembered):
    means: Float[Tensor, "k d"]

    def bank(self, samples: int = 1) -> Float[Tensor, "s c d"]:
        return self.means[self.asked.labels].unsqueeze(0)


@register("nearest-mean")
class NearestMean(Memory):
    """Nearest class mean: the mean training feature of each class, no text and no training.

        m_c = mean over the images of class c of f(x)/‖f(x)‖
        p(y = c | x) = softmax_c( s·cos(f(x), m_c) )

    m_c are `means`, [c, d]. It has no use for a name, and can tell only the classes that it has images of. An
    offset that all features share changes no order, but makes p flatter: `fit --calibrate` takes that back.
    """

    makes = ClassMeans
    needs_text = False
    takes_several = True
    takes_new_names = False
    paper = "Mensink et al., TPAMI 2013"

    def fit(self, shown: TrainingImages) -> ClassMeans:
        """The means of all training images."""
        x = unit(shown.images.global_)
        members = F.one_hot(shown.labels, len(self.classes)).to(x)
        counts = members.sum(0)
        if not counts.all():
            empty = self.classes[int(counts.argmin())]
            raise InputError(
                f"nearest-mean: class {empty!r} has no training image: add one or drop the class"
            )
        return ClassMeans(shown.asked, members.T @ x / counts.unsqueeze(1))


@dataclass(frozen=True, eq=False)
class Neighbours(Remembered):
    photographs: Float[Tensor, "n d"]
    photograph_labels: Int[Tensor, " n"]
    neighbours: Int[Tensor, ""]
    """k"""

    def bank(self, samples: int = 1) -> Float[Tensor, "s c n"]:
        """Which photographs are of each class."""
        labels = torch.tensor(self.asked.labels, device=self.photograph_labels.device)
        return (labels.unsqueeze(1) == self.photograph_labels).to(self.photographs).unsqueeze(0)

    def logits(self, images: Encoded, bank: Float[Tensor, "s c n"]) -> Float[Tensor, "s b c"]:
        alike = unit(images.global_).to(self.photographs) @ self.photographs.T
        nearest = alike.topk(int(self.neighbours), dim=1).indices
        counted = torch.zeros_like(alike).scatter(1, nearest, 1.0)
        return (torch.einsum("bn,scn->sbc", counted, bank) + 1 / len(self.asked.known)).log()


@register("nearest-neighbours")
class NearestNeighbours(Memory):
    """Nearest neighbours: the k training images most alike vote for their classes, no text and no training.

        p(y = c | x) = (1/C + #{i among the k nearest : y_i = c}) / (1 + k)         by cos(f(x), f_i)

    f_i are `photographs`, [n, d]; k is which of 1, 2, 4, …, 64 has the best likelihood, each image left out.

    One vote is spread over all C classes, so that no class has a probability of 0.
    """

    makes = Neighbours
    needs_text = False
    takes_several = True
    takes_new_names = False
    promptless = "votes by its images"
    paper = "Cover and Hart, IEEE Trans. Inf. Theory 1967"

    def fit(self, shown: TrainingImages) -> Neighbours:
        x = unit(shown.images.global_)
        best = torch.tensor(_best(x, shown.labels, len(self.classes)), device=x.device)
        return Neighbours(shown.asked, x, shown.labels, best)


def _best(photographs: Float[Tensor, "n d"], labels: Int[Tensor, " n"], classes: int) -> int:
    """k by the likelihood of the photographs, each left out."""
    choices = [k for k in (1, 2, 4, 8, 16, 32, MOST) if k < len(labels)] or [1]
    likelihood = torch.zeros(len(choices), dtype=torch.float64)
    for rows in torch.arange(len(labels), device=labels.device).split(AT_ONCE):
        alike = photographs[rows] @ photographs.T
        alike.scatter_(1, rows.unsqueeze(1), -torch.inf)  # itself
        nearest = labels[alike.topk(choices[-1], dim=1).indices]
        own = F.pad((nearest == labels[rows].unsqueeze(1)).double().cumsum(1), (1, 0))
        for place, k in enumerate(choices):
            likelihood[place] += ((own[:, k] + 1 / classes) / (k + 1)).log().sum().cpu()
    return choices[int(likelihood.argmax())]
