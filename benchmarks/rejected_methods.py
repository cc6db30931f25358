"""Extensions of PBPrompt that were tried and are not in the library: methods of their own, for round 5 of
docs/readings.md.

    pbprompt-annealed        β rises from 0 over the first `kl_warmup` of the steps
    pbprompt-learned-prior   the scale of the prior under which the ELBO is highest, found anew each step:
                             s² = mean over classes and dimensions of σ² + (μ − e)²

Both keep their step out of a CUDA graph, since what changes from step to step is a number of Python's.
"""

from dataclasses import dataclass, replace

import torch

from pbprompt.learners.method import Batch, setting
from pbprompt.learners.trained import Terms
from pbprompt.prompts.pbprompt.model import PBPrompt, PBPromptConfig
from pbprompt.registry import register
from pbprompt.vision.towers.backbone import Backbone


@dataclass(frozen=True, kw_only=True)
class AnnealedConfig(PBPromptConfig):
    kl_warmup: float = setting(0.5, "share of the steps over which β rises")


@register("pbprompt-annealed")
class Annealed(PBPrompt):
    """KL annealing: the likelihood alone at first, the whole ELBO later."""

    Config = AnnealedConfig
    capturable = False
    config: AnnealedConfig

    def __init__(self, config: AnnealedConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.steps = 0

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        whole = self.config
        total = whole.epochs * (examples // self.images_a_step(examples))
        share = min(1.0, self.steps / (whole.kl_warmup * total))
        self.steps += 1
        self.config = replace(whole, kl_weight=share * whole.kl_weight)
        try:
            return super().loss(batch, generator, examples)
        finally:
            self.config = whole


@register("pbprompt-learned-prior")
class LearnedPrior(PBPrompt):
    """Empirical Bayes: the data choose how far the latents may lie from the class names."""

    capturable = False

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        with torch.no_grad():
            mean, log_variance = self.posterior(self._names)
            self.prior_std = (log_variance.exp() + (mean - self._names).square()).mean().sqrt().item()
        return super().loss(batch, generator, examples)
