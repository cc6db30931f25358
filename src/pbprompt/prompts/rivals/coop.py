"""CoOp: the words around a class name are learned (Zhou et al., IJCV 2022).

    g_c = text tower([SOS] v_1 … v_b name_c [.] [EOT])    the name at the end, in the middle or in front
    loss = −log softmax_y( s·cos(f(x), g_c) )              cross-entropy over the training classes

v_1 … v_b are `context`, [b, w]: one set for all classes; or [c, b, w]: one per class.

With one set of vectors for each class (`class_specific`) there is none for a name that was not trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.learners.method import MethodConfig, setting
from pbprompt.learners.trained import Trained
from pbprompt.registry import register
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.prompts import NamePosition, named_prompts, start_context


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
    """What methods share whose prompts are learned vectors before, behind or around a class name."""

    position: NamePosition = "end"
    fixed: Sequence[int] = ()  # tokens between the context and the name
    context: nn.Parameter

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        tokenizer, tokens = self.backbone.tokenizer, self.config.tokens  # type: ignore[attr-defined]
        prompts = named_prompts(tokenizer, classes, tokens, self.position, fixed=self.fixed)
        self._engine = TextEngine(self.backbone, prompts)

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        return self._engine(self.prompt_vectors(samples, generator))

    def prompt_vectors(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s k b w"]:
        """The context as the engine takes it, k being 1 where all classes share it; what `ShowsTokens` shows,
        of those that have it."""
        return self.context[None, None] if self.context.ndim == 2 else self.context[None]


@register("coop")
class CoOp(NameInContext):
    """One learned context in front of, around or behind each class name."""

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
        if self.config.class_specific:
            self._fix_classes(tuple(classes))
        super().prepare(classes, template)

    def _fix_classes(self, classes: tuple[str, ...]) -> None:
        """Start a context for each class the first time; afterwards only the same classes will do."""
        if not len(self.context):
            draws = torch.Generator().manual_seed(self._start_seed)
            config = self.config
            starts = [start_context(self.backbone, config.tokens, config.words, draws) for _ in classes]
            self.context.data = torch.stack(starts).to(self.context)
        elif len(classes) != len(self.context) or (self.classes and classes != self.classes):
            raise InputError(
                f"{self.name} with class_specific=true has a context for each of its {len(self.context)} "
                "classes and takes no other names: keep its classes, or fit with class_specific=false"
            )

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make room for as many classes as the saved context has."""
        saved = state.get(prefix + "context")
        if self.config.class_specific and saved is not None and saved.shape[1:] == self.context.shape[1:]:
            self.context.data = self.context.new_empty(saved.shape)
        super()._load_from_state_dict(state, prefix, *rest)
