"""Every function with a kernel gives on a GPU what it gives written out: values, gradients and kinds.

On a machine without CUDA the kernels run in Triton's interpreter, where Triton is installed.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pbprompt.prompts.pbprompt.generator import PromptGenerator
from pbprompt.prompts.pbprompt.transport import conditional_transport
from pbprompt.prompts.pbprompt.variational import gaussian_kl, reparameterise
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers import frozen_blocks
from pbprompt.vision.towers import kernels as gpu

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_kernels = pytest.mark.skipif(
    not (INTERPRETED or DEVICE == "cuda"), reason="needs CUDA or Triton's interpreter"
)


@pytest.fixture
def drawn():
    draws = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=draws).to(DEVICE)


def both_ways(function, learned, monkeypatch):
    """[kernels, written out] of values and gradients, for the same weights of the results."""
    found = []
    for choice in (True, False):
        monkeypatch.setattr(gpu, "takes", lambda *_, choice=choice: choice)
        results = function()
        draws = torch.Generator().manual_seed(1)
        weights = [torch.randn(r.shape, generator=draws).to(DEVICE) for r in results]
        total = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
        found.append((*results, *torch.autograd.grad(total, learned)))
    return found


def assert_equal(found, tolerance=1e-5):
    for ours, plain in zip(*found, strict=True):
        assert ours.dtype == plain.dtype and ours.shape == plain.shape
        assert (ours - plain).double().norm() <= tolerance * plain.double().norm()


@needs_kernels
@pytest.mark.parametrize(
    ("images", "patches", "samples", "classes", "temperature", "dtype"),
    [
        (3, 37, (2,), 70, 1.0, torch.float32),  # more than a tile of each, and not a multiple
        (2, 5, (), 3, 0.05, torch.float32),
        (2, 33, (1,), 64, 0.3, torch.float16),
    ],
)
def test_transport_equals(images, patches, samples, classes, temperature, dtype, drawn, monkeypatch):
    local = (3 * drawn(images, patches, 16)).half()
    local[0, 0] = 0  # without a direction
    prompts = drawn(*samples, classes, 16).to(dtype).requires_grad_()
    log_weights = (4 * drawn(*samples, images, classes)).log_softmax(-1)
    log_weights[..., 0] = -200.0  # its probability underflows
    log_weights.requires_grad_()
    found = both_ways(
        lambda: conditional_transport(local, prompts, log_weights, 0.3, temperature),
        (prompts, log_weights),
        monkeypatch,
    )
    assert_equal(found, 2e-3 if dtype == torch.float16 else 1e-5)


@needs_kernels
@pytest.mark.parametrize("shape", [(3, 5, 24), (7, 16), (2, 1, 600)])
def test_unit_equals(shape, drawn, monkeypatch):
    x = 5 * drawn(*shape)
    x[0, 0] = 0
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 2e-3)):
        learned = x.to(dtype).requires_grad_()
        found = both_ways(lambda learned=learned: (unit(learned),), (learned,), monkeypatch)
        if dtype == torch.float16:  # at zero the gradient is as large as 1/1e-12
            found = [[values.nan_to_num(posinf=0, neginf=0) for values in way] for way in found]
        assert_equal(found, tolerance)


@needs_kernels
def test_gaussians_equal(drawn, monkeypatch):
    mean, log_variance, prior, noise = drawn(9, 130), drawn(9, 130), drawn(9, 130), drawn(3, 9, 130)
    log_variance[:, :40] *= 1e-4  # where exp(t) − 1 cancels
    mean, log_variance = mean.requires_grad_(), log_variance.requires_grad_()
    assert_equal(
        both_ways(
            lambda: (
                gaussian_kl(mean, log_variance, prior, 1.0),
                gaussian_kl(mean, log_variance, prior, 0.7),
                reparameterise(mean, log_variance, noise),
            ),
            (mean, log_variance),
            monkeypatch,
        )
    )


@needs_kernels
@pytest.mark.parametrize(("keep_latent", "residual", "classes"), [(True, True, 5), (False, False, 3)])
def test_prefix_equals(keep_latent, residual, classes, drawn, monkeypatch):
    torch.manual_seed(3)
    generator = PromptGenerator(64, 4, heads=4, keep_latent=keep_latent, residual=residual).to(DEVICE)
    torch.nn.init.xavier_uniform_(generator.out_proj.weight)
    latent = drawn(2, classes, 64).requires_grad_()
    found = both_ways(lambda: (generator(latent),), (latent, *generator.parameters()), monkeypatch)
    assert_equal(found)


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton")
def test_kernels_are_for_training_on_a_gpu():
    there = SimpleNamespace(is_cuda=True, dtype=torch.float16)
    assert gpu.takes(there, there)
    assert not gpu.takes(there, SimpleNamespace(is_cuda=True, dtype=torch.float64))
    assert not gpu.takes(there, torch.zeros(3))
    with torch.no_grad():
        assert not gpu.takes(there)


@pytest.mark.skipif(
    INTERPRETED or DEVICE == "cuda" or find_spec("triton") is None, reason="CUDA, or no Triton to interpret"
)
def test_in_the_interpreter():
    """The tests above and those of the towers' kernels, in a process where Triton interprets on the CPU."""
    towers = Path(__file__).parents[1]
    files = [__file__, towers / "test_frozen_blocks.py", towers / "test_packing.py"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *files, "-k", "equal", "-p", "no:cacheprovider"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert "16 passed" in run.stdout


class OnGpu(torch.Tensor):
    is_cuda = True


@pytest.mark.parametrize(("asked", "has"), [("", True), ("off", False)])
def test_an_environment_variable_leaves_the_kernels_out(asked, has, tiny_vit, monkeypatch):
    monkeypatch.setenv("PBPROMPT_KERNELS", asked)
    monkeypatch.setattr(gpu, "find_spec", lambda name: object())
    monkeypatch.setattr(gpu, "available", gpu.available.__wrapped__)  # what is said once is kept
    monkeypatch.setattr(frozen_blocks, "available", gpu.available)
    there, blocks = torch.zeros(1, 4, 64).as_subclass(OnGpu), tiny_vit.textual.transformer.blocks
    assert gpu.takes(there) == frozen_blocks.usable(there, blocks) == has
