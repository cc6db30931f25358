"""CLIP-LoRA: low-rank updates of the attention matrices of both towers (Zanella & Ben Ayed, CVPRW 2024).

    W x → W x + (α/√r)·B A x       of q, k and v in every block; A [r, w] random, B [w, r] zero at the start
    g_c = text tower(sentence with name_c)
    loss = −log softmax_y( s·cos(f(x), g_c) )

f and g are both towers with the updates, or one of them (`towers`).

The defaults are the authors': 500 steps a shot, AdamW, dropout before A. Their rate ends at 1e-6, ours at 0.
They train on random crops: `--views` gives some. What is exported has the updates in its weights; the towers
themselves can be exported so too (`pbprompt export model/ --out towers.safetensors`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.learners.method import MethodConfig, setting
from pbprompt.learners.trained import Trained
from pbprompt.learners.zeroshot import sentences
from pbprompt.registry import register
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.prompts import text_prompts
from pbprompt.vision.towers.taps import low_rank_taps


@dataclass(frozen=True, kw_only=True)
class CLIPLoRAConfig(MethodConfig):
    """The published recipe: AdamW at 2e-4, batches of 32, 500 steps a shot, rank 2 on q, k and v."""

    optimiser: Literal["sgd", "adam", "adamw"] = setting("adamw", "sgd, adam or adamw")
    learning_rate: float = setting(2e-4, "highest learning rate; cosine to zero over the steps")
    weight_decay: float = setting(1e-2, "weight decay of the optimiser")
    warmup_epochs: int = setting(0, "first epochs at a constant learning rate of 1e-5")
    anneal: Literal["epoch", "step"] = setting("step", "how often the learning rate falls")
    towers: Literal["both", "image", "text"] = setting("both", "which towers learn: both, image or text")
    rank: int = setting(2, "r, rank of the updates", least=1)
    alpha: float = setting(1.0, "α, their scale, divided by √r")
    parts: str = setting("qkv", "which matrices are updated: some of q, k, v and o (the output)")
    last: int = setting(0, "how many of the last blocks are updated; 0: all", least=0)
    dropout: float = setting(0.25, "share of A's input left out while training", least=0, most=0.99)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parts or set(self.parts) - set("qkvo") or len(set(self.parts)) < len(self.parts):
            raise InputError(f"setting 'parts' is {self.parts!r}: give some of q, k, v and o, such as qkv")


@register("clip-lora")
class CLIPLoRA(Trained):
    """A sentence for each class, and towers that learn a little."""

    Config = CLIPLoRAConfig
    presets = {"published": {}}
    variants = {"image": {"towers": "image"}, "text": {"towers": "text"}}
    paper = "Zanella & Ben Ayed, CVPR Workshops 2024"
    takes_weights = True
    tunes_towers = True
    config: CLIPLoRAConfig

    def __init__(self, config: CLIPLoRAConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        taps = partial(
            low_rank_taps, backbone, rank=config.rank, scale=config.alpha / config.rank**0.5,
            parts=config.parts, last=config.last, dropout=config.dropout,
        )  # fmt: skip
        image, text = config.towers in ("image", "both"), config.towers in ("text", "both")
        self.tap(taps("image") if image else None, taps("text") if text else None)

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        texts = text_prompts(self.backbone.tokenizer, sentences(classes, template))
        self._engine = TextEngine(self.backbone, texts)

    def budget_for(self, shots: int) -> int:
        return 500 * max(1, shots)

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        return self._engine().unsqueeze(0)
