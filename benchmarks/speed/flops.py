"""The fewest floating-point operations of a training step: what no exact implementation can do without.

With w the tower's width, every token that counts costs 24·w² in a block's matrix products (queries, keys
and values 6, output 2, MLP 16); a token that looks at k others costs 4·w·k in attention. The last block needs
keys and values everywhere (4·w²), but its queries, output and MLP at EOT alone (20·w²). Tokens that all
prompts share count once, tokens past EOT not at all. The weights are frozen: the way back to the context
costs a matrix product what it cost forward, and attention twice that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.speed.plain import slots_of
from pbprompt.errors import InputError
from pbprompt.learners.trained import Trained
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.prompts.rivals.plot import PLOT
from pbprompt.prompts.rivals.vpt import VPT
from pbprompt.vision.towers.prompts import Prompt, common_length, named_prompts
from pbprompt.vision.towers.text import TextConfig


@dataclass(frozen=True)
class TextFlops:
    """Operations of one pass through the text tower."""

    products: int  # matrix products with the frozen weights
    attention: int

    @property
    def forward(self) -> int:
        return self.products + self.attention

    @property
    def backward(self) -> int:
        return self.products + 2 * self.attention


def text_flops(prompts: Sequence[Prompt], common_slots: bool, tower: TextConfig, joint: int) -> TextFlops:
    """One context (or one per class, where slots are not common) through all prompts."""
    lead = common_length(prompts, common_slots)
    tokens = lead + sum(len(prompt) - lead for prompt in prompts)
    width, classes = tower.width, len(prompts)
    body = 24 * width**2 * tokens
    last = 4 * width**2 * tokens + 20 * width**2 * classes
    projection = 2 * width * joint * classes
    looks = _looks(0, lead) + sum(_looks(lead, len(prompt)) for prompt in prompts)
    from_eot = sum(len(prompt) for prompt in prompts)
    attention = 4 * width * ((tower.layers - 1) * looks + from_eot)
    return TextFlops((tower.layers - 1) * body + last + projection, attention)


def _looks(first: int, stop: int) -> int:
    """Σ (p + 1) over the positions p from first to stop: what a causal position sees."""
    return (stop * (stop + 1) - first * (first + 1)) // 2


def step_flops(method: Trained, batch: int, patches: int) -> int:
    """Text tower there and back for every context, and the products with the image features likewise."""
    backbone = method.backbone
    slots = slots_of(method)
    prompts = named_prompts(backbone.tokenizer, method.classes, slots)
    sizes = backbone.config.text
    if sizes is None or not sizes.causal:
        raise InputError(f"{backbone.config.name}: operations are counted for causal text towers alone")
    text = text_flops(prompts, not isinstance(method, PBPrompt), sizes, backbone.embed_dim)
    contexts, vectors = _sizes(method, batch, patches)
    return contexts * (text.forward + text.backward) + 2 * 2 * vectors * len(prompts) * backbone.embed_dim


def _sizes(method: Trained, batch: int, patches: int) -> tuple[int, int]:
    """How many contexts go through the tower, and how many image vectors meet each class in all."""
    match method:
        case PBPrompt():
            samples = method.config.train_samples
            return samples, samples * batch * (1 + patches * bool(method.config.ct_weight))
        case PLOT():
            return method.config.prompts, method.config.prompts * batch * patches
        case VPT():
            return method.config.train_samples, method.config.train_samples * batch
        case _:
            return (batch if method.image_conditioned else 1), batch
