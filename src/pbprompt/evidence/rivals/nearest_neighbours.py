"""Nearest neighbours: the k training images most alike vote for their classes, no text and no training.

    p(y = c | x) = (1/C + #{i among the k nearest : y_i = c}) / (1 + k)         by cos(f(x), f_i)

f_i are `photographs`, [n, d]; k is which of 1, 2, 4, …, 64 has the best likelihood, each image left out.

One vote is spread over all C classes, so that no class has a probability of 0.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.learners.memory import Memory
from pbprompt.learners.method import MethodConfig
from pbprompt.registry import register
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone, Encoded

MOST = 64
AT_ONCE = 1024  # photographs compared with all


@register("nearest-neighbours")
class NearestNeighbours(Memory):
    """The most alike training images vote."""

    needs_text = False
    takes_several = True
    takes_new_names = False
    promptless = "votes by its images"
    paper = "Cover and Hart, IEEE Trans. Inf. Theory 1967"

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.photographs = nn.Buffer(torch.empty(0, backbone.embed_dim))
        self.photograph_labels = nn.Buffer(torch.empty(0, dtype=torch.long))
        self.neighbours = nn.Buffer(torch.ones((), dtype=torch.long))

    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        self.photographs.data = unit(images.global_).to(self.photographs)
        self.photograph_labels.data = labels.clone()
        self.neighbours.fill_(_best(self.photographs, labels, len(self.classes)))
        self.remember()

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c n"]:
        """Which photographs are of each class."""
        labels = torch.tensor(self.labels_of_classes(), device=self.photograph_labels.device)
        self._k, self._spread = int(self.neighbours), 1 / len(self.seen)
        return (labels.unsqueeze(1) == self.photograph_labels).to(self.photographs).unsqueeze(0)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c n"]) -> Float[Tensor, "s b c"]:
        alike = unit(images.global_).to(self.photographs) @ self.photographs.T
        nearest = alike.topk(self._k, dim=1).indices
        counted = torch.zeros_like(alike).scatter(1, nearest, 1.0)
        return (torch.einsum("bn,scn->sbc", counted, features) + self._spread).log()


def _best(photographs: Float[Tensor, "n d"], labels: Int[Tensor, " n"], classes: int) -> int:
    """k by the likelihood of the photographs, each left out."""
    choices = [k for k in (1, 2, 4, 8, 16, 32, MOST) if k < len(labels)] or [1]
    told = torch.zeros(len(choices), dtype=torch.float64)
    for rows in torch.arange(len(labels), device=labels.device).split(AT_ONCE):
        alike = photographs[rows] @ photographs.T
        alike.scatter_(1, rows.unsqueeze(1), -torch.inf)  # itself
        nearest = labels[alike.topk(choices[-1], dim=1).indices]
        own = F.pad((nearest == labels[rows].unsqueeze(1)).double().cumsum(1), (1, 0))
        for place, k in enumerate(choices):
            told[place] += ((own[:, k] + 1 / classes) / (k + 1)).log().sum().cpu()
    return choices[int(told.argmax())]
