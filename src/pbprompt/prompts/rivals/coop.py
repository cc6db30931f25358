"""Learned words around each class name: CoOp, and KgCoOp and ProGrad, which keep them near a sentence.

    g_c = text tower([SOS] v_1 … v_b name_c [.] [EOT])    the name at the end, in the middle or in front

v_1 … v_b are `context`, [b, w]: one set for all classes; or, where `class_specific`, [c, b, w]: one per
class, and none for a name that was not trained on. g⁰ are the features of the dataset's own sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt import distributed
from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, MethodConfig, setting
from pbprompt.learners.trained import Terms, Trained, cross_entropy_terms
from pbprompt.learners.zeroshot import sentence_features
from pbprompt.registry import register
from pbprompt.vision.similarity import class_logits, unit
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.prompts import NamePosition, named_prompts, start_context, word_embeddings

PROMPTS_AT_ONCE = 1 << 12  # in the text tower, where no gradient is kept


@dataclass(frozen=True, kw_only=True)
class ContextConfig(MethodConfig):
    """What a context starts from."""

    tokens: int = setting(4, "b, context vectors")
    words: str = setting("a photo of a", "words that the context starts from; empty: random, N(0, 0.02²)")


@dataclass(frozen=True, kw_only=True)
class CoOpConfig(ContextConfig):
    """The published recipe: SGD at 0.002, batches of 32, 50 to 200 epochs by shots."""

    words: str = setting("", "words that the context starts from; empty: random, N(0, 0.02²)")
    position: NamePosition = setting("end", "where the class name goes: end, middle or front")
    class_specific: bool = setting(False, "a context for each class (CSC): it takes no new class names")


class NameInContext(Trained):
    """What methods share whose prompts are learned vectors before, behind or around a class name.

    Where each image has its own prompts (`image_conditioned`) a bank is without content, and images × prompts
    go through the text tower.
    """

    position: NamePosition = "end"
    fixed: Sequence[int] = ()  # tokens between the context and the name
    context: nn.Parameter

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        tokenizer, tokens = self.backbone.tokenizer, self.config.tokens  # type: ignore[attr-defined]
        prompts = named_prompts(tokenizer, classes, tokens, self.position, fixed=self.fixed)
        self._engine = TextEngine(self.backbone, prompts)

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        vectors = self.prompt_vectors(samples, generator)
        if self.image_conditioned:
            return vectors.new_empty(len(vectors), len(self.classes), 0)
        return self._engine(vectors)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "k b c"]:
        """Where images have their own prompts, of as many images at once as fit, if no gradient is kept."""
        if not self.image_conditioned:
            return super().sample_logits(images, features)
        fit = PROMPTS_AT_ONCE // features.shape[:2].numel()
        at_once = len(images.global_) if torch.is_grad_enabled() else max(1, fit)
        parts = zip(*(part.split(at_once) for part in images), strict=True)
        return torch.cat([self.own_logits(Encoded(*part), features) for part in parts], dim=-2)

    def own_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "k b c"]:
        """Logits of images by their own prompts."""
        raise NotImplementedError

    def prompt_vectors(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s k b w"]:
        """The context as the engine takes it, k being 1 where all classes share it; what `ShowsTokens` shows,
        of those that have it."""
        return self.context[None, None] if self.context.ndim == 2 else self.context[None]


@register("coop")
class CoOp(NameInContext):
    """One learned context in front of, around or behind each class name (Zhou et al., IJCV 2022).

    loss = −log softmax_y( s·cos(f(x), g_c) )    cross-entropy over the training classes
    """

    Config = CoOpConfig
    presets = {
        "base-to-new": {"words": "a photo of a"},
        "imagenet": {"epochs": 50},
        "transfer": {"words": "a photo of a", "epochs": 50},  # from ImageNet to other datasets
        "published": {"tokens": 16},  # few-shot, as in its paper; the later papers took 4
    }
    variants = {"class-specific": {"class_specific": True}}
    paper = "Zhou et al., IJCV 2022"
    capturable = True
    takes_weights = True
    config: CoOpConfig

    def __init__(self, config: CoOpConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.takes_new_names, self.position = not config.class_specific, config.position
        start = start_context(backbone, config.tokens, config.words)
        if config.class_specific:  # how many classes there are comes with `prepare`, or with saved values
            self._start_seed = int(torch.randint(2**62, ()))
            start = start.new_empty(0, *start.shape)
        self.context = nn.Parameter(start)

    def prepare(self, classes: Sequence[str], template: str) -> None:
        """Where class-specific, start the contexts the first time; then only the same classes will do."""
        config, own = self.config, len(self.context)
        if config.class_specific and not own:
            draws = torch.Generator().manual_seed(self._start_seed)
            starts = [start_context(self.backbone, config.tokens, config.words, draws) for _ in classes]
            self.context.data = torch.stack(starts).to(self.context)
        elif config.class_specific and (len(classes) != own or self.classes not in ((), tuple(classes))):
            raise InputError(
                f"{self.name} with class_specific=true has a context for each of its {own} classes and takes "
                "no other names: keep its classes, or fit with class_specific=false"
            )
        super().prepare(classes, template)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make room for as many classes as the saved context has."""
        saved = state.get(prefix + "context")
        if self.config.class_specific and saved is not None and saved.shape[1:] == self.context.shape[1:]:
            self.context.data = self.context.new_empty(saved.shape)
        super()._load_from_state_dict(state, prefix, *rest)


