"""What epochs are made of: the order of the images, the optimiser and its rate, epochs made one ahead.

Without weights an epoch is a permutation. With weights w_i of mean 1 it is systematic sampling: n points lie
at equal distances, from a random start, over the images laid end to end in random order, each as long as its
weight. Image i comes up ⌊w_i⌋ or ⌈w_i⌉ times and w_i times on the average, so that the expected gradient is
that of the weighted loss

    (1/n) Σ_i w_i loss_i

whatever the method's loss is.
"""

import math
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.learners.method import MethodConfig
from pbprompt.learners.trained import Trained
from pbprompt.vision.images.decoding import begun

WARMUP_RATE = 1e-5
Made = TypeVar("Made")


def learning_rate(config: MethodConfig, epoch: float, epochs: float) -> float:
    """Constant 1e-5 in the warm-up; then ½·lr·(1 + cos(π·(epoch − warm-up)/epochs))."""
    if epoch < config.warmup_epochs:
        return min(WARMUP_RATE, config.learning_rate)
    return 0.5 * config.learning_rate * (1 + math.cos(math.pi * (epoch - config.warmup_epochs) / epochs))


def make_optimiser(method: Trained, *, captured: bool = False) -> torch.optim.Optimizer:
    """The optimiser over what a method trains, which stays in fp32.

    One that a CUDA graph captures has its learning rate on the device.
    """
    config = method.config
    rates = [(share, some) for share, some in method.rates() if some]
    rates = rates or [(1.0, [torch.nn.Parameter(torch.zeros(0))])]  # a method may learn nothing
    first = rates[0][1][0]
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": partial(torch.optim.SGD, momentum=config.momentum),
        "adam": partial(torch.optim.Adam, eps=config.adam_epsilon, capturable=captured),
        "adamw": partial(torch.optim.AdamW, eps=config.adam_epsilon, capturable=captured),
    }
    lr: Callable[[float], float | Tensor] = partial(torch.tensor, device=first.device) if captured else float
    groups = [
        {"params": some, "share": share, "lr": lr(share * config.learning_rate)} for share, some in rates
    ]
    fused = first.is_cuda  # one kernel for all parameters
    return kinds[config.optimiser](groups, weight_decay=config.weight_decay, fused=fused)


def epoch_order(
    images: int, weights: Float[Tensor, " n"] | None, generator: torch.Generator
) -> Int[Tensor, " n"]:
    """The rows of an epoch, one after the other."""
    order = torch.randperm(images, generator=generator)
    if weights is None:
        return order
    lengths = weights.cpu().double()[order]
    ends = (lengths * (images / lengths.sum())).cumsum(0)
    points = torch.arange(images, dtype=ends.dtype) + torch.rand(1, dtype=ends.dtype, generator=generator)
    met = torch.searchsorted(ends, points, right=True).clamp(max=images - 1)  # the last end is rounded
    return order[met][torch.randperm(images, generator=generator)]


def one_ahead(make: Callable[[int], Made], count: int) -> Callable[[int], Made]:
    """`make` of 0 to count − 1, where asking for one starts the next in the background.

    What `make` raises comes when its result is asked for.
    """
    ready: dict[int, Future[Made]] = {}

    def get(index: int) -> Made:
        made = (ready.pop(index, None) or begun(partial(make, index))).result()
        if index + 1 < count:  # Ctrl-C need not wait for an epoch that nobody will train on
            ready[index + 1] = begun(partial(make, index + 1))
        return made

    return get
