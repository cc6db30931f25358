"""CLIP's modified ResNet with attention pooling, batch norms folded into the convolutions."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.vision.towers.layers import merge_heads, split_heads

BATCH_NORM_EPS = 1e-5
BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True)
class ResNetConfig:
    """Sizes of a modified ResNet: blocks a stage, base width, heads of the attention pool."""

    image_size: int
    layers: tuple[int, int, int, int]
    width: int
    heads: int

    @property
    def grid(self) -> tuple[int, int]:
        side = self.image_size // 32
        return side, side

    def build(self, embed_dim: int, activation: str) -> nn.Module:
        return ModifiedResNet(self, embed_dim)


class Bottleneck(nn.Module):
    """1×1, 3×3, average pool for the stride, 1×1; the shortcut is pooled and projected where sizes change."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(channels_in, channels, 1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv3 = nn.Conv2d(channels, channels * 4, 1)
        changes = stride > 1 or channels_in != channels * 4
        self.downsample = nn.Conv2d(channels_in, channels * 4, 1) if changes else None

    def pool(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c i j"]:
        return F.avg_pool2d(x, self.stride) if self.stride > 1 else x

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k i j"]:
        out = F.relu(self.conv2(F.relu(self.conv1(x))))
        out = self.conv3(self.pool(out))
        shortcut = x if self.downsample is None else self.downsample(self.pool(x))
        return F.relu(out + shortcut)


class GridAttentionPool(nn.Module):
    """Attention pooling with every position as a query: row 0 (the mean) is global, the rest are local."""

    def __init__(self, positions: int, width: int, heads: int, embed_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.positional_embedding = nn.Parameter(torch.empty(positions + 1, width))
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.c_proj = nn.Linear(width, embed_dim)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n d"]:
        local = x.flatten(2).transpose(1, 2)
        tokens = torch.cat([local.mean(dim=1, keepdim=True), local], dim=1) + self.positional_embedding
        q, k, v = (split_heads(p(tokens), self.heads) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.c_proj(merge_heads(F.scaled_dot_product_attention(q, k, v)))


class ModifiedResNet(nn.Module):
    """Three-convolution stem with pooling, four stages, attention pool."""

    def __init__(self, config: ResNetConfig, embed_dim: int) -> None:
        super().__init__()
        width = config.width
        self.conv1 = nn.Conv2d(3, width // 2, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(width // 2, width // 2, 3, padding=1)
        self.conv3 = nn.Conv2d(width // 2, width, 3, padding=1)
        channels_in = width
        for stage, blocks in enumerate(config.layers):
            channels = width * 2**stage
            layer = nn.Sequential()
            for index in range(blocks):
                layer.append(Bottleneck(channels_in, channels, stride=2 if stage and not index else 1))
                channels_in = channels * 4
            setattr(self, f"layer{stage + 1}", layer)
        positions = config.grid[0] * config.grid[1]
        self.attnpool = GridAttentionPool(positions, channels_in, config.heads, embed_dim)

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b m d"]]:
        for conv in (self.conv1, self.conv2, self.conv3):
            x = F.relu(conv(x))
        x = F.avg_pool2d(x, 2)
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        joint = self.attnpool(x)
        return joint[:, 0], joint[:, 1:]


def fold_batch_norms(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """OpenAI's weights with each batch norm folded into the convolution before it.

    w' = w·γ/√(v+ε), b' = β − m·γ/√(v+ε), in float32 or better. `convN`/`bnN` and `downsample.0`/`.1` pair up.
    """
    folded = dict(state)
    for key in state:
        if not key.endswith(".running_mean"):
            continue
        norm = key.removesuffix(".running_mean")
        gamma, beta, mean, variance = (folded.pop(f"{norm}.{part}") for part in BATCH_NORM)
        conv = norm.replace(".bn", ".conv").replace(".downsample.1", ".downsample.0")
        weight = folded.pop(f"{conv}.weight")
        wide = torch.promote_types(weight.dtype, torch.float32)
        scale = gamma.to(wide) * (variance.to(wide) + BATCH_NORM_EPS).rsqrt()
        target = conv.replace(".downsample.0", ".downsample")
        folded[f"{target}.weight"] = weight.to(wide) * scale.view(-1, 1, 1, 1)
        folded[f"{target}.bias"] = beta.to(wide) - mean.to(wide) * scale
    return folded
