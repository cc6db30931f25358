"""What a method does inside a tower's blocks, and the backbone that a tower so tapped makes.

    x ← [x, tokens]                          image: behind the patches; text: in the prompts' slots
    q, k, v ← projected("qkv", W ln_1(x))    low-rank updates, and those of the output ("o")
    x ← after(x + attention + mlp)           adapters

A tap is what happens in one block, `Taps` those of one tower. Nothing before the first touched block ever
changes: the states there are encoded once and kept like features (`Stem`), and what is trained goes on from
them (`TappedTower.finish`). `Tapped` is a backbone again, with a fingerprint of its own, which a feature
store, a server, a batch, a heat map or an export takes as any other.
"""

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pbprompt.errors import InputError
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.layers import Block, BlockTower, Seen

MEMORY = 4 << 30  # bytes of activations that images going through at once may leave for the way back


class Tap(nn.Module):
    """What is done in one block; a hook that is not written changes nothing."""

    def tokens(self) -> Float[Tensor, "k w"] | None:
        """Tokens beside the tower's own, until a later block has others; in the text's first block they are
        the context itself, which the engine is called with, unless they are `inserted`."""
        return None

    def projected(self, parts: str, y: Float[Tensor, "*n k"], x: Float[Tensor, "*n w"]) -> Tensor:
        """What becomes of y = W x + b; parts: the matrices side by side in W, of q, k, v and o."""
        return y

    def after(self, x: Float[Tensor, "*n w"]) -> Float[Tensor, "*n w"]:
        """What becomes of the block's states, each position by itself."""
        return x


class LowRank(Tap):
    """W x + s·B(A x) of some of q, k, v and o; A starts at random, B at zero (Hu et al., ICLR 2022).

    `dropout` of x, separately for each matrix, while there is `noise`: a seed, so that what is computed again
    on the way back is the same.
    """

    def __init__(self, width: int, rank: int, scale: float, parts: str = "qkv", dropout: float = 0.0) -> None:
        super().__init__()
        self.parts, self.scale, self.dropout = parts, scale, dropout
        self.down = nn.Parameter((2 * torch.rand(len(parts), rank, width) - 1) * width**-0.5)
        self.up = nn.Parameter(torch.zeros(len(parts), width, rank))
        self.noise: int | None = None

    def projected(self, parts: str, y: Float[Tensor, "*n k"], x: Float[Tensor, "*n w"]) -> Tensor:
        pieces = y.chunk(len(parts), dim=-1)
        return torch.cat([self._one(part, own, x) for part, own in zip(parts, pieces, strict=True)], dim=-1)

    def _one(self, part: str, y: Float[Tensor, "*n w"], x: Float[Tensor, "*n w"]) -> Float[Tensor, "*n w"]:
        if part not in self.parts:
            return y
        down, up = self.down[self.parts.index(part)], self.up[self.parts.index(part)]
        x = x.to(torch.promote_types(x.dtype, down.dtype))
        if self.noise is not None and self.dropout:
            draws = torch.Generator(x.device).manual_seed(self.noise + self.parts.index(part))
            kept = torch.rand(x.shape, generator=draws, device=x.device) >= self.dropout
            x = x * kept / (1 - self.dropout)
        return y + (self.scale * (x @ down.T.to(x.dtype)) @ up.T.to(x.dtype)).to(y.dtype)

    @torch.no_grad()
    def merge(self, block: Block) -> None:
        """Change the block's weights so that it does the same by itself."""
        width = self.down.shape[-1]
        for part, down, up in zip(self.parts, self.down, self.up, strict=True):
            at = "qkv".find(part)
            weight = block.attn.in_proj_weight[at * width : (at + 1) * width]
            if at < 0:
                weight = block.attn.out_proj.weight
            weight += (self.scale * up @ down).to(weight.dtype)


