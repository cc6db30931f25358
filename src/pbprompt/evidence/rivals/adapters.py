"""What steps add to frozen features: a residual on the text of each class, or a bottleneck behind the images.

t_c is the text feature of a class's sentence, not normalised.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.learners.memory import Memory, Remembered, TrainingImages
from pbprompt.learners.method import Batch, MethodConfig, setting
from pbprompt.learners.trained import Terms, Trained
from pbprompt.learners.zeroshot import sentence_features
from pbprompt.registry import register
from pbprompt.vision.similarity import at_least_float32, class_logits
from pbprompt.vision.towers.backbone import Backbone, Encoded


@dataclass(frozen=True, kw_only=True)
class TaskResConfig(MethodConfig):
    """The published recipe: Adam at 2e-3 (2e-4 on ImageNet), batches of 256, 100 or 200 epochs by shots."""

    optimiser: Literal["sgd", "adam", "adamw"] = setting("adam", "sgd (momentum 0.9), adam or adamw")
    batch_size: int = setting(256, "images per step")
    alpha: float = setting(0.5, "α, scale of the residual")


@dataclass(frozen=True, eq=False)
class Residuals(Remembered):
    """Class features t_c + scale·r_c; a name without images is its sentence."""

    residuals: Float[Tensor, "k d"]
    residual_scale: float = 1.0

    def bank(self, samples: int = 1) -> Float[Tensor, "s c d"]:
        own = torch.tensor(self.asked.labels, device=self.residuals.device)
        residuals = self.residuals[own] * (own >= 0).unsqueeze(1)
        return (self.asked.texts.to(residuals) + self.residual_scale * residuals).unsqueeze(0)


class TextResidual(Memory, Trained):
    """A residual on the feature of each class's sentence, learned by steps from 0."""

    makes: ClassVar[type[Residuals]] = Residuals
    learned = ("residuals",)

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.residuals = nn.Parameter(torch.empty(0, backbone.embed_dim))

    def fit(self, shown: TrainingImages) -> Residuals:
        """Start every class at its sentence."""
        return Residuals(shown.asked, torch.zeros_like(at_least_float32(shown.asked.texts)))


@register("taskres")
class TaskRes(TextResidual):
    """TaskRes: a learned residual on the text feature of every class (Yu et al., CVPR 2023).

        p(y = c | x) = softmax_c( s·cos(f(x), t_c + α·r_c) )

    r_c are `residuals`, [c, d], from 0. α is published as
    0.5, but 1 on Flowers102. This is the regular TaskRes; the enhanced one starts from a text projection that
    was tuned before. A name without images has no residual: it is its sentence. In the published number of
    steps the numbers of a residual grow to a tenth or two, so that it counts for less the longer a backbone's
    text features are: those of `lite` have a length of 19, and TaskRes stays near zero-shot there with the
    published α.
    """

    Config = TaskResConfig
    presets = {"flowers": {"alpha": 1.0}, "imagenet": {"learning_rate": 2e-4}}
    takes_weights = True
    paper = "Yu et al., CVPR 2023"
    config: TaskResConfig

    def hold(self, fitted: Residuals) -> None:
        super().hold(replace(fitted, residual_scale=self.config.alpha))

    def epochs_for(self, shots: int) -> int:
        return 100 if shots <= 4 else 200


@dataclass(frozen=True, kw_only=True)
class CLAPConfig(MethodConfig):
    """The published recipe: SGD at 0.1 without weight decay, batches of 256, 300 epochs."""

    learning_rate: float = setting(0.1, "highest learning rate; cosine to zero over the epochs")
    weight_decay: float = setting(0.0, "weight decay of the optimiser")
    batch_size: int = setting(256, "images per step")
    constrained: bool = setting(True, "hold the prototypes near the text; false: ZS-LP")


@dataclass(frozen=True, eq=False, kw_only=True)
class HeldResiduals(Residuals):
    multipliers: Float[Tensor, " k"]
    """λ"""


