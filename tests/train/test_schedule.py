"""Learning rates by formula, and the optimisers with their constants."""

import math

import pytest
import torch

from pbprompt.methods.base import Method, MethodConfig, build_method
from pbprompt.registry import find_method
from pbprompt.train.schedule import learning_rate, make_optimiser


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
    assert make_optimiser(Method(config, tiny_vit), config).defaults[key] == value


def test_longer_and_no_warm_up():
    assert rates(10, warmup_epochs=3)[:4] == [1e-5, 1e-5, 1e-5, 0.002]
    assert rates(10, warmup_epochs=0)[0] == 0.002
    assert rates(1) == [1e-5]


def test_a_warm_up_is_never_above_the_rate_itself():
    assert rates(3, learning_rate=1e-7)[0] == 1e-7


class Two(Method):
    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        self.kept = torch.nn.Parameter(torch.ones(2))
        self.still = torch.nn.Parameter(torch.ones(3))

    def trainable(self):
        return [self.kept]


def test_sgd(tiny_vit):
    config = MethodConfig(learning_rate=0.1, weight_decay=0.3)
    optimiser = make_optimiser(Two(config, tiny_vit), config)
    (group,) = optimiser.param_groups
    assert type(optimiser) is torch.optim.SGD
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0.9, 0.3)
    assert not group["nesterov"] and group["dampening"] == 0


def test_adamw_trains_what_the_method_says(tiny_vit):
    config = MethodConfig(optimiser="adamw", weight_decay=0.2)
    method = Two(config, tiny_vit)
    optimiser = make_optimiser(method, config)
    assert type(optimiser) is torch.optim.AdamW
    assert optimiser.param_groups[0]["weight_decay"] == 0.2
    assert optimiser.param_groups[0]["params"] == [method.kept]


def test_a_method_that_learns_nothing_has_an_optimiser(tiny_vit):
    config = MethodConfig()
    make_optimiser(Method(config, tiny_vit), config).step()


def test_a_method_without_steps_needs_no_optimiser(tiny_vit):
    """Making one would import torch's compiler, seconds of work beside a fit in closed form."""
    method = build_method(find_method("conjugate"), find_method("conjugate").Config(), tiny_vit, seed=0)
    assert make_optimiser(method, method.config) is None
