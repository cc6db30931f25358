"""Learned tokens in the blocks of both towers: IVLP, MaPLe and PromptSRC.

    text block l:   [SOS] P_l  words name_c [.] [EOT]    P_0 the context, P_l in its place before block l < J
    image block l:  [class] patches V_l                  V_l in the place of V_{l−1}, l < J
    loss = −log softmax_y( s·cos(f(x), g_c) )            f, g: both towers with the tokens

P_0 is `context`, learned vectors that start at the first of the `words`; P_l are `text_taps`, [b, w] each,
and V_l `image_taps`, [k, w] each, from N(0, 0.02²). Behind block J the last tokens stay. With fewer vectors
than words ("a photo" of "a photo of a"), the words that are left stay as they are between context and name.
The authors train on random crops: `--views` gives some.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, MethodConfig, setting
from pbprompt.learners.trained import Terms, cross_entropy_terms
from pbprompt.learners.zeroshot import CLIP_SEVEN, sentence_features
from pbprompt.prompts.rivals.coop import ContextConfig, NameInContext
from pbprompt.registry import register
from pbprompt.vision.similarity import class_logits, unit
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.prompts import start_context
from pbprompt.vision.towers.taps import Tap, Taps, Tokens, blocks_of


@dataclass(frozen=True, kw_only=True)
class DeepPromptsConfig(ContextConfig):
    """The recipe that these methods share: SGD at 0.0035, batches of 4, 5 epochs, 2 vectors."""

    learning_rate: float = setting(0.0035, "highest learning rate; cosine to zero over the epochs")
    batch_size: int = setting(4, "images per step")
    epochs: int = setting(5, "passes over the training images")
    tokens: int = setting(2, "b, context vectors", least=1)
    depth: int = setting(0, "J, blocks with tokens, from the first; 0: the authors' share of them", least=0)


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
    """Tokens in both towers, independent of each other (Rasheed et al., CVPR 2023).

    The settings are those that MaPLe's and PromptSRC's authors compare with. The variant `vpt-deep` (Jia et
    al., ECCV 2022) has tokens in the image tower alone, and the data's sentence.
    """

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
        config, width = self.config, blocks_of(self.given, "image")[1]
        self.context = nn.Parameter(start, requires_grad=not config.image_alone)
        image = Taps({block: Tokens(config.image_tokens, width) for block in range(image_depth)})
        text = Taps({block: Tokens(*start.shape) for block in range(1, text_depth)})
        self.tap(image, None if config.image_alone else text)


class Coupled(Tap):
    """Tokens made of another tower's, by a linear map."""

    def __init__(self, source: Tokens, project: nn.Linear, own: bool) -> None:
        super().__init__()
        self.project, self._source = project, (source,)
        if own:  # no other tap has it, and its values are state
            self.source = source

    def tokens(self) -> Float[Tensor, "k w"]:
        return self.project(self._source[0].values)


@register("maple")
class MaPLe(DeepPrompts):
    """Tokens in the text tower's blocks, and the image tower's made of them (Khattak et al., CVPR 2023).

    V_l = F_l(P_l)    F_l a linear map, text width → image width; all equal at the start but the first

    J is 9 of ViT-B/16's 12 as published.
    """

    Config: ClassVar[type[MethodConfig]] = DeepPromptsConfig
    presets = {
        "published": {"depth": 9},
        "transfer": {"depth": 3, "learning_rate": 0.0026, "epochs": 2},  # from ImageNet to other datasets
    }
    paper = "Khattak et al., CVPR 2023"
    whole = 0.75

    def reach_in(self, start: Float[Tensor, "b w"], image_depth: int, text_depth: int) -> None:
        widths = start.shape[1], blocks_of(self.given, "image")[1]
        first = Tokens(*start.shape)
        first.values.data = start.clone()
        text = {block: Tokens(*start.shape) for block in range(1, min(image_depth, text_depth))}
        image: dict[int, Tap] = {0: Coupled(first, nn.Linear(*widths), own=True)}
        map_ = nn.Linear(*widths)
        for block, tokens in text.items():
            image[block] = Coupled(tokens, copy.deepcopy(map_), own=False)
        self.tap(Taps(image), Taps(text))

    @property
    def context(self) -> nn.Parameter:  # type: ignore[override]
        return self.image_taps[0].at(0).source.values  # type: ignore[operator]


