"""The towers behind one interface: the embedded model's figures, frozenness, precisions, compilation."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from pbprompt.vision.towers.backbone import Backbone

CHECK = json.loads((Path(__file__).parent / "lite_check.json").read_text())
VIT_CHECK = json.loads((Path(__file__).parent / "lite_vit_check.json").read_text())


@pytest.fixture(params=["tiny_vit", "tiny_resnet", "lite", "lite_vit"])
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return request.getfixturevalue(request.param)


def images(backbone: Backbone) -> Tensor:
    size = backbone.preprocess.size
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "check"), [("lite", CHECK), ("lite_vit", VIT_CHECK)])
def test_embedded_image_features(name: str, check: dict, request: pytest.FixtureRequest) -> None:
    """The picture of the check files: the value at row i, column j, channel c is (7i + 13j + 29c) mod 256."""
    i, j, c = np.ogrid[:224, :224, :3]
    picture = Image.fromarray(((7 * i + 13 * j + 29 * c) % 256).astype(np.uint8))
    backbone = request.getfixturevalue(name)
    encoded = backbone.image(backbone.preprocess(picture)[None])
    expected = check["image"]
    assert list(encoded.patches.shape) == [1, *expected["patches"]]
    assert encoded.global_[0, :8].tolist() == pytest.approx(expected["global_first8"], abs=1e-3)
    assert encoded.patches[0, 0, :8].tolist() == pytest.approx(expected["patch0_first8"], abs=1e-3)
    assert float(encoded.global_.norm()) == pytest.approx(expected["global_norm"], abs=1e-3)
    if name == "lite":
        torch.testing.assert_close(encoded.global_, encoded.patches.mean(dim=1))
    else:
        assert encoded.patches[0, 48, :8].tolist() == pytest.approx(expected["patch48_first8"], abs=1e-3)


def test_lite_text_features(lite: Backbone) -> None:
    ids, lengths = lite.tokenizer([case["text"] for case in CHECK["texts"]])
    features = lite.text(lite.token_embedding(ids), lengths)
    for feature, case in zip(features, CHECK["texts"], strict=True):
        assert feature[:8].tolist() == pytest.approx(case["feature_first8"], abs=1e-3)
        assert float(feature.norm()) == pytest.approx(case["norm"], abs=1e-3)


def test_interface(backbone: Backbone) -> None:
    encoded = backbone.image(images(backbone))
    positions = backbone.grid[0] * backbone.grid[1]
    assert encoded.global_.shape == (2, backbone.embed_dim)
    assert encoded.patches.shape == (2, positions, backbone.embed_dim)
    ids, lengths = backbone.tokenizer(["a cat", "a dog"])
    embeddings = backbone.token_embedding(ids)
    assert embeddings.shape == (2, backbone.context_length, backbone.text_width)
    assert backbone.text(embeddings, lengths).shape == (2, backbone.embed_dim)


def test_nothing_to_train(backbone: Backbone) -> None:
    assert not list(backbone.parameters())
    assert not any(buffer.requires_grad for buffer in backbone.buffers())
    assert not backbone.image(images(backbone)).patches.requires_grad


def test_eval_mode_cannot_be_left(backbone: Backbone) -> None:
    before = backbone.image(images(backbone)).global_
    outer = nn.Sequential(backbone).train()
    assert outer.training and not any(module.training for module in backbone.modules())
    assert backbone.train() is backbone and not backbone.training
    assert torch.equal(backbone.image(images(backbone)).global_, before)


def test_gradients_reach_injected_embeddings_only(backbone: Backbone) -> None:
    ids, lengths = backbone.tokenizer(["a photo of a cat", "dog"])
    embeddings = backbone.token_embedding(ids).clone().requires_grad_()
    backbone.text(embeddings, lengths).square().sum().backward()
    gradient = embeddings.grad
    assert gradient is not None and torch.isfinite(gradient).all()
    for row, length in enumerate(lengths.tolist()):
        assert (gradient[row, :length].abs().sum(dim=-1) > 0).all()
        assert not gradient[row, length:].any()  # causal: nothing after EOT has a say
    assert all(buffer.grad is None for buffer in backbone.buffers())


def test_padding_has_no_say(backbone: Backbone) -> None:
    ids, lengths = backbone.tokenizer(["a photo of a cat", "dog"])
    full = backbone.text(backbone.token_embedding(ids), lengths)
    short = ids[:, : int(lengths.max())]
    torch.testing.assert_close(backbone.text(backbone.token_embedding(short), lengths), full)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_half_precision_is_close(backbone: Backbone, dtype: torch.dtype, tolerance: float) -> None:
    half = Backbone(backbone.config).load_weights(
        {key: value.to(dtype) for key, value in backbone.state_dict().items()}, backbone.logit_scale, "half"
    )
    ids, lengths = backbone.tokenizer(["a photo of a cat", "dog"])
    found, wanted = (
        (*each.image(images(backbone)), each.text(each.token_embedding(ids), lengths))
        for each in (half, backbone)
    )
    for ours, exact in zip(found, wanted, strict=True):
        assert ours.dtype == dtype and torch.isfinite(ours).all()
        assert float((ours.float() - exact).norm() / exact.norm()) < tolerance


COMPILED = """
import torch
from pbprompt.vision.towers.backbone import BackboneConfig, random_backbone
from pbprompt.vision.towers.resnet import ResNetConfig
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig
from pbprompt.vision.towers.loading.load import load_backbone

text = TextConfig(16, 600, 64, 4, 2)
vit = random_backbone(BackboneConfig("vit", 32, VitConfig(32, 8, 64, 2, 4), text, "gelu"))
resnet = random_backbone(BackboneConfig("resnet", 32, ResNetConfig(64, (1, 1, 1, 1), 16, 8), text))
for backbone in (vit, resnet, load_backbone("lite"), load_backbone("lite-vit")):
    torch.compiler.reset()
    size = backbone.preprocess.size
    images = torch.randn(2, 3, size, size)
    ids, lengths = backbone.tokenizer(["a photo of a cat", "dog"])
    embeddings = backbone.token_embedding(ids).requires_grad_()
    image = torch.compile(backbone.image, fullgraph=True, backend="eager")
    text = torch.compile(backbone.text, fullgraph=True, backend="eager")
    torch.testing.assert_close(image(images).patches, backbone.image(images).patches)
    torch.testing.assert_close(text(embeddings, lengths), backbone.text(embeddings, lengths))
print("compiled")
"""


def test_compiles_without_graph_breaks() -> None:
    """In a process of its own: the suite wraps every signature in a shape check, which does not compile."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]
