"""Vision transformers: CLIP's, and what other families make of it. Tensors have names in OpenAI's manner.

| family  | before the patches        | positions          | an image is                   |
|---------|---------------------------|--------------------|-------------------------------|
| CLIP    | class                     | learned            | ln(class)·W                   |
| SigLIP  |                           | learned            | what a learned query attends  |
| PE-Core | class, not in the largest | learned and rotary | that, projected               |
| EVA-02  | class                     | learned and rotary | ln(class)·W                   |
| DINOv2  | class, registers          | learned            | ln(class)                     |
| DINOv3  | class, registers          | rotary             | ln(class)                     |

The text towers are CLIP's and SigLIP's (`text`); DINO's image towers have none. Where a family defines no
patches in the joint space, they are ours: each is what the image would be if it were that patch alone.

A query or key of a token at (p, q) is turned in each pair of its channels: the first half of the pairs by
p·θ_k, the second by q·θ_k. A token at (0, 0), such as the class token, is left as it is.

| symbol | EVA-02 and PE-Core                    | DINOv3                                 |
|--------|---------------------------------------|----------------------------------------|
| pair   | two channels side by side             | a channel and that half a head further |
| θ_k    | 10000^(−k/K), K a quarter of a head   | 2π·θ^(−k/K); θ is `rope_theta`         |
| (p, q) | of a patch in the grid                | of a patch's centre, in [−1, 1]        |
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.vision.towers.layers import (
    CLIP_EPS,
    FINE_EPS,
    Attention,
    Block,
    BlockTower,
    Mlp,
    PatchConfig,
    Transformer,
    merge_heads,
    split_heads,
)

ROTARY_BASE = 10000.0
EVA_SIDE = 16  # patches: the places of a finer or coarser grid are stretched to this one
PERCEPTION_POOL_HEADS = 8


@dataclass(frozen=True)
class VitConfig(PatchConfig):
    """Sizes of CLIP's image tower."""

    def build(self, embed_dim: int, activation: str) -> nn.Module:
        return VisionTransformer(self, embed_dim, activation)


class VisionTransformer(BlockTower):
    """CLIP's. The final norm and the projection, which CLIP applies to the class token alone, are applied to
    every token: that puts the patches into the joint space."""

    def __init__(self, config: PatchConfig, embed_dim: int, activation: str) -> None:
        super().__init__(config, bias=False)
        self.ln_pre = nn.LayerNorm(config.width)
        self.transformer = Transformer(config, activation)
        self.ln_post = nn.LayerNorm(config.width)
        self.proj = nn.Parameter(torch.empty(config.width, embed_dim))

    def joint(self, normed: Float[Tensor, "b l w"]) -> Float[Tensor, "b l d"]:
        return normed @ self.proj


class AttentionPool(nn.Module):
    """f = m + mlp(ln(m)), m = out(attention(probe; patches)), the probe a learned query.

    Row 0 is the image. Row 1 + i is the image that the pool would give if token i were all it saw: the value
    of token i through the output and the MLP.
    """

    def __init__(self, width: int, heads: int, hidden: int | None, activation: str, eps: float) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.attn = Attention(width, heads)
        self.ln_1 = nn.LayerNorm(width, eps)
        self.mlp = Mlp(width, activation, hidden)

    def forward(self, x: Float[Tensor, "b m w"]) -> Float[Tensor, "b n w"]:
        weight, bias, width = self.attn.in_proj_weight, self.attn.in_proj_bias, x.shape[-1]
        q = F.linear(self.probe, weight[:width], bias[:width]).expand(x.shape[0], 1, -1)
        k, v = F.linear(x, weight[width:], bias[width:]).chunk(2, dim=-1)
        queries, keys, values = (split_heads(part, self.attn.heads) for part in (q, k, v))
        seen = F.scaled_dot_product_attention(queries, keys, values)
        pooled = self.attn.out_proj(torch.cat([merge_heads(seen), v], dim=1))
        return pooled + self.mlp(self.ln_1(pooled))


@dataclass(frozen=True)
class SiglipVisionConfig(PatchConfig):
    """Sizes of SigLIP's image tower, or SigLIP 2's of a fixed resolution."""

    def build(self, embed_dim: int, activation: str) -> nn.Module:
        return SiglipTower(self, activation)


class SiglipTower(BlockTower):
    """Pooled by attention. Logits are exp(s)·cos(image, text) + b: the bias b is for the sigmoid reading and
    leaves a softmax as it is."""

    def __init__(self, config: SiglipVisionConfig, activation: str) -> None:
        super().__init__(config, class_token=False)
        width = config.width
        self.transformer = Transformer(config, activation, FINE_EPS)
        self.ln_post = nn.LayerNorm(width, FINE_EPS)
        self.pool = AttentionPool(width, config.heads, config.hidden, activation, FINE_EPS)

    def joint(self, normed: Float[Tensor, "b l w"]) -> Float[Tensor, "b n d"]:
        return self.pool(normed)


@dataclass(frozen=True)
class PerceptionConfig(PatchConfig):
    """Sizes of PE-Core's image tower (Perception Encoder); `pool_hidden` is inside its pool's MLP."""

    pool_hidden: int | None = None
    class_token: bool = True

    def build(self, embed_dim: int, activation: str) -> nn.Module:
        return PerceptionTower(self, embed_dim, activation)


