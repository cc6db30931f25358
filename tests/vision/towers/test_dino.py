"""DINOv2's and DINOv3's towers, held to transformers' on random weights."""

import pytest
import torch
from dino_folder import KINDS, dino_model, write_dino

from pbprompt.errors import InputError
from pbprompt.vision.towers.loading.load import load_backbone


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("size", [32, 40, 56])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_transformers(kind, size, tmp_path):
    model = dino_model(kind)
    ours = load_backbone(write_dino(tmp_path, model, size))
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, found = model(x), ours.image(x)
    patches = (size // 8) ** 2
    assert ours.grid == (size // 8, size // 8) and found.patches.shape == (2, patches, 32)
    assert relative(found.global_, wanted.pooler_output) <= 1e-5
    assert relative(found.patches, wanted.last_hidden_state[:, -patches:]) <= 1e-5


def test_images_are_seen_as_the_files_say(tmp_path):
    second = load_backbone(write_dino(tmp_path / "2", dino_model("dinov2"))).preprocess
    assert (second.size, second.fit, second.interpolation, second.resize) == (32, "crop", "bicubic", 36)
    third = load_backbone(write_dino(tmp_path / "3", dino_model("dinov3"))).preprocess
    assert (third.size, third.fit, third.interpolation, third.resize) == (32, "squash", "bilinear", None)
    assert second.mean == third.mean == (0.485, 0.456, 0.406)
    (tmp_path / "2" / "preprocessor_config.json").unlink()
    published = load_backbone(tmp_path / "2").preprocess
    assert (published.size, published.resize, published.fit) == (224, 256, "crop")


def test_there_is_no_text(tmp_path):
    tower = load_backbone(write_dino(tmp_path, dino_model("dinov3")))
    assert not tower.reads_text and tower.logit_bias is None and tower.device.type == "cpu"
    with pytest.raises(InputError, match="reads no text: use a backbone with a text tower"):
        tower.tokenizer  # noqa: B018
    with pytest.raises(InputError, match="reads no text"):
        tower.text_sizes  # noqa: B018


def test_nothing_of_it_can_be_trained(tmp_path):
    tower = load_backbone(write_dino(tmp_path, dino_model("dinov2")), dtype=torch.float16)
    assert not list(tower.parameters()) and tower.dtype == torch.float16
    assert not any(buffer.requires_grad for buffer in tower.buffers())
