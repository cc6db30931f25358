"""Learning rates by formula, and the optimisers with their constants."""

import math
import threading

import pytest
import torch

from pbprompt.learners.method import MethodConfig
from pbprompt.learners.trained import Trained
from pbprompt.prompts.loop.schedule import epoch_order, learning_rate, make_optimiser, one_ahead


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


# ---------------------------------------------------------------- epochs made one ahead


def test_the_next_is_made_while_this_one_is_in_use():
    made, second = [], threading.Event()

    def make(index):
        made.append(index)
        if index == 1:
            second.set()
        return index * 10

    get = one_ahead(make, 3)
    assert get(0) == 0
    assert second.wait()  # nobody has asked for it yet
    assert [get(1), get(2)] == [10, 20]
    assert made == [0, 1, 2]


def test_it_starts_where_it_is_asked():
    assert one_ahead(str, 5)(3) == "3"


def test_an_error_comes_with_its_own_epoch():
    def make(index):
        if index == 1:
            raise ValueError("epoch 1")
        return index

    get = one_ahead(make, 2)
    assert get(0) == 0
    with pytest.raises(ValueError, match="epoch 1"):
        get(1)
