"""ProGrad: CoOp that never steps against zero-shot CLIP (Zhu et al., ICCV 2023).

    g_ce = ∇ −log p_v(y|x)                 the task's direction
    g_kl = ∇ KL[p_0(·|x) ‖ p_v(·|x)]       the general direction: keep zero-shot CLIP's predictions
    g = g_ce                                            where g_ce·g_kl ≥ 0
    g = g_ce − λ·(g_ce·g_kl / ‖g_kl‖²)·g_kl             where they conflict

| symbol | name here     | meaning                                                             |
|--------|---------------|---------------------------------------------------------------------|
| v      | `context`     | CoOp's context, all of it one vector in the products above          |
| p_0    | `_teacher`    | zero-shot CLIP with the dataset's template                          |
| T      | `temperature` | both distributions are softmax(logits / T), the divergence times T² |
| λ      | `projection`  | how much of the conflicting component is removed                    |

`total` is the cross-entropy; `conflict` is 1 in a step whose gradients conflict.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pbprompt import distributed
from pbprompt.core.likelihood import class_logits
from pbprompt.methods.base import Batch, Terms, accuracy, setting
from pbprompt.methods.coop import CoOp, CoOpConfig
from pbprompt.methods.zeroshot import sentence_features
from pbprompt.registry import register


@dataclass(frozen=True, kw_only=True)
class ProGradConfig(CoOpConfig):
    """CoOp's recipe."""

    temperature: float = setting(1.0, "T of the divergence from zero-shot CLIP")
    projection: float = setting(1.0, "λ, the share of the conflicting component to remove")


def without_conflict(
    task: Float[Tensor, "*n"], general: Float[Tensor, "*n"], share: float
) -> tuple[Float[Tensor, "*n"], Float[Tensor, ""]]:
    """The task's gradient without what opposes the general one, and whether they conflict (1 or 0)."""
    product = (task * general).sum()
    tiny = torch.finfo(general.dtype).tiny  # a zero general gradient opposes nothing
    along = product.clamp(max=0) / general.square().sum().clamp_min(tiny)
    return task - share * along * general, (product < 0).float()


@register("prograd")
class ProGrad(CoOp):
    """CoOp's context, trained by gradients that agree with zero-shot CLIP."""

    Config = ProGradConfig
    paper = "Zhu et al., ICCV 2023"
    config: ProGradConfig

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        self._teacher = sentence_features(self.backbone, classes, template)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        # one copy of the context a gradient: a single pass gives both, also where it replays a captured graph
        self._copies = self._contexts().expand(2, -1, -1, -1)
        x, scale = batch.images.global_, self.backbone.logit_scale
        logits, others = class_logits(x, self._engine(self._copies), scale)
        general = class_logits(x, self._teacher, scale)
        heat = self.config.temperature
        kl = F.kl_div(
            (others / heat).log_softmax(-1),
            (general / heat).log_softmax(-1),
            reduction="batchmean",
            log_target=True,
        )
        return {
            "total": F.cross_entropy(logits, batch.labels),
            "kl": heat**2 * kl,
            "accuracy": accuracy(logits, batch.labels),
        }

    def backward(self, terms: Terms) -> None:
        (gradients,) = torch.autograd.grad(terms["total"] + terms["kl"], self._copies)
        distributed.average([gradients])  # the projection needs whole gradients, not one process's share
        task, general = gradients.reshape(2, *self.context.shape)
        self.context.grad, terms["conflict"] = without_conflict(task, general, self.config.projection)