class PerceptionTower(BlockTower):
    """CLIP's with turned queries and keys, pooled as SigLIP's, and projected."""

    def __init__(self, config: PerceptionConfig, embed_dim: int, activation: str) -> None:
        super().__init__(config, bias=False, class_token=config.class_token)
        width = config.width
        self.before = 1 + config.class_token
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = Transformer(config, activation)
        self.ln_post = nn.LayerNorm(width)
        self.attn_pool = AttentionPool(width, PERCEPTION_POOL_HEADS, config.pool_hidden, activation, CLIP_EPS)
        self.head = nn.Linear(width, embed_dim)
        places = _places(config).flip(-1) + config.class_token  # column first; the class token is at (0, 0)
        self.turns = _turns(places, _speeds(config), config.class_token, self.halves)

    def joint(self, normed: Float[Tensor, "b l w"]) -> Float[Tensor, "b n d"]:
        return self.head(self.attn_pool(normed))


@dataclass(frozen=True)
class EvaConfig(PatchConfig):
    """Sizes of EVA-02-CLIP's image tower (sizes B and L)."""

    def build(self, embed_dim: int, activation: str) -> nn.Module:
        return EvaTower(self, embed_dim)


class EvaMlp(nn.Module):
    """proj(ln(silu(gate(x)) ∘ up(x)))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden)
        self.up = nn.Linear(width, hidden)
        self.ln_inner = nn.LayerNorm(hidden, FINE_EPS)
        self.proj = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "n l w"]) -> Float[Tensor, "n l w"]:
        return self.proj(self.ln_inner(F.silu(self.gate(x)) * self.up(x)))


class EvaTower(BlockTower):
    """CLIP's with turned queries and keys, one more norm in each attention, and gated MLPs."""

    def __init__(self, config: EvaConfig, embed_dim: int) -> None:
        super().__init__(config)
        width = config.width
        self.blocks = nn.ModuleList(Block(config, "gelu", FINE_EPS) for _ in range(config.layers))
        for block in self.stack:
            block.ln_inner = nn.LayerNorm(width, FINE_EPS)
            block.mlp = EvaMlp(width, config.hidden or 4 * width)  # type: ignore[assignment]
        self.ln_post = nn.LayerNorm(width, FINE_EPS)
        self.head = nn.Linear(width, embed_dim)
        places = _places(config) * (EVA_SIDE / config.grid[0])
        self.turns = _turns(places, _speeds(config), 1, self.halves)

    def joint(self, normed: Float[Tensor, "b l w"]) -> Float[Tensor, "b l d"]:
        return self.head(normed)


@dataclass(frozen=True)
class DinoConfig(PatchConfig):
    """Sizes of DINOv2's or DINOv3's tower. `gated`: its MLPs are SwiGLU; `rope_theta`: None where positions
    are learned. What is printed of it is part of a fingerprint."""

    registers: int = 0
    gated: bool = False
    rope_theta: float | None = None
    eps: float = FINE_EPS

    def build(self, embed_dim: int, activation: str) -> nn.Module:
        return DinoTower(self)


class SwiGlu(nn.Module):
    """c_proj(silu(gate(x))·c_fc(x))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden)
        self.c_fc = nn.Linear(width, hidden)
        self.c_proj = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "*n w"]) -> Float[Tensor, "*n w"]:
        return self.c_proj(F.silu(self.gate(x)) * self.c_fc(x))


class DinoTower(BlockTower):
    """The class token and one token a patch, each behind the last norm.

    LayerScale, a factor on each channel of what a block adds, is folded into the matrices before it when
    weights are loaded. So is the choice of an image size into DINOv2's positions.
    """

    halves = True

    def __init__(self, config: DinoConfig) -> None:
        super().__init__(config, positions=config.rope_theta is None)
        width, side = config.width, config.grid[0]
        self.before = 1 + config.registers
        self.register_embedding = nn.Parameter(torch.empty(config.registers, width))
        self.blocks = nn.ModuleList(Block(config, "gelu", config.eps) for _ in range(config.layers))
        if config.gated:
            for block in self.stack:
                block.mlp = SwiGlu(width, config.hidden or 4 * width)  # type: ignore[assignment]
        self.ln_post = nn.LayerNorm(width, config.eps)
        if config.rope_theta is not None:  # in float32, as the authors compute it
            centres = 2 * (_places(config).float() + 0.5) / side - 1
            speeds = config.rope_theta ** -torch.arange(0, 1, 4 * config.heads / width, device="cpu")
            self.turns = _turns(2 * math.pi * centres, speeds, self.before, self.halves)

    def enter(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b l k"]:
        tokens = super().enter(x)
        registers = self.register_embedding.expand(x.shape[0], -1, -1)
        return torch.cat([tokens[:, :1], registers, tokens[:, 1:]], dim=1)

    def joint(self, normed: Float[Tensor, "b l w"]) -> Float[Tensor, "b l w"]:
        return normed


def _places(config: PatchConfig) -> Float[Tensor, "m 2"]:
    """Row and column of every patch, in the order in which a tower reads them."""
    # not on the meta device, where towers are laid out: these values are computed, not loaded
    along = torch.arange(config.grid[0], dtype=torch.float64, device="cpu")
    return torch.cartesian_prod(along, along)


def _speeds(config: PatchConfig) -> Float[Tensor, " k"]:
    """θ_k of EVA-02 and PE-Core."""
    pairs = config.width // config.heads // 4
    return ROTARY_BASE ** (-torch.arange(pairs, dtype=torch.float64, device="cpu") / pairs)


def _turns(
    places: Float[Tensor, "m 2"], speeds: Float[Tensor, " k"], before: int, halves: bool
) -> Float[Tensor, "2 l e"]:
    """Cosines and sines of every token's angles, each for both channels of its pair; `before` the patches are
    tokens at (0, 0)."""
    angles = (places.unsqueeze(-1) * speeds).flatten(1)
    angles = angles.repeat(1, 2) if halves else angles.repeat_interleave(2, dim=-1)
    angles = F.pad(angles, (0, 0, before, 0))
    return torch.stack([angles.cos(), angles.sin()])
