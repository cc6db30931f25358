"""The Triton kernels give the numbers and gradients of scaled dot-product attention.

On a machine without CUDA they run in Triton's interpreter: `kernels/test_kernels.py` starts them there.
"""

import os

import pytest
import torch

from pbprompt.vision.towers.frozen_blocks import attend_rows, attend_rows_backward
from pbprompt.vision.towers.packing import Layout, attend_from_eot, attend_packed

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def layout_of(lead: int, lengths: list[int], lead_learns: bool = True) -> Layout:
    starts = [lead + sum(lengths[:at]) for at in range(len(lengths))]
    return Layout(
        constant=torch.zeros(lead + sum(lengths), 4, device=DEVICE),
        slot_at=torch.zeros(0, dtype=torch.long),
        slot_from=torch.zeros(0, dtype=torch.long),
        slot_back=None,
        lead=lead,
        lead_learns=lead_learns,
        starts=torch.tensor(starts, device=DEVICE),
        eot=torch.tensor([start + n - 1 for start, n in zip(starts, lengths, strict=True)], device=DEVICE),
        groups=tuple((1, n) for n in lengths),
    )


@pytest.mark.skipif(not (INTERPRETED or DEVICE == "cuda"), reason="needs CUDA or Triton's interpreter")
@pytest.mark.parametrize(
    ("lead", "learns", "samples"), [(0, False, 1), (5, True, 1), (17, True, 2), (1, False, 1)]
)
def test_equals_scaled_dot_product_attention(lead, learns, samples):
    torch.manual_seed(0)
    layout = layout_of(lead, [2, 2, 5, 18], learns)  # equal, odd, and more than a block of 16
    heads, width = 2, 32
    packed = sum(layout.sizes)
    qkv = torch.randn(samples, packed, 3 * width, device=DEVICE, requires_grad=True)
    q = torch.randn(samples, len(layout.starts), width, device=DEVICE, requires_grad=True)
    kv = torch.randn(samples, packed, 2 * width, device=DEVICE, requires_grad=True)

    wanted = attend_packed(qkv, layout, heads, causal=True)
    weights = torch.randn_like(wanted)
    (gradient,) = torch.autograd.grad((wanted * weights).sum(), qkv)
    asked = slice(0 if learns else lead, None)  # what nothing learns from need not be right
    parts, found = qkv.detach().chunk(3, dim=-1), torch.empty_like(qkv)
    near(attend_rows(parts, layout.causal_rows, heads), wanted)
    attend_rows_backward(weights, parts, found.chunk(3, dim=-1), layout.causal_rows, heads)
    near(found[:, asked], gradient[:, asked])
    assert found.isfinite().all()

    wanted = attend_from_eot(q, kv, layout, heads)
    weights = torch.randn_like(wanted)
    gradients = torch.autograd.grad((wanted * weights).sum(), (q, kv))
    parts = q.detach(), *kv.detach().chunk(2, dim=-1)
    near(attend_rows(parts, layout.eot_rows, heads), wanted)
    dq, dkv = torch.empty_like(q), torch.zeros_like(kv)
    to = dq, *dkv.chunk(2, dim=-1)
    attend_rows_backward(weights, parts, to, layout.eot_rows, heads)
    near(dq, gradients[0])
    near(dkv[:, asked], gradients[1][:, asked])


def near(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
