"""TaskRes: a learned residual on the text feature of every class (Yu et al., CVPR 2023).

    p(y = c | x) = softmax_c( s·cos(f(x), t_c + α·r_c) )

| symbol | name here   | meaning                                                            |
|--------|-------------|--------------------------------------------------------------------|
| t_c    | `_text`     | the sentence's text feature, not normalised                        |
| r_c    | `residuals` | learned, [c, d], from 0                                            |
| α      | `alpha`     | how far the residual counts; published 0.5, but 1 on Flowers102    |

This is the regular TaskRes; the enhanced one starts from a text projection that was tuned before. A name
without images has no residual: it is its sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pbprompt.clip.backbone import Backbone
from pbprompt.methods.base import MethodConfig, setting
from pbprompt.methods.residual import TextResidual
from pbprompt.registry import register


@dataclass(frozen=True, kw_only=True)
class TaskResConfig(MethodConfig):
    """The published recipe: Adam at 2e-3 (2e-4 on ImageNet), batches of 256, 100 or 200 epochs by shots."""

    optimiser: Literal["sgd", "adam", "adamw"] = setting("adam", "sgd (momentum 0.9), adam or adamw")
    batch_size: int = setting(256, "images per step")
    alpha: float = setting(0.5, "α, scale of the residual")


@register("taskres")
class TaskRes(TextResidual):
    """A residual per class, tuned by cross-entropy."""

    Config = TaskResConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "flowers": {"alpha": 1.0},
        "imagenet": {"learning_rate": 2e-4},
    }
    takes_weights = True
    paper = "Yu et al., CVPR 2023"
    config: TaskResConfig

    def __init__(self, config: TaskResConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.residual_scale = config.alpha

    def epochs_for(self, shots: int) -> int:
        return 100 if shots <= 4 else 200
