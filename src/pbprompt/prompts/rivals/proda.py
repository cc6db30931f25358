"""ProDA: prompts as a sample of a Gaussian over classifiers (Lu et al., CVPR 2022).

    w_ck = unit( text tower(prompt k with name_c) ),   k = 1 … K
    μ_c = mean_k w_ck,   Σ_ij = mean_k (w_ik − μ_i)∘(w_jk − μ_j)                  per dimension
    z_c = s·x·μ_c + (s²/2) Σ_d x_d² (Σ_yy + Σ_cc − 2Σ_yc)_d                       y: the true label
    loss = −log softmax_y(z) + λ·mean_{k≠k'} |cos(p_k, p_k')|
    prediction: softmax_c( s·x·μ_c ) with all K prompts

v_k1 … v_kb are `context`, [k, b, w]; x is of unit length; p_k is the feature of prompt k without a class
name, [SOS] v_k1 … v_kb [.] [EOT]. A quarter of the prompts has the class name in front, a quarter in the
middle, the others at the end.

The first term is an upper bound of the expected loss under the Gaussian. With δ_ck = w_ck − μ_c its
quadratic form is a mean of squares, (Σ_yy + Σ_cc − 2Σ_yc) = mean_k (δ_yk − δ_ck)², never negative and zero
at c = y. A step draws `drawn` of the K prompts, each set of that size as likely as any other, and encodes
these alone: μ, Σ and the orthogonality are over them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, MethodConfig, setting
from pbprompt.learners.trained import Terms, Trained, accuracy
from pbprompt.registry import register
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.prompts import NamePosition, named_prompts, start_context


@dataclass(frozen=True, kw_only=True)
class ProDAConfig(MethodConfig):
    """The published recipe: SGD at 0.001, 100 epochs."""

    learning_rate: float = setting(1e-3, "highest learning rate; cosine to zero over the epochs")
    epochs: int = setting(100, "passes over the training images")
    prompts: int = setting(32, "K, prompts")
    tokens: int = setting(16, "b, context vectors of a prompt")
    drawn: int = setting(4, "prompts drawn per step")
    diversity: float = setting(0.1, "λ, weight of the orthogonality of the prompts without a name")


@register("proda")
class ProDA(Trained):
    """Many learned prompts whose features' mean and covariance make the classifier."""

    Config = ProDAConfig
    takes_weights = True
    paper = "Lu et al., CVPR 2022"
    config: ProDAConfig

    def __init__(self, config: ProDAConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        count = config.prompts
        if not 2 <= config.drawn <= count:
            raise InputError(f"setting 'drawn' is {config.drawn}: use from 2 to all {count} of the prompts")
        starts = [start_context(backbone, config.tokens, "") for _ in range(count)]
        self.context = nn.Parameter(torch.stack(starts))
        self.positions = name_positions(count)

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        tokenizer, tokens = self.backbone.tokenizer, self.config.tokens
        # The prompt without a name, [SOS] context [.] [EOT], is one more class. No CUDA graphs: how
        # many of a position are drawn changes with every step, and a graph would be kept for each number.
        nameless = tokenizer.enclose([*(-(k + 1) for k in range(tokens)), *tokenizer.encode(".")])
        self._engines = {}
        for position in dict.fromkeys(self.positions):
            prompts = [*named_prompts(tokenizer, classes, tokens, position), nameless]
            self._engines[position] = TextEngine(self.backbone, prompts, graph=False)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        drawn = torch.randperm(self.config.prompts, generator=generator)[: self.config.drawn]
        features, class_free = self._encode(drawn.tolist())
        x, labels, scale = batch.images.global_, batch.labels, self.backbone.logit_scale
        logits = mean_logits(x, features.mean(0), scale)
        surrogate = F.cross_entropy(logits + scale**2 / 2 * pair_variances(x, features, labels), labels)
        alike = mean_absolute_cosine(class_free)
        terms = {"total": surrogate + self.config.diversity * alike, "surrogate": surrogate}
        return {**terms, "orthogonality": alike, "accuracy": accuracy(logits, labels)}

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "1 c d"]:
        """μ_c of all prompts, shorter than a unit vector where they disagree."""
        return self._encode(range(self.config.prompts))[0].mean(0, keepdim=True)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "s b c"]:
        return mean_logits(images.global_, features, self.backbone.logit_scale)

    def _encode(self, chosen: Sequence[int]) -> tuple[Float[Tensor, "k c d"], Float[Tensor, "k d"]]:
        """Unit features of the chosen prompts with every class name, and without one."""
        parts = []
        for position, engine in self._engines.items():
            if rows := [k for k in chosen if self.positions[k] == position]:
                parts.append(engine(self.context[rows].unsqueeze(1)))
        features = unit(torch.cat(parts))
        return features[:, :-1], features[:, -1]


def name_positions(prompts: int) -> list[NamePosition]:
    """Where each of K prompts has the class name: 8 in front, 8 in the middle and 16 at the end of 32."""
    quarter = prompts // 4
    counts: dict[NamePosition, int] = {"front": quarter, "middle": quarter, "end": prompts - 2 * quarter}
    return [position for position, count in counts.items() for _ in range(count)]


def mean_logits(
    images: Float[Tensor, "b d"], means: Float[Tensor, "*s c d"], scale: float
) -> Float[Tensor, "*s b c"]:
    """s·x·μ_c; the mean keeps its length."""
    with torch.autocast(images.device.type, enabled=False):
        return scale * unit(images).to(means.dtype) @ means.mT


def pair_variances(
    images: Float[Tensor, "b d"], features: Float[Tensor, "k c d"], labels: Int[Tensor, " b"]
) -> Float[Tensor, "b c"]:
    """Σ_d x_d² (Σ_yy + Σ_cc − 2Σ_yc)_d without a tensor of class pairs."""
    with torch.autocast(images.device.type, enabled=False):
        squares = unit(images).to(features.dtype).square()
        deviations = features - features.mean(0)
        variances = squares @ deviations.square().mean(0).mT
        shared = torch.einsum("kbd,kcd->bc", squares * deviations[:, labels], deviations) / len(features)
        return variances.gather(1, labels.unsqueeze(1)) + variances - 2 * shared


def mean_absolute_cosine(features: Float[Tensor, "k d"]) -> Float[Tensor, ""]:
    """mean |cos| over the pairs of different unit vectors."""
    first, second = torch.triu_indices(len(features), len(features), 1, device=features.device)
    return (features[first] * features[second]).sum(-1).abs().mean()
