"""The blocks by hand give the features and gradients of the blocks that torch differentiates.

On a machine without CUDA they run in Triton's interpreter: `kernels/test_kernels.py` starts them there.
"""

import os

import pytest
import torch
from plain_text import relative

from pbprompt.vision.towers import frozen_blocks
from pbprompt.vision.towers.backbone import BackboneConfig, random_backbone
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.prompts import named_prompts
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ["cat", "golden retriever", "a b c d e f g h i j k", "x"]


@pytest.mark.skipif(not (INTERPRETED or DEVICE == "cuda"), reason="needs CUDA or Triton's interpreter")
@pytest.mark.parametrize(
    ("activation", "width", "heads", "layers", "own", "samples"),
    [
        ("quick_gelu", 48, 3, 3, False, 1),
        ("quick_gelu", 64, 2, 2, True, 2),
        ("gelu", 32, 1, 2, True, 1),
    ],
)
def test_equals_the_plain_blocks(activation, width, heads, layers, own, samples, monkeypatch):
    """For a context that all classes share (the lead learns) and for their own; and any width."""
    torch.manual_seed(0)
    text = TextConfig(context_length=32, vocab_size=49408, width=width, heads=heads, layers=layers)
    config = BackboneConfig("tiny", 32, VitConfig(32, 16, 64, 1, 4), text, activation=activation)
    backbone = random_backbone(config).to(DEVICE)
    engine = TextEngine(backbone, named_prompts(backbone.tokenizer, NAMES, 3), graph=False)
    shape = (samples, len(NAMES) if own else 1, 3, width)
    context = torch.randn(shape, device=DEVICE, requires_grad=True)
    found, by_hand = [], []
    states = frozen_blocks.states_at_eot
    monkeypatch.setattr(frozen_blocks, "states_at_eot", lambda *parts: by_hand.append(1) or states(*parts))
    for choice in (True, False):
        monkeypatch.setattr(frozen_blocks, "usable", lambda x, blocks, choice=choice: choice)
        features = engine(context)
        weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        found.append((features, *torch.autograd.grad((features * weights).sum(), context)))
        with torch.no_grad():
            assert torch.equal(engine(context), features)
    assert len(by_hand) == 2
    for ours, plain in zip(*found, strict=True):
        assert relative(ours, plain) <= 1e-5


def test_a_program_takes_a_power_of_two_of_rows():
    found = {frozen_blocks._rows_at_once(rows) for rows in range(0, 40_000, 7)}
    assert found == {1, 2, 4}, "Triton refuses any other number of warps"