class Tokens(Tap):
    """Learned tokens, N(0, 0.02²) at the start."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.values = nn.Parameter(0.02 * torch.randn(count, width))

    def tokens(self) -> Float[Tensor, "k w"]:
        return self.values


class Taps(nn.Module):
    """Those of one tower, by the number of their block, from 0.

    `inserted`: tokens come in where they are touched first and not before the blocks. Those of the text are
    behind the first position, and the prompts have no slots for them; an image's go through no norm before.
    """

    vectors = 1  # in the joint space, that `leave` has of an image

    def __init__(self, layers: Mapping[int, Tap], *, inserted: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(layer): tap for layer, tap in layers.items()})
        self.inserted = inserted

    def leave(self, tower: BlockTower, tokens: Float[Tensor, "b l w"], own: int) -> Seen:
        """What is seen in the end, by the tower's `own` tokens and perhaps by those behind them."""
        return tower.leave(tokens[:, :own])

    @property
    def numbers(self) -> list[int]:
        return sorted(map(int, self.layers))

    def merge(self, stack: Sequence[Block]) -> None:
        for number in self.numbers:
            cast(LowRank, self.at(number)).merge(stack[number])

    def at(self, layer: int) -> Tap | None:
        return cast(Tap, self.layers[str(layer)]) if str(layer) in self.layers else None


