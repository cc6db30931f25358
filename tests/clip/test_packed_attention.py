"""The Triton kernel gives the numbers and gradients of scaled dot-product attention.

On a machine without CUDA the kernel runs in Triton's interpreter, where Triton is installed.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from pbprompt.clip import attention, packed_attention
from pbprompt.clip.packing import Layout

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def layout_of(lead: int, lengths: list[int]) -> Layout:
    starts = [lead + sum(lengths[:at]) for at in range(len(lengths))]
    return Layout(
        constant=torch.zeros(lead + sum(lengths), 4, device=DEVICE),
        slot_at=torch.zeros(0, dtype=torch.long),
        slot_from=torch.zeros(0, dtype=torch.long),
        lead=lead,
        starts=torch.tensor(starts, device=DEVICE),
        lengths=torch.tensor(lengths, device=DEVICE),
        eot=torch.tensor([start + n - 1 for start, n in zip(starts, lengths, strict=True)], device=DEVICE),
        groups=tuple((1, n) for n in lengths),
    )


@pytest.mark.skipif(not (INTERPRETED or DEVICE == "cuda"), reason="needs CUDA or Triton's interpreter")
@pytest.mark.parametrize("lead", [0, 5, 17])
def test_equals_scaled_dot_product_attention(lead, monkeypatch):
    torch.manual_seed(0)
    layout = layout_of(lead, [2, 2, 5, 18])  # equal, odd, and more than a block of 16
    heads, width, samples = 2, 32, 2
    packed = sum([lead, *layout.lengths.tolist()])
    qkv = torch.randn(samples, packed, 3 * width, device=DEVICE, requires_grad=True)
    q = torch.randn(samples, len(layout.starts), width, device=DEVICE, requires_grad=True)
    kv = torch.randn(samples, packed, 2 * width, device=DEVICE, requires_grad=True)
    found = (
        packed_attention.attend_causally(qkv, layout, heads),
        packed_attention.attend_from_eot(q, kv, layout, heads),
    )
    monkeypatch.setattr(packed_attention, "usable", lambda x, per_head: False)
    wanted = (attention.attend_causally(qkv, layout, heads), attention.attend_from_eot(q, kv, layout, heads))
    for ours, plain, inputs in zip(found, wanted, ((qkv,), (q, kv)), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
        weights = torch.randn_like(plain)
        for a, b in zip(
            torch.autograd.grad((ours * weights).sum(), inputs),
            torch.autograd.grad((plain * weights).sum(), inputs),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(
    INTERPRETED or DEVICE == "cuda" or find_spec("triton") is None, reason="CUDA, or no Triton to interpret"
)
def test_in_the_interpreter():
    """The test above, in a process where Triton interprets its kernels on the CPU."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", __file__, "-k", "equals", "-p", "no:cacheprovider"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert "3 passed" in run.stdout
