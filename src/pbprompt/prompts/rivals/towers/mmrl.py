"""MMRL: tokens of a space that both towers share, read beside the class token (Guo & Gu, CVPR 2025).

    text block l:   [SOS] F_l(R) sentence with name_c [EOT]     F_l, V_l linear maps; the last J blocks alone
    image block l:  [class] patches V_l(R)
    f = P⁰ ln(class),   r = P · mean ln(tokens)                 P learned beside the tower's own P⁰
    loss = −α log p_f(y|x) − (1−α) log p_r(y|x) + λ(1 − cos(f, f⁰)) + λ(1 − mean_c cos(g_c, g_c⁰))
    logit_c = s·(α cos(f, g_c) + (1−α) cos(r, g_c));   of a new name s·cos(f, g_c)

R is `source`, k representation tokens of width e, from N(0, 0.02²); F_l and V_l are `text_taps` and
`image_taps`, those of a tower all equal at the start; P is `projection`, from N(0, 1/width); p_f and p_r are
the softmax of s·cos(f, g) and of s·cos(r, g); f⁰ and g⁰ the frozen towers'. J is 7 of ViT-B/16's 12 as
published. The authors choose λ for each dataset, from 0.01 (EuroSAT, with e = 2048) to 7 (Cars), and train on
random crops: `--set weight=…` and `--views`. They ask about trained names or new ones alone.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.learners.memory import KnowsClasses
from pbprompt.learners.method import Batch, MethodConfig, setting
from pbprompt.learners.trained import Terms, Trained, accuracy
from pbprompt.learners.zeroshot import sentence_features, sentences
from pbprompt.prompts.rivals.towers.ivlp import Coupled
from pbprompt.registry import register
from pbprompt.vision.similarity import class_logits, unit
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.layers import BlockTower
from pbprompt.vision.towers.prompts import text_prompts
from pbprompt.vision.towers.taps import Tap, Taps, Tokens, blocks_of, last_blocks


@dataclass(frozen=True, kw_only=True)
class MMRLConfig(MethodConfig):
    """The published recipe for base-to-new: AdamW at 0.001, batches of 4, 10 epochs, 5 tokens."""

    optimiser: Literal["sgd", "adam", "adamw"] = setting("adamw", "sgd, adam or adamw")
    learning_rate: float = setting(0.001, "highest learning rate; cosine to zero over the epochs")
    batch_size: int = setting(4, "images per step")
    epochs: int = setting(10, "passes over the training images")
    tokens: int = setting(5, "k, representation tokens", least=1)
    token_width: int = setting(512, "e, width of the space that they are in", least=1)
    last: int = setting(0, "J, how many of the last blocks have tokens; 0: seven twelfths of them", least=0)
    alpha: float = setting(0.7, "α, what the class token counts beside the tokens", least=0, most=1)
    weight: float = setting(1.0, "λ, how firmly both towers' features are held at the frozen ones", least=0)


class Representations(Taps):
    """Taps whose tokens are read in the end, by a projection of their own."""

    vectors = 2

    def __init__(self, layers: Mapping[int, Tap], width: int, joint: int) -> None:
        super().__init__(layers, inserted=True)
        self.projection = nn.Parameter(width**-0.5 * torch.randn(width, joint))

    def leave(
        self, tower: BlockTower, tokens: Float[Tensor, "b l w"], own: int
    ) -> tuple[Float[Tensor, "b d2"], Float[Tensor, "b m d"]]:
        image, patches = tower.leave(tokens[:, :own])
        mean = tower.get_submodule("ln_post")(tokens[:, own:]).mean(1)
        return torch.cat([image, mean @ self.projection.to(mean.dtype)], dim=-1), patches


@register("mmrl")
class MMRL(Trained, KnowsClasses):
    """Representation tokens in the upper blocks of both towers."""

    Config = MMRLConfig
    presets = {
        "published": {"last": 7},
        "few-shot": {"last": 7, "batch_size": 32, "epochs": 50, "weight": 0.5},
        "imagenet": {"last": 7, "batch_size": 32, "epochs": 5, "weight": 0.5},
        "transfer": {"last": 7, "batch_size": 32, "epochs": 1, "warmup_epochs": 0, "weight": 0.5},
    }
    paper = "Guo & Gu, CVPR 2025"
    takes_weights = True
    tunes_towers = True
    config: MMRLConfig

    def __init__(self, config: MMRLConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        source = Tokens(config.tokens, config.token_width)
        _, width = blocks_of(backbone, "image")
        image = Representations(self._coupled(source, "image"), width, backbone.embed_dim)
        self.tap(image, Taps(self._coupled(source, "text"), inserted=True))

    def _coupled(self, source: Tokens, tower: str) -> dict[int, Tap]:
        """A tap for each of the upper blocks; the first of the image tower keeps the tokens."""
        blocks, width = blocks_of(self.given, tower)
        upper = last_blocks(self.given, tower, self.config.last or max(1, round(7 / 12 * blocks)))
        map_ = nn.Linear(self.config.token_width, width)
        return {
            block: Coupled(source, copy.deepcopy(map_), own=tower == "image" and block == upper[0])
            for block in upper
        }

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        texts = text_prompts(self.backbone.tokenizer, sentences(classes, template))
        self._engine = TextEngine(self.backbone, texts)
        self._sentence = sentence_features(self.given, classes, template)

    def finish(self) -> None:
        self.remember(self.classes)

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d2"]:
        """Of each class α_c·g_c, for the class token, and (1 − α_c)·g_c, for the tokens."""
        texts = unit(self._engine())
        new = torch.tensor([label < 0 for label in self.labels_of_classes()], device=texts.device)
        own = texts.new_full((len(texts), 1), self.config.alpha).masked_fill(new.unsqueeze(1), 1.0)
        return torch.cat([own * texts, (1 - own) * texts], dim=-1).unsqueeze(0)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c d2"]) -> Float[Tensor, "s b c"]:
        both = torch.cat([unit(part) for part in images.global_.chunk(2, dim=-1)], dim=-1)
        return self.backbone.logit_scale * torch.einsum("bd,scd->sbc", both, features.to(both.dtype))

    def prompts_of(self, features: Float[Tensor, "s c d2"]) -> Float[Tensor, "s c d"]:
        return torch.stack(features.chunk(2, dim=-1)).sum(0)

    def directions(self, features: Float[Tensor, "s c d2"]) -> Float[Tensor, "s c d"]:
        """Those of the class token."""
        return self.backbone.logit_scale * features.chunk(2, dim=-1)[0]

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        assert batch.frozen is not None
        alpha, texts, labels = self.config.alpha, self._engine(), batch.labels
        image, tokens = batch.images.global_.chunk(2, dim=-1)
        by_class, by_tokens = (class_logits(one, texts, self.backbone.logit_scale) for one in (image, tokens))
        nll = alpha * F.cross_entropy(by_class, labels) + (1 - alpha) * F.cross_entropy(by_tokens, labels)
        held = ((unit(image), unit(batch.frozen)), (unit(texts), unit(self._sentence)))
        apart = sum((1 - (ours * frozen).sum(-1).mean() for ours, frozen in held), start=nll.new_zeros(()))
        right = accuracy(alpha * by_class + (1 - alpha) * by_tokens, labels)
        return {"total": nll + self.config.weight * apart, "nll": nll, "apart": apart, "accuracy": right}