@dataclass(frozen=True, kw_only=True)
class KgCoOpConfig(CoOpConfig):
    """The published recipe: CoOp's SGD from "a photo of a", batches of 128, 100 epochs, λ = 8."""

    words: str = setting("a photo of a", "words that the context starts from; empty: random, N(0, 0.02²)")
    batch_size: int = setting(128, "images per step")
    epochs: int = setting(100, "passes over the training images")
    weight: float = setting(8.0, "λ, how firmly class features are held at those of the sentence", least=0)


@register("kgcoop")
class KgCoOp(CoOp):
    """CoOp whose class features stay near those of the sentence (Yao et al., CVPR 2023).

    loss = −log softmax_y( s·cos(f(x), g_c) ) + λ·(1 − (1/C) Σ_c cos(g_c, g_c⁰))
    """

    Config = KgCoOpConfig
    presets = {"published": {}}
    variants = {}
    paper = "Yao et al., CVPR 2023"
    config: KgCoOpConfig

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        self._sentence = sentence_features(self.backbone, classes, template)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        features = self.class_features(1, generator)
        terms = cross_entropy_terms(self.sample_logits(batch.images, features)[0], batch.labels)
        apart = 1 - F.cosine_similarity(unit(features[0]), unit(self._sentence), dim=-1).mean()
        return {**terms, "total": terms["total"] + self.config.weight * apart, "apart": apart}


@dataclass(frozen=True, kw_only=True)
class ProGradConfig(CoOpConfig):
    """CoOp's recipe with 4 vectors, as later papers ran it; ProGrad's own is the preset `published`."""

    temperature: float = setting(1.0, "T of the divergence from zero-shot CLIP")
    projection: float = setting(1.0, "λ, the share of the conflicting component to remove")
    from_template: bool = setting(False, "the dataset's sentence, name last, is the start and the teacher")


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
    if not (behind := behind.strip(" ,.")):
        return template
    return f"{behind}, {before}{{}}." if before else f"a {behind} of {{}}."


@register("prograd")
class ProGrad(CoOp):
    """CoOp that never steps against zero-shot CLIP (Zhu et al., ICCV 2023).

    g_ce = ∇ −log p_v(y|x)                              the task's direction
    g_kl = ∇ T²·KL[p_0(·|x) ‖ p_v(·|x)]                 the general direction: keep zero-shot's predictions
    g = g_ce                                            where g_ce·g_kl ≥ 0
    g = g_ce − λ·(g_ce·g_kl / ‖g_kl‖²)·g_kl             where they conflict

    v is the context, all of it one vector in the products; both p are softmax(logits / T), and p_0 is of g⁰.
    `total` is the cross-entropy; `conflict` is 1 in a step whose gradients conflict. In the authors' settings
    (`published`) g⁰ is of the sentence with its name last ("a type of pet, a photo of a {}."), and its words
    are the last of 16 context vectors, the others zero.
    """

    Config = ProGradConfig
    presets = {"published": {"tokens": 16, "from_template": True}}
    paper = "Zhu et al., ICCV 2023"
    config: ProGradConfig
    _started = False  # the context has the template's words, or saved values

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        sentence = name_last(template) if self.config.from_template else template
        self._teacher = sentence_features(self.backbone, classes, sentence)
        if not self.config.from_template or self._started:
            return
        words = sentence.partition("{}")[0]
        count = len(self.backbone.tokenizer.encode(words))
        if count > self.config.tokens:
            raise InputError(f"setting 'tokens' is {self.config.tokens}: {words!r} takes {count}")
        self.context.data, self._started = torch.zeros_like(self.context.data), True
        if count:
            self.context.data[..., -count:, :] = word_embeddings(self.backbone, words, count)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state, prefix, *rest)
        self._started = True

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        # one copy of the context a gradient: a single pass gives both, also where it replays a captured graph
        self._copies = self.prompt_vectors(1, generator).expand(2, -1, -1, -1)
        x, scale = batch.images.global_, self.backbone.logit_scale
        logits, others = class_logits(x, self._engine(self._copies), scale)
        heat, general = self.config.temperature, class_logits(x, self._teacher, scale)
        student, teacher = ((one / heat).log_softmax(-1) for one in (others, general))
        kl = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
        return {**cross_entropy_terms(logits, batch.labels), "kl": heat**2 * kl}

    def backward(self, terms: Terms) -> None:
        (gradients,) = torch.autograd.grad(terms["total"] + terms["kl"], self._copies)
        distributed.average([gradients])  # the projection needs whole gradients, not one process's share
        task, general = gradients.reshape(2, *self.context.shape)
        self.context.grad, terms["conflict"] = without_conflict(task, general, self.config.projection)
