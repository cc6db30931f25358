"""IVLP: learned tokens in the blocks of both towers, independent of each other (Rasheed et al., CVPR 2023).

    text block l:   [SOS] P_l  words name_c [.] [EOT]    P_0 the context, P_l in its place before block l < J
    image block l:  [class] patches V_l                  V_l in the place of V_{l−1}, l < J
    loss = −log softmax_y( s·cos(f(x), g_c) )

P_0 is `context`, learned vectors that start at the first of the `words`; P_l are `text_taps`, [b, w] each,
and V_l `image_taps`, [k, w] each, from N(0, 0.02²). Behind block J the last tokens stay. With fewer vectors
than words, the words that are left stay as they are between context and name. The settings are those that
MaPLe's and PromptSRC's authors compare with; they train on random crops: `--views` gives some. The variant
`vpt-deep` (Jia et al., ECCV 2022) has tokens in the image tower alone, and the data's sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.learners.method import MethodConfig, setting
from pbprompt.learners.zeroshot import sentence_features
from pbprompt.prompts.rivals.coop import ContextConfig, NameInContext
from pbprompt.registry import register
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.prompts import start_context
from pbprompt.vision.towers.taps import Taps, Tokens, blocks_of


@dataclass(frozen=True, kw_only=True)
class DeepPromptsConfig(ContextConfig):
    """The recipe that these methods share: SGD at 0.0035, batches of 4, 5 epochs, 2 vectors."""

    learning_rate: float = setting(0.0035, "highest learning rate; cosine to zero over the epochs")
    batch_size: int = setting(4, "images per step")
    epochs: int = setting(5, "passes over the training images")
    tokens: int = setting(2, "b, context vectors", least=1)
    depth: int = setting(
        0, "J, blocks with tokens, from the first; 0: as many of its blocks as the authors take", least=0
    )


@dataclass(frozen=True, kw_only=True)
class IVLPConfig(DeepPromptsConfig):
    """The published recipe: SGD at 0.0035, batches of 4, 5 epochs, 2 tokens in every block of both towers."""

    image_tokens: int = setting(2, "k, tokens behind an image's patches", least=1)
    image_alone: bool = setting(False, "no tokens in the text: VPT-deep")


class DeepPrompts(NameInContext):
    """What methods share that have a context before each class name, and tokens inside both towers."""

    takes_weights = True
    tunes_towers = True
    whole: ClassVar[float] = 1.0  # the share of the blocks that a depth of 0 stands for
    config: DeepPromptsConfig

    def __init__(self, config: DeepPromptsConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        words = backbone.tokenizer.encode(config.words)
        if config.words and len(words) < config.tokens:
            raise InputError(
                f"words {config.words!r} take {len(words)} tokens, but tokens is {config.tokens}: give more "
                "words, or none"
            )
        self.fixed = words[config.tokens :]
        start = start_context(backbone, len(words) or config.tokens, config.words)[: config.tokens]
        blocks = (blocks_of(backbone, tower)[0] for tower in ("image", "text"))
        self.reach_in(start, *(config.depth or max(1, round(self.whole * every)) for every in blocks))

    def reach_in(self, start: Float[Tensor, "b w"], image_depth: int, text_depth: int) -> None:
        """Make what is learned, and the taps."""
        raise NotImplementedError


@register("ivlp")
class IVLP(DeepPrompts):
    """Tokens in both towers, each on its own."""

    Config: ClassVar[type[MethodConfig]] = IVLPConfig
    presets = {"published": {"depth": 12}}
    variants = {"vpt-deep": {"image_alone": True, "image_tokens": 8, "learning_rate": 0.0025}}
    paper = "Rasheed et al., CVPR 2023"
    config: IVLPConfig

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        self._sentence = sentence_features(self.given, classes, template) if self.config.image_alone else None

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        return super().class_features(samples, generator) if self._sentence is None else self._sentence[None]

    def prompt_vectors(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s k b w"]:
        found = super().prompt_vectors(samples, generator)
        return found[:, :, :0] if self.config.image_alone else found

    def reach_in(self, start: Float[Tensor, "b w"], image_depth: int, text_depth: int) -> None:
        config, (width, of_text) = self.config, (blocks_of(self.given, one)[1] for one in ("image", "text"))
        self.context = nn.Parameter(start, requires_grad=not config.image_alone)
        image = Taps({block: Tokens(config.image_tokens, width) for block in range(image_depth)})
        text = Taps({block: Tokens(config.tokens, of_text) for block in range(1, text_depth)})
        self.tap(image, None if config.image_alone else text)
