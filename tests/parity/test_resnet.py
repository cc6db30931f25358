"""The modified ResNet and its attention pool against a float64 computation from the published description.

Here batch norms are kept apart, pooling is a mean over reshaped blocks, and attention an explicit softmax.
"""

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import conv2d

from pbprompt.vision.towers.loading.load import load_backbone

State = dict[str, Tensor]


def random_state(layers: tuple[int, ...], width: int, side: int, embed_dim: int) -> State:
    """A CLIP state dict in OpenAI's layout with a ResNet of these sizes and a minimal text tower."""
    generator = torch.Generator().manual_seed(0)
    state: State = {}

    def draw(key: str, *shape: int, scale: float | None = None) -> None:
        scale = math.prod(shape[1:]) ** -0.5 if scale is None else scale
        state[key] = torch.randn(shape, generator=generator) * scale

    def conv_and_norm(conv: str, norm: str, out: int, into: int, kernel: int) -> None:
        draw(f"{conv}.weight", out, into, kernel, kernel)
        state[f"{norm}.weight"] = 1 + 0.3 * torch.randn(out, generator=generator)
        draw(f"{norm}.bias", out, scale=0.3)
        draw(f"{norm}.running_mean", out, scale=0.3)
        state[f"{norm}.running_var"] = 0.5 + torch.rand(out, generator=generator)
        state[f"{norm}.num_batches_tracked"] = torch.tensor(7)

    half = width // 2
    for number, (out, into) in enumerate([(half, 3), (half, half), (width, half)], start=1):
        conv_and_norm(f"visual.conv{number}", f"visual.bn{number}", out, into, 3)
    into = width
    for stage, blocks in enumerate(layers):
        inner = width * 2**stage
        for block in range(blocks):
            name = f"visual.layer{stage + 1}.{block}"
            sizes = [(inner, into, 1), (inner, inner, 3), (4 * inner, inner, 1)]
            for number, (out, channels, kernel) in enumerate(sizes, start=1):
                conv_and_norm(f"{name}.conv{number}", f"{name}.bn{number}", out, channels, kernel)
            if block == 0:
                conv_and_norm(f"{name}.downsample.0", f"{name}.downsample.1", 4 * inner, into, 1)
            into = 4 * inner
    draw("visual.attnpool.positional_embedding", side * side + 1, into, scale=0.3)
    for letter, out in zip("qkvc", (into, into, into, embed_dim), strict=True):
        draw(f"visual.attnpool.{letter}_proj.weight", out, into)
        draw(f"visual.attnpool.{letter}_proj.bias", out, scale=0.3)
    draw("token_embedding.weight", 600, 64)
    draw("positional_embedding", 16, 64)
    for key, *shape in (
        ("ln_1.weight", 64),
        ("ln_1.bias", 64),
        ("attn.in_proj_weight", 192, 64),
        ("attn.in_proj_bias", 192),
        ("attn.out_proj.weight", 64, 64),
        ("attn.out_proj.bias", 64),
        ("ln_2.weight", 64),
        ("ln_2.bias", 64),
        ("mlp.c_fc.weight", 256, 64),
        ("mlp.c_fc.bias", 256),
        ("mlp.c_proj.weight", 64, 256),
        ("mlp.c_proj.bias", 64),
    ):
        draw(f"transformer.resblocks.0.{key}", *shape)
    draw("ln_final.weight", 64)
    draw("ln_final.bias", 64)
    draw("text_projection", 64, embed_dim)
    state["logit_scale"] = torch.tensor(4.0)
    return state


def average(x: Tensor, by: int) -> Tensor:
    b, c, h, w = x.shape
    return x.reshape(b, c, h // by, by, w // by, by).mean(dim=(3, 5))


def reference(state: State, layers: tuple[int, ...], heads: int, x: Tensor) -> tuple[Tensor, Tensor]:
    state = {key: value.double() for key, value in state.items()}

    def conv_norm(conv: str, norm: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{conv}.weight"]
        x = conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        gamma, beta, mean, variance = (
            state[f"{norm}.{part}"][:, None, None]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / torch.sqrt(variance + 1e-5) * gamma + beta

    for number, stride in ((1, 2), (2, 1), (3, 1)):
        x = conv_norm(f"visual.conv{number}", f"visual.bn{number}", x, stride).clamp(min=0)
    x = average(x, 2)
    for stage, blocks in enumerate(layers, start=1):
        for block in range(blocks):
            name = f"visual.layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            out = conv_norm(f"{name}.conv1", f"{name}.bn1", x).clamp(min=0)
            out = conv_norm(f"{name}.conv2", f"{name}.bn2", out).clamp(min=0)
            out = conv_norm(f"{name}.conv3", f"{name}.bn3", average(out, stride))
            if block == 0:
                x = conv_norm(f"{name}.downsample.0", f"{name}.downsample.1", average(x, stride))
            x = (out + x).clamp(min=0)
    return attention_pool(state, heads, x)


def attention_pool(state: State, heads: int, x: Tensor) -> tuple[Tensor, Tensor]:
    b, c, h, w = x.shape
    cells = x.reshape(b, c, h * w).permute(0, 2, 1)
    tokens = torch.cat([cells.mean(dim=1, keepdim=True), cells], dim=1)
    tokens = tokens + state["visual.attnpool.positional_embedding"]

    def project(letter: str, x: Tensor) -> Tensor:
        weight, bias = (state[f"visual.attnpool.{letter}_proj.{part}"] for part in ("weight", "bias"))
        return x @ weight.T + bias

    q, k, v = (project(letter, tokens) for letter in "qkv")
    size = c // heads
    mixed = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(size)
        mixed.append(torch.softmax(scores, dim=-1) @ v[..., part])
    joint = project("c", torch.cat(mixed, dim=-1))
    return joint[:, 0], joint[:, 1:]


@pytest.mark.parametrize(
    ("layers", "width", "side", "embed_dim"),
    [((1, 1, 1, 1), 16, 2, 32), ((2, 1, 3, 2), 8, 3, 48), ((1, 1, 1, 1), 20, 1, 32)],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_resnet(
    tmp_path,
    layers: tuple[int, ...],
    width: int,
    side: int,
    embed_dim: int,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    state = random_state(layers, width, side, embed_dim)
    # batch norms are folded in float32 unless the file itself is wider
    save_file({key: value.to(dtype) for key, value in state.items()}, tmp_path / "resnet.safetensors")
    backbone = load_backbone(tmp_path / "resnet.safetensors", activation="quick_gelu", dtype=dtype)
    assert backbone.grid == (side, side)
    assert backbone.config.vision.layers == layers
    images = torch.randn(2, 3, 32 * side, 32 * side, generator=torch.Generator().manual_seed(1))
    global_, patches = reference(state, layers, heads=width // 2, x=images.double())
    encoded = backbone.image(images)
    for ours, theirs in ((encoded.global_, global_), (encoded.patches, patches)):
        assert ours.dtype == dtype and ours.shape == theirs.shape
        assert float((ours - theirs).abs().max() / theirs.abs().max()) <= tolerance
