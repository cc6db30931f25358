"""The sizes of OpenAI's published models are found from tensors of their shapes."""

import pytest
import torch

from pbprompt.vision.towers.backbone import BackboneConfig
from pbprompt.vision.towers.loading.architecture import check_tensors, expected_shapes, find_architecture
from pbprompt.vision.towers.loading.config import CheckpointConfig
from pbprompt.vision.towers.loading.hub import OPENAI_MODELS
from pbprompt.vision.towers.resnet import ResNetConfig
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig


def text(width: int) -> TextConfig:
    return TextConfig(77, 49408, width, width // 64, 12)


# As OpenAI published them.
PUBLISHED = {
    "RN50": (1024, ResNetConfig(224, (3, 4, 6, 3), 64, 32), text(512)),
    "RN101": (512, ResNetConfig(224, (3, 4, 23, 3), 64, 32), text(512)),
    "RN50x4": (640, ResNetConfig(288, (4, 6, 10, 6), 80, 40), text(640)),
    "RN50x16": (768, ResNetConfig(384, (6, 8, 18, 8), 96, 48), text(768)),
    "RN50x64": (1024, ResNetConfig(448, (3, 15, 36, 10), 128, 64), text(1024)),
    "ViT-B/32": (512, VitConfig(224, 32, 768, 12, 12), text(512)),
    "ViT-B/16": (512, VitConfig(224, 16, 768, 12, 12), text(512)),
    "ViT-L/14": (768, VitConfig(224, 14, 1024, 24, 16), text(768)),
    "ViT-L/14@336px": (768, VitConfig(336, 14, 1024, 24, 16), text(768)),
}


@pytest.mark.parametrize("name", OPENAI_MODELS)
def test_published_sizes(name: str) -> None:
    embed_dim, vision, words = PUBLISHED[name]
    config = BackboneConfig(name, embed_dim, vision, words, "quick_gelu")
    state = {key: torch.empty(shape, device="meta") for key, shape in expected_shapes(config).items()}
    found = find_architecture(name, state, CheckpointConfig("quick_gelu"))
    assert found == config
    check_tensors(found, state)


@pytest.mark.parametrize(
    ("name", "parameters"), [("RN50", 102_007_137), ("ViT-B/32", 151_277_313), ("ViT-B/16", 149_620_737)]
)
def test_published_parameter_counts(name: str, parameters: int) -> None:
    """The counts that OpenAI's own models report: a missing or superfluous tensor would show."""
    embed_dim, vision, words = PUBLISHED[name]
    shapes = expected_shapes(BackboneConfig(name, embed_dim, vision, words, "quick_gelu"))
    assert sum(shape.numel() for key, shape in shapes.items() if ".running_" not in key) == parameters
