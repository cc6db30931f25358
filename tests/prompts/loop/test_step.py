"""A step has the loss's gradients and the optimiser's update, a captured one is the plain one; rates."""

import math

import pytest
import torch

from pbprompt.learners.method import Batch, MethodConfig, build_method, make_config
from pbprompt.learners.trained import Trained
from pbprompt.prompts.loop.step import WARM_UP, Step, epoch_order, learning_rate, make_optimiser
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
        plain.begun = 0  # never captured
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


# ---------------------------------------------------------------- learning rates and optimisers


def rates(epochs, **settings):
    config = MethodConfig(**settings)
    return [learning_rate(config, epoch, epochs) for epoch in range(epochs)]


def test_warm_up_then_cosine():
    found = rates(50)
    assert found[0] == 1e-5
    assert found[1] == 0.002
    for epoch in range(1, 50):
        assert found[epoch] == pytest.approx(0.001 * (1 + math.cos(math.pi * (epoch - 1) / 50)))
    assert found[1:] == sorted(found[1:], reverse=True) and found[-1] > 0


def test_the_same_as_torchs_cosine():
    """After the warm-up, an epoch is a step of the library's own schedule."""
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=20)
    for found in rates(20, learning_rate=0.3)[1:]:
        assert found == pytest.approx(schedule.get_last_lr()[0], rel=1e-9)
        optimiser.step()
        schedule.step()


def test_by_the_step_it_falls_within_an_epoch():
    config = MethodConfig(warmup_epochs=0, anneal="step")
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.002)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=4 * 3)
    for step in range(12):
        assert learning_rate(config, step / 3, epochs=4) == pytest.approx(schedule.get_last_lr()[0], rel=1e-9)
        optimiser.step()
        schedule.step()


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"momentum": 0.0}, "momentum", 0.0),
        ({}, "momentum", 0.9),
        ({"optimiser": "adamw", "adam_epsilon": 1e-4}, "eps", 1e-4),
        ({"optimiser": "adam"}, "eps", 1e-8),
    ],
)
def test_constants_of_the_optimisers(tiny_vit, settings, key, value):
    config = MethodConfig(**settings)
    assert make_optimiser(Trained(config, tiny_vit)).defaults[key] == value


def test_longer_and_no_warm_up():
    assert rates(10, warmup_epochs=3)[:4] == [1e-5, 1e-5, 1e-5, 0.002]
    assert rates(10, warmup_epochs=0)[0] == 0.002
    assert rates(1) == [1e-5]


def test_a_warm_up_is_never_above_the_rate_itself():
    assert rates(3, learning_rate=1e-7)[0] == 1e-7


class Two(Trained):
    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        self.kept = torch.nn.Parameter(torch.ones(2))
        self.still = torch.nn.Parameter(torch.ones(3))

    def trainable(self):
        return [self.kept]


def test_sgd(tiny_vit):
    config = MethodConfig(learning_rate=0.1, weight_decay=0.3)
    optimiser = make_optimiser(Two(config, tiny_vit))
    (group,) = optimiser.param_groups
    assert type(optimiser) is torch.optim.SGD
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 0.3)
    assert not group["nesterov"] and group["dampening"] == 0


def test_adamw_trains_what_the_method_says(tiny_vit):
    config = MethodConfig(optimiser="adamw", weight_decay=0.2)
    method = Two(config, tiny_vit)
    optimiser = make_optimiser(method)
    assert type(optimiser) is torch.optim.AdamW
    assert optimiser.param_groups[0]["weight_decay"] == 0.2
    assert optimiser.param_groups[0]["params"] == [method.kept]


def test_a_method_that_learns_nothing_has_an_optimiser(tiny_vit):
    config = MethodConfig()
    make_optimiser(Trained(config, tiny_vit)).step()


# ---------------------------------------------------------------- the order of an epoch


def epoch(weights, number):
    images = 5 if weights is None else len(weights)
    return epoch_order(images, weights, torch.Generator().manual_seed(number))


def test_every_image_once_without_weights_or_with_equal_ones():
    for weights in (None, torch.full((5,), 0.2)):
        orders = [epoch(weights, number).tolist() for number in range(20)]
        assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
        assert len(set(map(tuple, orders))) > 10


def test_an_image_comes_up_as_often_as_it_counts():
    weights = torch.tensor([0.1, 2.5, 1.0, 0.4, 1.0])
    met = torch.stack([epoch(weights, number).bincount(minlength=5) for number in range(2000)])
    assert (met.sum(1) == 5).all()
    assert (met >= weights.floor()).all() and (met <= weights.ceil()).all()
    torch.testing.assert_close(met.double().mean(0), weights.double(), atol=0.04, rtol=0)


def test_the_same_generator_gives_the_same_order():
    weights = torch.tensor([3.0, 1.0, 0.5])
    assert epoch(weights, 4).equal(epoch(weights, 4))
