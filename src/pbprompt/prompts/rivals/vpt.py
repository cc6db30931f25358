"""VPT: variational prompt tuning, a Gaussian over the shift of a context (Derakhshani et al., ICCV 2023).

    r ~ q(r) = N(μ, diag σ²),  p(r) = N(0, I)
    g_c(r) = text tower([SOS] v_1 + r … v_b + r name_c [.] [EOT])
    loss = −log (1/L) Σ_l p(y|x, r_l) + 0.001·mean_j KL[q(r_j) ‖ p(r_j)]
    p(y|x) = (1/S) Σ_s p(y|x, r_s)                    prediction

v_1 … v_b are `context`, [b, w]; μ and log σ² are free vectors, [1, w], or, where `conditional`, two networks
d → d/2 → d/2 → w of the normalised image feature: every image then has its own prompts, and the draws of a
prediction share their noise, so that it does not depend on the other images.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.learners.method import Batch, setting
from pbprompt.learners.trained import Terms, accuracy
from pbprompt.prompts.pbprompt.elbo import combined_elbo
from pbprompt.prompts.pbprompt.variational import draw_noise, gaussian_kl, reduce_kl, reparameterise, sample
from pbprompt.prompts.rivals.cocoop import CoCoOpConfig, network, own_prompt_logits
from pbprompt.prompts.rivals.coop import NameInContext
from pbprompt.registry import register
from pbprompt.vision import similarity
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.prompts import start_context


@dataclass(frozen=True, kw_only=True)
class VPTConfig(CoCoOpConfig):
    """The published recipe: SGD at 0.002, one image per step; draws and epochs were chosen by dataset."""

    epochs: int = setting(10, "passes over the training images; published: 10 to 60 by dataset")
    conditional: bool = setting(False, "the distribution depends on the image")
    train_samples: int = setting(10, "L, draws a step; published: 5 to 40 by dataset", least=1, most=1000)
    initial_std: float = setting(0.0, "σ at the start; 0: as published, near 1", least=0)
    kl_weight: float = setting(0.001, "weight of the divergence from N(0, I)")


@register("vpt")
class VPT(NameInContext):
    """Its distribution is one for all images, or `conditional` on each."""

    Config = VPTConfig
    variants = {"conditional": {"conditional": True}}
    tags = ("stochastic",)
    paper = "Derakhshani et al., ICCV 2023"
    capturable = True
    takes_weights = True
    config: VPTConfig

    def __init__(self, config: VPTConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.image_conditioned, self.exportable = config.conditional, not config.conditional
        width = backbone.text_width
        self.context = nn.Parameter(start_context(backbone, config.tokens, config.words))
        if config.conditional:
            widths = backbone.embed_dim, backbone.embed_dim // 2, backbone.embed_dim // 2, width
            self.mean_network = network(*widths, activation=nn.ELU())
            self.log_variance_network = network(*widths, activation=nn.ELU())
            *_, weight, start = self.log_variance_network.parameters()
            if config.initial_std:
                nn.init.zeros_(weight)  # it is this whatever the image
        else:
            self.mean = nn.Parameter(torch.zeros(1, width))
            start = self.log_variance = nn.Parameter(torch.rand(1, width))  # published: σ between 1 and 1.65
        if config.initial_std:
            nn.init.constant_(start, 2 * math.log(config.initial_std))

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        config, images = self.config, batch.images.global_
        mean, log_variance = self._posterior(images)
        prompts = self._encode(sample(mean, log_variance, config.train_samples, generator))
        if config.conditional:
            logits = own_prompt_logits(images, prompts, self.backbone.logit_scale)
        else:
            logits = similarity.class_logits(images, prompts.squeeze(1), self.backbone.logit_scale)
        kl = reduce_kl(gaussian_kl(mean, log_variance, torch.zeros_like(mean)), "mean")
        likely = similarity.log_likelihood(logits, batch.labels)
        elbo = combined_elbo(likely, kl, kl_weight=config.kl_weight, reading="log_of_mean")
        right = accuracy(similarity.mean_probabilities(logits), batch.labels)
        return {"total": elbo.total, "nll": elbo.nll, "kl": elbo.kl, "accuracy": right}

    def _posterior(self, images: Float[Tensor, "b d"]) -> tuple[Float[Tensor, "n w"], Float[Tensor, "n w"]]:
        """μ and log σ²: a line for each image where they depend on it, else one line."""
        if not self.config.conditional:
            return self.mean, self.log_variance
        x = similarity.unit(images).to(self.context)
        return self.mean_network(x), self.log_variance_network(x)

    def _encode(self, shifts: Float[Tensor, "s n w"]) -> Float[Tensor, "s n c d"]:
        """Text features under each shift, which all classes share."""
        return self._engine((self.context + shifts.unsqueeze(-2)).unsqueeze(-3))

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        """Text features under each draw; where they wait for the images, the draws' noise, [s, c, w]."""
        if self.config.conditional:
            noise = draw_noise((samples, 1, self.backbone.text_width), generator)
            return noise.to(self.context).expand(-1, len(self.classes), -1)
        return self._encode(sample(self.mean, self.log_variance, samples, generator)).squeeze(1)

    def own_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "s b c"]:
        mean, log_variance = self._posterior(images.global_)
        shifts = reparameterise(mean, log_variance, features[:, :1].expand(-1, len(mean), -1))
        return own_prompt_logits(images.global_, self._encode(shifts), self.backbone.logit_scale)

    def diagnostics(self, generator: torch.Generator) -> dict[str, float]:
        if self.config.conditional:
            return {}
        return {"posterior_std": (0.5 * self.log_variance.detach()).exp().mean().item()}
