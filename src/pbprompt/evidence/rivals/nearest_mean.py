"""Nearest class mean: the mean training feature of each class, no text and no training.

    m_c = mean over the images of class c of f(x)/‖f(x)‖
    p(y = c | x) = softmax_c( s·cos(f(x), m_c) )

m_c are `means`, [c, d]. It has no use for a name, and can tell only the classes that it has images of. An
offset that all features share changes no order, but makes p flatter: `fit --calibrate` takes that back.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.learners.memory import Memory
from pbprompt.learners.method import MethodConfig
from pbprompt.registry import register
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone, Encoded


@register("nearest-mean")
class NearestMean(Memory):
    """Each class is the mean of its images."""

    needs_text = False
    takes_several = True
    takes_new_names = False
    paper = "Mensink et al., TPAMI 2013"

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.means = nn.Buffer(torch.empty(0, backbone.embed_dim))

    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        """The means of all training images."""
        members = F.one_hot(labels, len(self.classes)).to(self.means)
        counts = members.sum(0)
        if not counts.all():
            empty = self.classes[int(counts.argmin())]
            raise InputError(
                f"nearest-mean: class {empty!r} has no training image: add one or drop the class"
            )
        self.means.data = members.T @ unit(images.global_).to(self.means) / counts.unsqueeze(1)
        self.remember()

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        return self.means[self.labels_of_classes()].unsqueeze(0)
