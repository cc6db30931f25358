"""Optimiser and learning rate, as the field's protocol has them."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pbprompt.methods.base import Method, MethodConfig

WARMUP_RATE = 1e-5


def learning_rate(config: MethodConfig, epoch: float, epochs: int) -> float:
    """Constant 1e-5 in the warm-up; then ½·lr·(1 + cos(π·(epoch − warm-up)/epochs))."""
    if epoch < config.warmup_epochs:
        return min(WARMUP_RATE, config.learning_rate)
    return 0.5 * config.learning_rate * (1 + math.cos(math.pi * (epoch - config.warmup_epochs) / epochs))


def make_optimiser(
    method: Method, config: MethodConfig, *, captured: bool = False
) -> torch.optim.Optimizer | None:
    """The optimiser over what a method trains, which stays in fp32; None for a method that takes no step.

    One that a CUDA graph captures has its learning rate on the device. Making one imports torch's compiler,
    which takes longer than a fit in closed form.
    """
    if not method.stepwise:
        return None
    parameters = method.trainable() or [torch.nn.Parameter(torch.zeros(0))]  # a method may learn nothing
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": partial(torch.optim.SGD, momentum=config.momentum),
        "adam": partial(torch.optim.Adam, eps=config.adam_epsilon, capturable=captured),
        "adamw": partial(torch.optim.AdamW, eps=config.adam_epsilon, capturable=captured),
    }
    rate: float | Tensor = config.learning_rate
    if captured:
        rate = torch.tensor(rate, device=parameters[0].device)
    fused = parameters[0].is_cuda  # one kernel for all parameters
    return kinds[config.optimiser](parameters, lr=rate, weight_decay=config.weight_decay, fused=fused)
