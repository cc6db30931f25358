"""The blocks by hand give the features and gradients of the blocks that torch differentiates.

On a machine without CUDA the kernels run in Triton's interpreter, where Triton is installed.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from plain_text import relative

from pbprompt.clip import frozen_blocks
from pbprompt.clip.backbone import BackboneConfig, random_backbone
from pbprompt.clip.engine import TextEngine
from pbprompt.clip.prompts import named_prompts
from pbprompt.clip.text import TextConfig
from pbprompt.clip.vit import VitConfig

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = ["cat", "golden retriever", "a b c d e f g h i j k", "x"]


@pytest.mark.skipif(not (INTERPRETED or DEVICE == "cuda"), reason="needs CUDA or Triton's interpreter")
@pytest.mark.parametrize(
    ("activation", "width", "own", "samples"),
    [("quick_gelu", 48, False, 1), ("quick_gelu", 64, True, 2), ("gelu", 32, True, 1)],
)
def test_equals_the_plain_blocks(activation, width, own, samples, monkeypatch):
    """For a context that all classes share (the lead learns) and for their own; and any width."""
    torch.manual_seed(0)
    text = TextConfig(context_length=32, vocab_size=49408, width=width, heads=width // 16, layers=3)
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


@pytest.mark.skipif(
    INTERPRETED or DEVICE == "cuda" or find_spec("triton") is None, reason="CUDA, or no Triton to interpret"
)
def test_in_the_interpreter():
    """These tests and those of the attention, in a process where Triton interprets its kernels on the CPU."""
    files = [__file__, str(Path(__file__).with_name("test_packed_attention.py"))]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *files, "-k", "equals", "-p", "no:cacheprovider"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert "7 passed" in run.stdout
