"""The text tower, exact and fast: what every method calls to turn prompts into class features.

The plain computation runs every prompt over the tower's whole context length. This one returns the same
features and the same gradients, and leaves out what cannot matter (each saving has a switch):

1. `pack`: the mask is causal, so nothing past EOT is computed. All prompts lie in one packed list of tokens,
   on which the matrix products run at once.
2. `share`: the leading positions that all classes have in common ([SOS], and a context that is the same for
   all classes) are in that list once, and every class attends to them.
3. `eot_only`: the last block is evaluated at EOT alone.
4. `memory_budget`: classes are cut into chunks whose activations fit, recomputed in the backward pass.

A tower that is not causal (SigLIP's) sees the padding behind a prompt, and what comes late changes what came
early: every prompt is then computed over the whole context, padding included, nothing is packed or shared,
and of these savings the last two remain, with the last position in the place of EOT. One that is not causal
and is read at EOT (MobileCLIP's) keeps the last saving alone.

One saving is not exact, and off unless asked for: `rough_training` computes the tower's matrix products in
bfloat16 while training, on a CPU that has instructions for it (`rounding`).

On CUDA the training call is captured once as a CUDA graph (`graph`), since its kernels are short.

What a method does inside the blocks (the backbone's `text_taps`) leaves the savings as they are; only the
hand-written blocks and the graph, which are for frozen weights, are then not used. Where its tokens are
inserted, the blocks below them are computed once.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pbprompt import distributed
from pbprompt.vision.towers import frozen_blocks
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.cuda_graphs import graphed
from pbprompt.vision.towers.layers import Block
from pbprompt.vision.towers.packing import (
    Layout,
    attend_from_eot,
    attend_packed,
    build_layouts,
    count_slots,
    with_slots,
)
from pbprompt.vision.towers.prompts import Prompt, common_length, text_prompts
from pbprompt.vision.towers.rounding import multiplies_bfloat16, rounded
from pbprompt.vision.towers.taps import Tap, Taps

GIB = 1 << 30
GRAPH_AFTER = 3  # calls of one shape before it is worth capturing


class TextEngine:
    """Features of a fixed list of prompts, as a function of the context vectors in their slots.

    `engine(context)` takes [*batch, C or 1, b, w] (b vectors per class, or one set for all), or [b, w],
    and returns [*batch, C, d] (for [b, w]: [C, d]) with gradients to the context. Prompts without slots need
    none.

    Args:
        backbone: the towers, as `load_backbone` gives them.
        prompts: of each class, with as many slots each, such as `named_prompts` writes.
        pack: encode no position behind the end of a prompt.
        share: encode what prompts begin with alike once.
        eot_only: leave out of the last block what is not read.
        graph: record the work on a GPU once, and repeat it.
        memory_budget: bytes that one pass may take.
        rough_training: lower precision while gradients are asked for.

    Example:
        >>> from pbprompt.vision.towers.prompts import named_prompts
        >>> backbone = load_backbone("lite")
        >>> engine = TextEngine(backbone, named_prompts(backbone.tokenizer, ["cat", "dog"], context=4))
        >>> context = torch.zeros(4, backbone.text_width, requires_grad=True)
        >>> features = engine(context)
        >>> features.shape[0], features.requires_grad
        (2, True)
    """

    def __init__(
        self,
        backbone: Backbone,
        prompts: Sequence[Prompt],
        *,
        pack: bool = True,
        share: bool = True,
        eot_only: bool = True,
        graph: bool = True,
        memory_budget: int = 4 * GIB,
        rough_training: bool = False,
    ) -> None:
        self.backbone = backbone
        self.classes = len(prompts)
        self.slots = count_slots(prompts)
        # With several processes each encodes its share of the classes; too few to share, all encode all.
        self._shared_out = distributed.world()[1] > 1 and len(prompts) >= distributed.world()[1]
        own = distributed.own(prompts) if self._shared_out else prompts
        self.prompts = [list(prompt) for prompt in own]
        if not (backbone.textual.causal or backbone.textual.reads_last):
            pack, share, eot_only = False, False, False  # EOT sees what is behind it
        elif not backbone.textual.causal:
            self.prompts = [backbone.tokenizer.padded(prompt) for prompt in self.prompts]
            share = False
        self.taps = backbone.text_taps
        self._first, self._inserted = _insertion(self.taps)
        self.pack, self.share, self.eot_only = pack, share, eot_only
        self.graph = graph and self.taps is None
        self.memory_budget, self.rough_training = memory_budget, rough_training
        self._order = sorted(range(len(self.prompts)), key=lambda c: len(self.prompts[c]))
        self._order_on_device = torch.tensor(self._order, device=backbone.device)
        self._inverse = self._order_on_device.argsort()
        self._layouts = lru_cache(maxsize=4)(self._build_layouts)
        self._calls: Counter[torch.Size] = Counter()
        self._graphs: dict[torch.Size, Callable[[Tensor], Tensor]] = {}
        self._awaiting_backward: set[torch.Size] = set()

    def __call__(self, context: Float[Tensor, "..."] | None = None) -> Float[Tensor, "... c d"]:
        if context is None:
            context = torch.zeros(0, self.backbone.text_width, device=self.backbone.device)
        four = context.reshape(-1, *context.shape[-3:]) if context.ndim > 2 else context[None, None]
        classes, slots, width = four.shape[1:]
        if classes not in (1, self.classes) or (slots, width) != (self.slots, self.backbone.text_width):
            raise ValueError(
                f"context of shape {list(context.shape)} does not fit {self.classes} classes (or 1) × "
                f"{self.slots} slots × width {self.backbone.text_width}"
            )
        four = four.to(self.backbone.textual.token_embedding.weight.dtype)
        if self._shared_out and classes > 1:
            rank, size = distributed.world()
            four = four[:, rank::size]
        features = self._graphed(four) if self.graph and four.is_cuda else self._features(four)
        if self._shared_out:
            features = distributed.gather(features, self.classes, dim=1)
        return features.reshape(*context.shape[:-3], *features.shape[1:])

    def _training(self, context: Float[Tensor, "..."]) -> bool:
        learns = self.taps is not None and any(one.requires_grad for one in self.taps.parameters())
        return torch.is_grad_enabled() and (context.requires_grad or learns)

    def _features(self, context: Float[Tensor, "s k b w"]) -> Float[Tensor, "s c d"]:
        layouts = self._chunks(context)
        # one set of vectors per class, as a view: its gradient is then a plain sum, the same in every run
        context = context.expand(-1, len(self.prompts), -1, -1).flatten(1, 2)
        if len(layouts) > 1 and self._training(context):
            # nothing random in the tower: no generator's state to keep, which a capture would not allow
            again = partial(checkpoint, self._encode, use_reentrant=False, preserve_rng_state=False)
            parts = [again(part, context) for part in layouts]
        else:
            parts = [self._encode(part, context) for part in layouts]
        return _permuted(torch.cat(parts, dim=1), self._inverse, self._order_on_device)

    def _encode(self, layout: Layout, context: Float[Tensor, "s cb w"]) -> Float[Tensor, "s r d"]:
        """Features of one chunk's prompts, in the order of the layout."""
        tower = self.backbone.textual
        x = layout.constant.expand(len(context), *layout.constant.shape)
        if self.slots:
            # positions are in `constant` at slots too, so the vectors are added to them
            vectors = _permuted(context, layout.slot_from, layout.slot_back)
            x = x.index_copy(1, layout.slot_at, vectors + layout.constant[layout.slot_at])
        *body, last = blocks = self._training_blocks if self._training(context) else tower.transformer.blocks
        if self.taps is None and self.eot_only and tower.causal and frozen_blocks.usable(x, blocks):
            return tower.project(frozen_blocks.states_at_eot(x, blocks, layout))
        for number, block in enumerate((body if self.eot_only else blocks)[self._first :], self._first):
            x, tap = self._tapped(number, x, layout)
            attended = attend_packed(block.project(x, tap), layout, block.attn.heads, tower.causal)
            x = block.finish(x, attended, tap)
        if not self.eot_only:
            return tower.project(x.index_select(1, layout.eot))
        x, tap = self._tapped(len(body), x, layout)
        eot = x.index_select(1, layout.eot)
        q, kv = last.project(eot, tap, "q"), last.project(x, tap, "kv")
        attended = attend_from_eot(q, kv, layout, last.attn.heads)
        return tower.project(last.finish(eot, attended, tap))

    def _tapped(
        self, number: int, x: Float[Tensor, "s n w"], layout: Layout
    ) -> tuple[Float[Tensor, "s n w"], Tap | None]:
        """What is done in a block, and its tokens in the prompts' slots."""
        tap = self.taps.at(number) if self.taps is not None else None
        slots, beside = self._inserted or self.slots, number > 0 or self._inserted > 0
        tokens = tap.tokens() if tap is not None and slots and beside else None
        if tokens is None:
            return x, tap
        if len(tokens) != slots:
            raise ValueError(f"block {number} has {len(tokens)} tokens for {slots} slots")
        placed = tokens.to(x.dtype).index_select(0, layout.slot_from % slots)
        return x.index_copy(1, layout.slot_at, placed.expand(len(x), -1, -1)), tap

    @cached_property
    def _training_blocks(self) -> list[Block]:
        blocks = self.backbone.textual.transformer.blocks
        if self.rough_training and multiplies_bfloat16(self.backbone.device):
            return [rounded(block, torch.bfloat16) for block in blocks]
        return blocks

    def _graphed(self, context: Float[Tensor, "s k b w"]) -> Float[Tensor, "s c d"]:
        """Replay the training call as a CUDA graph once a shape has come often enough.

        A graph keeps its activations in one place, so until its backward pass has begun, further calls of
        the same shape run without it.
        """
        captured = (
            context.is_cuda and torch.cuda.is_current_stream_capturing()
        )  # as a whole: prompts/loop/step.py
        if not self._training(context) or captured or len(self._chunks(context)) > 1:
            return self._features(context)
        shape = context.shape
        self._calls[shape] += 1
        if self._calls[shape] <= GRAPH_AFTER or shape in self._awaiting_backward:
            return self._features(context)
        if shape not in self._graphs:
            try:
                self._graphs[shape] = graphed(self._features, context)
            except RuntimeError as error:  # the GPU refuses
                self.graph = False
                why = str(error).partition("\n")[0]
                warnings.warn(f"text features are computed without a CUDA graph, slower: {why}", stacklevel=2)
                return self._features(context)
        features = self._graphs[shape](context)
        self._awaiting_backward.add(shape)
        features.register_hook(lambda gradient: self._awaiting_backward.discard(shape))
        return features

    def _chunks(self, context: Float[Tensor, "s k b w"]) -> list[Layout]:
        """Layouts whose activations fit the memory budget, one after the other."""
        tower = self.backbone.text_sizes
        # in widths of activation a token: those kept for the backward pass, or those alive while a block runs
        kept = 14 * tower.layers if self._training(context) else 24
        a_token = kept * tower.width * context.element_size() * len(context)
        return self._layouts(context.shape[1] == 1, max(1, self.memory_budget // a_token))

    def _build_layouts(self, common: bool, chunk_tokens: int) -> list[Layout]:
        layouts = build_layouts(
            self.backbone,
            self.prompts,
            self._order,
            lead=common_length(self.prompts, common) if self.share else 0,
            padded_to=None if self.pack else self.backbone.context_length,
            chunk_tokens=chunk_tokens,
        )
        return [self._at_insertion(layout) for layout in layouts] if self._inserted else layouts

    @torch.no_grad()
    def _at_insertion(self, layout: Layout) -> Layout:
        """The states before the block where tokens come in, and room for these."""
        x = layout.constant.unsqueeze(0)
        tower = self.backbone.textual
        for block in tower.transformer.blocks[: self._first]:
            x = block.finish(x, attend_packed(block.project(x), layout, block.attn.heads, tower.causal))
        return with_slots(layout, x.squeeze(0), self._inserted)


def _insertion(taps: Taps | None) -> tuple[int, int]:
    """The block before which tokens are inserted, and how many; none: 0, 0."""
    if taps is None or not taps.inserted:
        return 0, 0
    first = taps.numbers[0]
    tokens = cast(Tap, taps.at(first)).tokens()
    return (0, 0) if tokens is None else (first, len(tokens))


def _permuted(
    x: Float[Tensor, "s n w"], order: Int[Tensor, " k"], inverse: Int[Tensor, " n"] | None
) -> Float[Tensor, "s k w"]:
    """x[:, order]; with the inverse of a permutation the gradient is picked up, not scattered."""
    if inverse is None:
        return x.index_select(1, order)
    return _Permuted.apply(x, order, inverse)  # type: ignore[no-untyped-call]


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(1, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient.index_select(1, inverse), None, None


@torch.no_grad()
def encode_texts(backbone: Backbone, texts: Sequence[str]) -> Float[Tensor, "n d"]:
    """Text features of whole sentences, not normalised; of several backbones (`several.py`) side by side,
    each as long as its logit scale, and zero where it reads no text."""
    if len(backbone.towers) == 1:
        return TextEngine(backbone, text_prompts(backbone.tokenizer, texts))()
    parts = [
        tower.logit_scale * F.normalize(encode_texts(tower, texts).float(), dim=-1)
        if tower.reads_text
        else torch.zeros(len(texts), tower.embed_dim, device=tower.device)
        for tower in backbone.towers
    ]
    return torch.cat(parts, dim=1)
