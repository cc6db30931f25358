"""A step's gradients: plain ones are the loss's own, captured ones are the plain ones."""

import pytest
import torch

from pbprompt.clip.backbone import BackboneConfig, Encoded, random_backbone
from pbprompt.clip.text import TextConfig
from pbprompt.clip.vit import VitConfig
from pbprompt.methods.base import Batch, build_method, make_config
from pbprompt.registry import find_method, methods
from pbprompt.train.step import WARM_UP, Gradients

CLASSES = ("cat", "golden retriever", "car", "tree frog")
EXAMPLES = 40
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def batch_of(seed, device="cpu"):
    random = torch.Generator().manual_seed(seed)
    images = Encoded(torch.randn(6, 32, generator=random), torch.randn(6, 16, 32, generator=random).half())
    labels = torch.randint(len(CLASSES), (6,), generator=random)
    return Batch(Encoded(*(part.to(device) for part in images)), labels.to(device))


def made(name, backbone, *overrides, variant=""):
    kind = find_method(name)
    method = build_method(kind, make_config(kind, variant=variant, overrides=overrides), backbone, seed=3)
    method.prepare(CLASSES, "a photo of a {}.")
    return method


def gradients_of(method):
    return [parameter.grad.clone() for parameter in method.trainable() if parameter.grad is not None]


def test_plain_gradients_are_the_losses_own(tiny_vit):
    method, other = made("pbprompt", tiny_vit), made("pbprompt", tiny_vit)
    terms = Gradients(method, EXAMPLES)(batch_of(0), seed=5)
    expected = other.loss(batch_of(0), torch.Generator().manual_seed(5), EXAMPLES)
    wanted = torch.autograd.grad(expected["total"], list(other.parameters()))
    assert {name: value.item() for name, value in terms.items()} == {
        name: value.item() for name, value in expected.items()
    }
    assert not any(term.requires_grad for term in terms.values())
    for gradient, right in zip(gradients_of(method), wanted, strict=True):
        torch.testing.assert_close(gradient, right, rtol=0, atol=0)


def test_gradients_do_not_add_up(tiny_vit):
    method = made("coop", tiny_vit)
    step = Gradients(method, EXAMPLES)
    step(batch_of(0), seed=5)
    first = gradients_of(method)
    step(batch_of(1), seed=6)
    step(batch_of(0), seed=5)
    assert all(torch.equal(one, other) for one, other in zip(first, gradients_of(method), strict=True))


CAPTURABLE = [
    *((kind.name, "") for kind in methods().values() if kind.capturable),
    ("pbprompt", "ot"),
    ("pbprompt", "p-prompt"),
    ("pbprompt", "without-sampling"),
    ("vpt", "conditional"),
]


@needs_gpu
@pytest.mark.parametrize(("name", "variant"), CAPTURABLE)
def test_captured_gradients_are_the_plain_ones(name, variant):
    """Each step of one run, captured, against a plain step from the same parameters, noise and batch."""
    text = TextConfig(context_length=77, vocab_size=49408, width=64, heads=4, layers=3)
    backbone = random_backbone(BackboneConfig("tiny-vit", 32, VitConfig(32, 8, 64, 2, 4), text)).to("cuda")
    method = made(name, backbone, "learning_rate=0.1", variant=variant)
    step, plain = Gradients(method, EXAMPLES), Gradients(method, EXAMPLES)
    optimiser = torch.optim.SGD(method.trainable(), lr=0.1)
    seen = []
    for number in range(WARM_UP + 4):
        batch = batch_of(number, "cuda")
        plain._plain_steps = 0  # never captured
        wanted = {key: value.clone() for key, value in plain(batch, seed=number).items()}
        expected = gradients_of(method)
        terms = step(batch, seed=number)
        torch.testing.assert_close(terms, wanted, rtol=1e-5, atol=1e-6)
        for gradient, right in zip(gradients_of(method), expected, strict=True):
            torch.testing.assert_close(gradient, right, rtol=1e-4, atol=1e-6)
        seen.append(terms["total"].item())
        optimiser.step()
    assert step._graph is not None and plain._graph is None
    assert len(set(seen)) == len(seen)
