"""The plain ways and the library's methods are two writings of one loss: equal values, equal gradients."""

import pytest
import torch

from benchmarks.speed.plain import PlainLoss, plain_optimiser
from benchmarks.speed.setups import METHODS, Case, make_method, random_batch
from pbprompt.learners.method import Batch
from pbprompt.prompts.loop.step import make_optimiser
from pbprompt.vision.towers.backbone import Encoded

CLASSES, EXAMPLES = 7, 112


def both(name, backbone, images=5, overrides=()):
    """The method in float64, its plain loss and a batch."""
    case = Case(name, "tiny", CLASSES, "cpu", "float64", tuple(overrides))
    method = make_method(case, backbone).double()
    images, labels, _ = random_batch(backbone, CLASSES, images)
    batch = Batch(Encoded(images.global_.double(), images.patches.double()), labels)
    return method, PlainLoss(method, EXAMPLES), batch


def gradients(loss, method):
    return torch.autograd.grad(loss, list(method.parameters()), materialize_grads=True)


@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("name", METHODS)
def test_equal_loss_and_gradients(name, images, double_vit):
    method, plain, batch = both(name, double_vit, images)
    ours = method.loss(batch, torch.Generator().manual_seed(4), EXAMPLES)["total"]
    theirs = plain(batch, torch.Generator().manual_seed(4))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
    for one, other in zip(gradients(ours, method), gradients(theirs, method), strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9 * float(other.abs().max()))


@pytest.mark.parametrize(
    "overrides",
    [
        ["ct_gradient=true", "ct_temperature=0", "ct_balance=0.2"],
        ["keep_latent=false", "mean_residual=false", "residual=false", "kl_reduction=mean"],
    ],
)
def test_pbprompts_other_readings(overrides, double_vit):
    method, plain, batch = both("pbprompt", double_vit, overrides=overrides)
    ours = method.loss(batch, torch.Generator().manual_seed(4), EXAMPLES)["total"]
    theirs = plain(batch, torch.Generator().manual_seed(4))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
    for one, other in zip(gradients(ours, method), gradients(theirs, method), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9 * float(other.abs().max()) + 1e-14)


@pytest.mark.parametrize("name", ["coop", "cocoop", "plot"])
def test_equal_predictions(name, double_vit):
    method, plain, batch = both(name, double_vit)
    with torch.no_grad():
        bank = method.class_features(1, torch.Generator())
        ours = method.sample_logits(batch.images, bank)[0]
        torch.testing.assert_close(ours, plain.logits_of(batch.images), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["coop", "pbprompt"])
def test_equal_steps(name, double_vit):
    method, _, batch = both(name, double_vit)
    other = both(name, double_vit)[0]
    for one, optimiser in ((method, plain_optimiser(method)), (other, make_optimiser(other))):
        for seed in (1, 2):
            optimiser.zero_grad()
            PlainLoss(one, EXAMPLES)(batch, torch.Generator().manual_seed(seed)).backward()
            optimiser.step()
    for one, two in zip(method.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)