@register("clap")
class CLAP(TextResidual):
    """CLAP: prototypes held near the text as far as the text is right (Silva-Rodríguez et al., CVPR 2024).

        p(y = c | x) = softmax_c( s·cos(f(x), w_c) )
        loss = −log p(y | x) + (1/C) Σ_c λ_c·‖w_c − t_c‖²
        λ_c  = mean over the training images of class c of zero-shot's p(y = c | x)

    w_c are the learned prototypes, t_c + `residuals`; λ_c is
    estimated once, never searched. The zero-shot-initialised probe of the same paper, without the constraint,
    is the variant `zs-lp`. The paper trains on twenty augmented views per image; here it is on the run's own
    views. Chosen here: a class without images is held with λ = 1, since nothing speaks against its sentence,
    and a name that comes later is its sentence.
    """

    Config = CLAPConfig
    makes = HeldResiduals
    variants = {"zs-lp": {"constrained": False}}
    paper = "Silva-Rodríguez et al., CVPR 2024"
    config: CLAPConfig

    def fit(self, shown: TrainingImages) -> HeldResiduals:
        start, text = super().fit(shown), shown.asked.texts
        logits = class_logits(shown.images.global_, text, shown.asked.scale)
        members = F.one_hot(shown.labels, len(text)).to(logits)
        counts = members.sum(0)
        found = (logits.softmax(-1) * members).sum(0) / counts
        multipliers = torch.where(counts > 0, found, 1.0).to(start.residuals)
        return HeldResiduals(shown.asked, start.residuals, multipliers=multipliers)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        terms = super().loss(batch, generator, examples)
        if not self.config.constrained:
            return terms
        constraint = (self.fitted.multipliers * self.residuals.square().sum(1)).mean()
        return {**terms, "total": terms["total"] + constraint, "constraint": constraint}

    def epochs_for(self, shots: int) -> int:
        return 300


@dataclass(frozen=True, kw_only=True)
class CLIPAdapterConfig(MethodConfig):
    """The published recipe: 1e-5, and CoOp's batches of 32 and 50 to 200 epochs by shots."""

    optimiser: Literal["sgd", "adam", "adamw"] = setting("adam", "sgd (momentum 0.9), adam or adamw")
    learning_rate: float = setting(1e-5, "highest learning rate; cosine to zero over the epochs")
    alpha: float = setting(0.2, "α, share of what the adapter says", least=0, most=1)
    reduction: int = setting(4, "how many times narrower the bottleneck is", least=1)


@register("clip-adapter")
class CLIPAdapter(Trained):
    """CLIP-Adapter: a bottleneck behind the image tower, mixed with what that says (Gao et al., IJCV 2024).

        p(y = c | x) = softmax_c( s·cos(x', t_c) )
        x' = α·relu(W₂ relu(W₁ f(x))) + (1 − α)·f(x)             W₁ [d/4, d], W₂ [d, d/4], no bias

    f(x) is not normalised. This is the visual adapter, the paper's
    default. α is the 0.2 of the authors' code; the paper searches it for each dataset and reports the best,
    which is not done here. The learning rate 1e-5 is the paper's, which names no optimiser: SGD leaves the
    adapter where it starts at that rate, so that it is Adam here, what the authors' training code takes where
    nothing is set. A name that comes later has its sentence, and the images have the adapter as it was
    learned on others.
    """

    Config = CLIPAdapterConfig
    paper = "Gao et al., IJCV 2024"
    promptless = "changes what images say, not prompts,"
    takes_weights = True
    config: CLIPAdapterConfig

    def __init__(self, config: CLIPAdapterConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        width, narrow = backbone.embed_dim, max(1, backbone.embed_dim // config.reduction)
        self.adapter = nn.Sequential(
            nn.Linear(width, narrow, bias=False), nn.ReLU(), nn.Linear(narrow, width, bias=False), nn.ReLU()
        )

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        self._text = sentence_features(self.backbone, classes, template)

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        return self._text.unsqueeze(0)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "s b c"]:
        x = images.global_.to(self.adapter.get_parameter("0.weight"))
        adapted = self.config.alpha * self.adapter(x) + (1 - self.config.alpha) * x
        return super().sample_logits(Encoded(adapted, images.patches), features)
