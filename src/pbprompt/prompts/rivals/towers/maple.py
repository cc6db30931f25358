"""MaPLe: tokens in the text tower's blocks, the image tower's made of them (Khattak et al., CVPR 2023).

    text block l:   [SOS] P_l  words name_c [.] [EOT]    P_0 the context, P_l in its place before block l < J
    image block l:  [class] patches F_l(P_l)             F_l a linear map, text width → image width
    loss = −log softmax_y( s·cos(f(x), g_c) )

P_0 is `context`, learned vectors that start at the first of the `words`; P_l are `text_taps`, [b, w] each,
from N(0, 0.02²); F_l are `image_taps`, all equal at the start but the first. J is 9 of ViT-B/16's 12 as
published. With fewer vectors than words ("a photo" of "a photo of a"), the words that are left stay as they
are. The authors train on random crops: `--views` gives some.
"""

import copy
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.learners.method import MethodConfig
from pbprompt.prompts.rivals.towers.ivlp import DeepPrompts, DeepPromptsConfig
from pbprompt.registry import register
from pbprompt.vision.towers.taps import Tap, Taps, Tokens, blocks_of


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
    """Coupled tokens in both towers."""

    Config: ClassVar[type[MethodConfig]] = DeepPromptsConfig
    presets = {
        "published": {"depth": 9},
        "transfer": {"depth": 3, "learning_rate": 0.0026, "epochs": 2},  # from ImageNet to other datasets
    }
    paper = "Khattak et al., CVPR 2023"
    whole = 0.75

    def reach_in(self, start: Float[Tensor, "b w"], image_depth: int, text_depth: int) -> None:
        (_, width), (_, of_text) = (blocks_of(self.given, tower) for tower in ("image", "text"))
        depth = min(image_depth, text_depth)
        first = Tokens(len(start), of_text)
        first.values.data = start.clone()
        text = {block: Tokens(len(start), of_text) for block in range(1, depth)}
        image: dict[int, Tap] = {0: Coupled(first, nn.Linear(of_text, width), own=True)}
        map_ = nn.Linear(of_text, width)
        for block, tokens in text.items():
            image[block] = Coupled(tokens, copy.deepcopy(map_), own=False)
        self.tap(Taps(image), Taps(text))

    @property
    def context(self) -> nn.Parameter:  # type: ignore[override]
        return self.image_taps[0].at(0).source.values  # type: ignore[operator]