@dataclass(frozen=True, kw_only=True)
class PromptSRCConfig(IVLPConfig):
    """The published recipe for base-to-new: SGD at 0.0025, 20 epochs, 4 tokens in nine of 12 blocks."""

    learning_rate: float = setting(0.0025, "highest learning rate; cosine to zero over the epochs")
    epochs: int = setting(20, "passes over the training images")
    tokens: int = setting(4, "b, context vectors")
    image_tokens: int = setting(4, "k, tokens behind an image's patches")
    text_weight: float = setting(25.0, "λ_t, how firmly class features are held", least=0)
    image_weight: float = setting(10.0, "λ_i, how firmly image features are held", least=0)
    average_at: float = setting(15.0, "μ, the epoch that counts most in what is kept")
    average_within: float = setting(1.0, "σ, how many epochs around it count", least=1e-3)


@register("promptsrc")
class PromptSRC(IVLP):
    """IVLP held near the frozen towers in three ways (Khattak et al., ICCV 2023).

    loss = −log p(y|x) + λ_t·mean|g − g⁰| + λ_i·mean|f − f⁰| + (1/C)·KL[p⁰(·|x) ‖ p(·|x)]
    θ = Σ_e w_e θ_e,   w_e ∝ exp(−(e − μ)²/2σ²)    over the epochs e = 1, 2, …: what is kept in the end

    f, g are of length 1, f⁰ and g⁰ the frozen towers', g⁰ the mean over several sentences: CLIP's for
    ImageNet in the authors' code, here the seven of them that CLIP's authors found enough. p and p⁰ are the
    softmax of s·f·g and of s·f⁰·g⁰ over the C classes.
    """

    Config: ClassVar[type[MethodConfig]] = PromptSRCConfig
    presets = {
        "published": {"depth": 9},
        # from ImageNet to other datasets
        "transfer": {"depth": 3, "average_at": 6.0, "average_within": 10.0},
        "few-shot": {"depth": 9, "epochs": 50, "average_at": 30.0, "average_within": 30.0},
        "few-shot-fine": {"depth": 9, "epochs": 50, "average_at": 45.0, "average_within": 5.0},
    }
    paper = "Khattak et al., ICCV 2023"
    whole = 0.75
    config: PromptSRCConfig
    average: Tensor

    def __init__(self, config: PromptSRCConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.register_buffer("average", torch.zeros(sum(one.numel() for one in self.parameters())))

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        several = [sentence_features(self.given, classes, sentence) for sentence in CLIP_SEVEN]
        self._diverse = torch.stack(several).mean(0)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        assert batch.frozen is not None
        config, scale, images = self.config, self.backbone.logit_scale, batch.images.global_
        features = self.class_features(1, generator)[0]
        logits = class_logits(images, features, scale)
        frozen = class_logits(batch.frozen, self._diverse, scale).log_softmax(-1)
        kl = (frozen.exp() * (frozen - logits.log_softmax(-1))).mean()
        text = (unit(features) - unit(self._diverse)).abs().mean()
        image = (unit(images) - unit(batch.frozen)).abs().mean()
        terms = cross_entropy_terms(logits, batch.labels)
        total = terms["total"] + config.text_weight * text + config.image_weight * image + kl
        return {**terms, "total": total, "text": text, "image": image, "kl": kl}

    @torch.no_grad()
    def end_epoch(self, epoch: int, epochs: int) -> None:
        """Add this epoch's values to the mean, which takes their place after the last one."""
        at, within = self.config.average_at, self.config.average_within
        powers = [-0.5 * ((each + 1 - at) / within) ** 2 for each in range(epochs)]
        weights = [math.exp(power - max(powers)) for power in powers]
        now = torch.cat([one.flatten() for one in self.parameters()])
        self.average += weights[epoch] / sum(weights) * now
        if epoch + 1 == epochs:
            torch.nn.utils.vector_to_parameters(self.average.clone(), self.parameters())
            self.average.zero_()
