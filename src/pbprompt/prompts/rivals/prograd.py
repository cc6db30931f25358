"""ProGrad: CoOp that never steps against zero-shot CLIP (Zhu et al., ICCV 2023).

    g_ce = ∇ −log p_v(y|x)                 the task's direction
    g_kl = ∇ KL[p_0(·|x) ‖ p_v(·|x)]       the general direction: keep zero-shot CLIP's predictions
    g = g_ce                                            where g_ce·g_kl ≥ 0
    g = g_ce − λ·(g_ce·g_kl / ‖g_kl‖²)·g_kl             where they conflict

v is CoOp's `context`, all of it one vector in the products above; p_0, `_teacher`, is zero-shot CLIP with the
dataset's template. Both distributions are softmax(logits / T), and the divergence is times T².

`total` is the cross-entropy; `conflict` is 1 in a step whose gradients conflict.

The authors' settings are the preset `published`: the dataset's sentence with the name last ("a type of pet, a
photo of a {}.") is the teacher's, and its words are the last of 16 context vectors, the others zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pbprompt import distributed
from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, setting
from pbprompt.learners.trained import Terms, cross_entropy_terms
from pbprompt.learners.zeroshot import sentence_features
from pbprompt.prompts.rivals.coop import CoOp, CoOpConfig
from pbprompt.registry import register
from pbprompt.vision.similarity import class_logits
from pbprompt.vision.towers.prompts import word_embeddings


@dataclass(frozen=True, kw_only=True)
class ProGradConfig(CoOpConfig):
    """CoOp's recipe with 4 vectors, as later papers ran it; ProGrad's own is the preset `published`."""

    temperature: float = setting(1.0, "T of the divergence from zero-shot CLIP")
    projection: float = setting(1.0, "λ, the share of the conflicting component to remove")
    from_template: bool = setting(
        False, "the dataset's sentence, its name put last, is the start and the teacher"
    )


def without_conflict(
    task: Float[Tensor, "*n"], general: Float[Tensor, "*n"], share: float
) -> tuple[Float[Tensor, "*n"], Float[Tensor, ""]]:
    """The task's gradient without what opposes the general one, and whether they conflict (1 or 0)."""
    product = (task * general).sum()
    tiny = torch.finfo(general.dtype).tiny  # a zero general gradient opposes nothing
    along = product.clamp(max=0) / general.square().sum().clamp_min(tiny)
    return task - share * along * general, (product < 0).float()


def name_last(template: str) -> str:
    """The sentence with what follows the name put before it: all of it can then be context."""
    before, _, behind = template.partition("{}")
    behind = behind.strip(" ,.")
    if not behind:
        return template
    return f"{behind}, {before}{{}}." if before else f"a {behind} of {{}}."


@register("prograd")
class ProGrad(CoOp):
    """CoOp's context, trained by gradients that agree with zero-shot CLIP."""

    Config = ProGradConfig
    presets = {"published": {"tokens": 16, "from_template": True}}
    paper = "Zhu et al., ICCV 2023"
    config: ProGradConfig
    _started = False  # the context has the template's words, or saved values

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        sentence = name_last(template) if self.config.from_template else template
        self._teacher = sentence_features(self.backbone, classes, sentence)
        if self.config.from_template and not self._started:
            self._start_at(sentence.partition("{}")[0])

    def _start_at(self, words: str) -> None:
        """The words' embeddings as the last context vectors, zeros before them."""
        count = len(self.backbone.tokenizer.encode(words))
        if count > self.config.tokens:
            raise InputError(f"setting 'tokens' is {self.config.tokens}: {words!r} takes {count}")
        start = torch.zeros_like(self.context.data)
        if count:
            start[..., -count:, :] = word_embeddings(self.backbone, words, count)
        self.context.data, self._started = start, True

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state, prefix, *rest)
        self._started = True

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        # one copy of the context a gradient: a single pass gives both, also where it replays a captured graph
        self._copies = self.prompt_vectors(1, generator).expand(2, -1, -1, -1)
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
        return {**cross_entropy_terms(logits, batch.labels), "kl": heat**2 * kl}

    def backward(self, terms: Terms) -> None:
        (gradients,) = torch.autograd.grad(terms["total"] + terms["kl"], self._copies)
        distributed.average([gradients])  # the projection needs whole gradients, not one process's share
        task, general = gradients.reshape(2, *self.context.shape)
        self.context.grad, terms["conflict"] = without_conflict(task, general, self.config.projection)