class TappedTower(nn.Module):
    """An image tower with taps. Of several members the image's vectors are side by side, and the patches are
    those of the first; a member without taps is the tower as it was."""

    def __init__(self, tower: BlockTower, members: Sequence[Taps]) -> None:
        super().__init__()
        self.tower, self.members = tower, cast(Sequence[Taps], nn.ModuleList(members))
        self.first = min(number for taps in members for number in taps.numbers)

    def start(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b l k"]:
        """The states before the first touched block."""
        return self.tower.through(self.tower.enter(x), stop=self.first)

    def finish(self, states: Float[Tensor, "b l k"], frozen: Float[Tensor, "b e"] | None = None) -> Seen:
        """From the states on. `frozen`: what the tower without taps says of the images, where that is known.

        While learning, many images go through in parts, whose activations are computed again on the way back.
        """
        at_once = max(1, MEMORY // (self._kept * states.shape[1:].numel() * states.element_size()))
        if not torch.is_grad_enabled() or states.shape[0] <= at_once:
            return self._finish(states, frozen)
        again = partial(checkpoint, self._finish, use_reentrant=False, preserve_rng_state=False)
        parts = states.split(at_once)
        known = [None] * len(parts) if frozen is None else frozen.split(at_once)
        seen = [again(some, own) for some, own in zip(parts, known, strict=True)]
        images, patches = (torch.cat(part) for part in zip(*seen, strict=True))
        return images, patches

    @property
    def noisy(self) -> bool:
        """Whether there is dropout inside at present."""
        return any(tap.dropout and tap.noise is not None for tap in _low_rank(self))

    @property
    def _kept(self) -> int:
        """Widths of activation that each token leaves for the way back."""
        return 14 * (len(self.tower.stack) - self.first) * sum(1 for taps in self.members if taps.numbers)

    def _finish(self, states: Float[Tensor, "b l k"], frozen: Float[Tensor, "b e"] | None) -> Seen:
        images, patches = [], []
        for taps in self.members:
            if frozen is not None and not taps.numbers:
                images.append(frozen.to(states.dtype))
            else:
                tokens = self.tower.through(states, taps, self.first)
                image, own = taps.leave(self.tower, tokens, states.shape[1])
                images.append(image)
                patches.append(own)
        return (torch.cat(images, dim=-1) if len(images) > 1 else images[0]), patches[0]

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Seen:
        return self.finish(self.start(x))


class _Derived(Backbone):
    """A backbone made of another one's towers."""

    def __init__(self, base: Backbone, visual: nn.Module) -> None:
        nn.Module.__init__(self)
        own = ("_modules", "_parameters", "_buffers")
        self.__dict__.update({name: value for name, value in vars(base).items() if name not in own})
        self._base, self.visual = (base,), visual  # a tuple: its towers are here already
        if base.reads_text:
            self.textual = base.textual

    @property
    def base(self) -> Backbone:
        return self._base[0]


class Stem(_Derived):
    """A tapped tower up to its first touched block: of an image, the frozen vector and the states there."""

    def __init__(self, base: Backbone, tapped: TappedTower) -> None:
        super().__init__(base, tapped)
        size = base.preprocess.size
        with torch.no_grad():
            states = tapped.tower.enter(torch.zeros(1, 3, size, size, dtype=base.dtype, device=base.device))
        self.grid, self.patch_width = (states.shape[1], 1), states.shape[2]
        self.fingerprint = f"{base.fingerprint}-before-block-{tapped.first}"

    def image(self, x: Float[Tensor, "b 3 h w"]) -> Encoded:
        tapped = cast(TappedTower, self.visual)
        states = tapped.start(x.to(self.dtype))
        return Encoded(tapped.tower.leave(tapped.tower.through(states, start=tapped.first))[0], states)


class Tapped(_Derived):
    """A backbone with taps in its image tower (of one or several members), its text tower or both."""

    def __init__(self, base: Backbone, image: Sequence[Taps] = (), text: Taps | None = None) -> None:
        if isinstance(base, Tapped):
            raise InputError(f"{base.config.name}'s towers are tuned already: give the frozen ones")
        for tower, members in (("image", image), ("text", () if text is None else (text,))):
            for number in (number for taps in members for number in taps.numbers):
                if not 0 <= number < (blocks := blocks_of(base, tower)[0]):
                    raise InputError(
                        f"block {number} does not exist: {base.config.name}'s {tower} tower has {blocks} "
                        f"blocks, 0 to {blocks - 1}"
                    )
        super().__init__(base, TappedTower(cast(BlockTower, base.visual), image) if image else base.visual)
        self.embed_dim = base.embed_dim * (sum(taps.vectors for taps in image) or 1)
        self.text_taps = text

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """Of the frozen towers and of what the taps are at present."""
        own = hashlib.sha256(self.base.fingerprint.encode())
        for name, value in self._taps().state_dict().items():
            own.update(name.encode() + value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return own.hexdigest()

    def _taps(self) -> nn.ModuleList:
        image = list(self.visual.members) if isinstance(self.visual, TappedTower) else []
        return nn.ModuleList([*image, *([self.text_taps] if self.text_taps is not None else [])])

    @property
    def stem(self) -> Stem:
        """What is encoded once for training."""
        assert isinstance(self.visual, TappedTower)
        return Stem(self.base, self.visual)

    @contextmanager
    def noisy(self, seed: int) -> Iterator[None]:
        """With dropout inside."""
        try:
            for place, tap in enumerate(_low_rank(self._taps())):
                tap.noise = (seed + len("qkvo") * place) % 2**62
            yield
        finally:
            for tap in _low_rank(self._taps()):
                tap.noise = None

    @property
    def mergeable(self) -> bool:
        """Whether all that is done inside is low-rank updates of one tower's weights."""
        taps = [tap for one in self._taps() for tap in cast(Taps, one).layers.values()]
        return self.embed_dim == self.base.embed_dim and all(isinstance(tap, LowRank) for tap in taps)

    def merged(self) -> Backbone:
        """The same towers, with the updates in their weights."""
        whole = copy.deepcopy(self.base)
        if isinstance(self.visual, TappedTower):
            self.visual.members[0].merge(cast(BlockTower, whole.visual).stack)
        if self.text_taps is not None:
            self.text_taps.merge(whole.textual.transformer.blocks)
        whole.fingerprint = self.fingerprint
        return whole


def _low_rank(module: nn.Module) -> Iterator[LowRank]:
    return (part for part in module.modules() if isinstance(part, LowRank))


def blocks_of(backbone: Backbone, tower: str) -> tuple[int, int]:
    """How many blocks a tower has, "image" or "text", and their width; refused where it has none."""
    if tower == "text":
        return backbone.text_sizes.layers, backbone.text_sizes.width
    if not isinstance(backbone.visual, BlockTower):
        raise InputError(
            f"{backbone.config.name}'s image tower has no transformer blocks to tune: use a backbone that "
            "is a vision transformer, such as lite-vit"
        )
    stack = backbone.visual.stack
    return len(stack), stack[0].attn.out_proj.weight.shape[0]


def last_blocks(backbone: Backbone, tower: str, last: int) -> range:
    """The numbers of a tower's last blocks, so many as the setting `last` says; 0: of all."""
    blocks, _ = blocks_of(backbone, tower)
    if last > blocks:
        raise InputError(
            f"setting 'last' is {last}: {backbone.config.name}'s {tower} tower has {blocks} blocks"
        )
    return range(blocks - last if last else 0, blocks)


def low_rank_taps(
    backbone: Backbone, tower: Literal["image", "text"], *, rank: int, scale: float, parts: str = "qkv",
    last: int = 0, dropout: float = 0.0,
) -> Taps:  # fmt: skip
    """Updates of all blocks of a tower, or of the last few."""
    _, width = blocks_of(backbone, tower)
    touched = last_blocks(backbone, tower, last)
    return Taps({number: LowRank(width, rank, scale, parts, dropout) for number in touched})
