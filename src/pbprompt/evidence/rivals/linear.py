"""What linear classifiers on image features share: a weight vector and a bias per class, and a share of text.

    logit_c(x) = w_c·f + b_c + a_c·(f·t_c)                    f = f(x)/‖f(x)‖, t_c = g(c)/‖g(c)‖

w and b, [k + 1, d] and [k + 1], are what the images say; a, `text_scale`, how far the sentence counts.

The last row is for a class without images, by a name that came later or from the start: the mean of the other
rows, so that the images speak neither for it nor against it and its sentence decides. A method that reads no
names gives such a class no chance.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.learners.memory import MemoryBesideText
from pbprompt.learners.method import MethodConfig
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone, Encoded

NEVER = -1e4  # a bias below any logit


class LinearClassifier(MemoryBesideText):
    """A method that solves for a linear classifier at once: it implements `solve`."""

    promptless = "votes by its images"

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.weights = nn.Buffer(torch.empty(0, backbone.embed_dim))
        self.bias, self.text_scale = nn.Buffer(torch.empty(0)), nn.Buffer(torch.empty(0))

    def solve(
        self, x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], text: Float[Tensor, "k d"]
    ) -> tuple[Float[Tensor, "k d"], Float[Tensor, " k"], Float[Tensor, " k"]]:
        """Weights, bias and text scale of k classes, all of which have images; x and text are unit."""
        raise NotImplementedError

    @torch.no_grad()
    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        """Solve over the classes that have images, and fill in the others."""
        present, own = labels.unique(return_inverse=True)
        x = unit(images.global_)
        found = self.solve(x, own, unit(self._text).to(x)[present])
        for kept, values, unknown in zip(
            (self.weights, self.bias, self.text_scale), found, (0.0, NEVER, 0.0), strict=True
        ):
            other = values.mean(0) if self.takes_new_names else torch.full_like(values[0], unknown)
            rows = other.repeat(len(self.classes) + 1, *[1] * other.dim())
            rows[present] = values
            kept.data = rows.to(kept)
        self.remember()

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        """For each class its weights and its bias, side by side: [1, c, d + 1]."""
        own, text = self.labels_of_classes(), unit(self._text).to(self.weights)
        weights = self.weights[own] + self.text_scale[own].unsqueeze(1) * text
        return torch.cat([weights, self.bias[own].unsqueeze(1)], dim=1).unsqueeze(0)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "s b c"]:
        weights, bias = features.tensor_split([self.weights.shape[1]], dim=-1)
        x = unit(images.global_).to(weights)
        return torch.einsum("bd,scd->sbc", x, weights) + bias.transpose(1, 2)
