"""The extensions that were tried do what the document says of them."""

import sys
from importlib import import_module

import pytest
import torch

from pbprompt import registry
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.prompts.pbprompt.variational import gaussian_kl
from pbprompt.vision.towers.backbone import Encoded

EXAMPLES, BATCH, EPOCHS = 12, 4, 4


@pytest.fixture
def method(tiny_vit, request):
    """A rejected method, shaken so that no term is zero. Afterwards the registry is as it was."""
    rejected = import_module("benchmarks.rejected_methods")
    kind = registry.find_method(request.param)
    config = make_config(kind, overrides=[f"epochs={EPOCHS}", f"batch_size={BATCH}"])
    method = build_method(kind, config, tiny_vit, 1)
    method.prepare(["cat", "dog", "horse"], "a photo of a {}.")
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    yield method
    for kind in (rejected.Annealed, rejected.LearnedPrior):
        del registry._methods[kind.name]
    del sys.modules["benchmarks.rejected_methods"]


def losses(method, steps):
    dim, patches = method.backbone.embed_dim, method.backbone.grid[0] * method.backbone.grid[1]
    random = torch.Generator().manual_seed(0)
    images = Encoded(torch.randn(BATCH, dim, generator=random), torch.randn(BATCH, patches, dim).half())
    batch = Batch(images, torch.arange(BATCH) % 3)
    return [method.loss(batch, torch.Generator().manual_seed(0), EXAMPLES) for _ in range(steps)]


@pytest.mark.parametrize("method", ["pbprompt-annealed"], indirect=True)
def test_the_weight_of_the_kl_rises_over_the_first_half_of_the_steps(method):
    total = EPOCHS * (EXAMPLES // BATCH)
    terms = losses(method, total)
    weights = [((t["total"] - t["nll"] - t["transport"]) / t["kl"]).item() for t in terms]
    wanted = [method.config.kl_weight * min(1.0, step / (total / 2)) for step in range(total)]
    assert weights == pytest.approx(wanted, abs=1e-4) and weights[0] < weights[3] < weights[6]


@pytest.mark.parametrize("method", ["pbprompt-learned-prior"], indirect=True)
def test_no_other_scale_of_the_prior_has_a_lower_kl(method):
    losses(method, 1)
    mean, log_variance = method.posterior(method._names)

    def kl(factor):
        return gaussian_kl(mean, log_variance, method._names, factor * method.prior_std).sum().item()

    assert kl(1.0) < min(kl(0.9), kl(0.99), kl(1.01), kl(1.1))
