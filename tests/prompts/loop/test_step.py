"""A step has the loss's gradients and the optimiser's update, and a captured one is the plain one."""

import pytest
import torch

from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.prompts.loop.step import WARM_UP, Step
from pbprompt.registry import find_method, methods
from pbprompt.vision.towers.backbone import BackboneConfig, Encoded, random_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

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


ALL = torch.arange(6)


def test_plain_gradients_are_the_losses_own(tiny_vit):
    method, other = made("pbprompt", tiny_vit), made("pbprompt", tiny_vit)
    terms = Step(method, EXAMPLES)(batch_of(0), ALL, seed=5, rate=0.0)
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
    step = Step(method, EXAMPLES)
    step(batch_of(0), ALL, seed=5, rate=0.0)
    first = gradients_of(method)
    step(batch_of(1), ALL, seed=6, rate=0.0)
    step(batch_of(0), ALL, seed=5, rate=0.0)
    assert all(torch.equal(one, other) for one, other in zip(first, gradients_of(method), strict=True))


def test_a_step_is_that_of_the_optimiser_on_the_rows_at_the_rate(tiny_vit):
    method, other = made("coop", tiny_vit, "clip_norm=0.001"), made("coop", tiny_vit)
    rows = torch.tensor([4, 1, 2])
    step = Step(method, EXAMPLES)
    optimiser = torch.optim.SGD(other.parameters(), lr=0.0, momentum=0.9, weight_decay=5e-4)
    (global_, patches), labels, _ = batch_of(0)
    for rate in (0.5, 0.1):
        step(batch_of(0), rows, seed=5, rate=rate)
        optimiser.param_groups[0]["lr"] = rate
        batch = Batch(Encoded(global_[rows], patches[rows]), labels[rows])
        optimiser.zero_grad()
        other.loss(batch, torch.Generator(), EXAMPLES)["total"].backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.001)
        optimiser.step()
        torch.testing.assert_close(method.context, other.context)


CAPTURABLE = [
    *((kind.name, "") for kind in methods().values() if getattr(kind, "capturable", False)),
    ("pbprompt", "ot"),
    ("pbprompt", "p-prompt"),
    ("pbprompt", "without-sampling"),
    ("vpt", "conditional"),
]


@needs_gpu
@pytest.mark.parametrize(("name", "variant"), CAPTURABLE)
def test_a_captured_step_is_the_plain_one(name, variant):
    """Each step of one run, captured, against a plain step from the same parameters, noise and batch."""
    text = TextConfig(context_length=77, vocab_size=49408, width=64, heads=4, layers=3)
    backbone = random_backbone(BackboneConfig("tiny-vit", 32, VitConfig(32, 8, 64, 2, 4), text)).to("cuda")
    method = made(name, backbone, "learning_rate=0.1", variant=variant)
    other = made(name, backbone, "learning_rate=0.1", variant=variant)
    step, plain = Step(method, EXAMPLES), Step(other, EXAMPLES)
    seen, rows = [], ALL.flip(0).to("cuda")
    for number in range(WARM_UP + 4):
        batch, rate = batch_of(number, "cuda"), 0.1 / (1 + number // 2)
        plain._plain_steps = 0  # never captured
        other.load_state_dict(method.state_dict())
        wanted = {key: value.clone() for key, value in plain(batch, rows, number, rate).items()}
        terms = step(batch, rows, number, rate)
        torch.testing.assert_close(terms, wanted, rtol=1e-5, atol=1e-6)
        for gradient, right in zip(gradients_of(method), gradients_of(other), strict=True):
            torch.testing.assert_close(gradient, right, rtol=1e-4, atol=1e-6)
        for value, right in zip(method.trainable(), other.trainable(), strict=True):
            torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-5)
        seen.append(terms["total"].item())
    assert step._graph is not None and plain._graph is None
    assert len(set(seen)) == len(seen)
