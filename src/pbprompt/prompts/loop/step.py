"""One training step, and what it is made of: the order of the images, the learning rate, the optimiser."""

import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt import distributed
from pbprompt.learners.method import Batch, MethodConfig
from pbprompt.learners.trained import Terms, Trained
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.cuda_graphs import aside, captured
from pbprompt.vision.towers.kernels import float32_products
from pbprompt.vision.towers.taps import Tapped

WARM_UP = 2  # plain steps before the capture, in which libraries make what they need once
WARMUP_RATE = 1e-5


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
    rates = rates or [(1.0, [nn.Parameter(torch.zeros(0))])]  # a method may learn nothing
    device = rates[0][1][0].device
    lr: Any = partial(torch.tensor, device=device) if captured else float
    groups = [
        {"params": some, "share": share, "lr": lr(share * config.learning_rate)} for share, some in rates
    ]
    shared: Any = {"weight_decay": config.weight_decay, "fused": device.type == "cuda"}  # one kernel for all
    if config.optimiser == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, **shared)
    kind = torch.optim.AdamW if config.optimiser == "adamw" else torch.optim.Adam
    return kind(groups, eps=config.adam_epsilon, capturable=captured, **shared)


def epoch_order(
    images: int, weights: Float[Tensor, " n"] | None, generator: torch.Generator
) -> Int[Tensor, " n"]:
    """The rows of an epoch, one after the other.

    Without weights it is a permutation. With weights w_i of mean 1 it is systematic sampling: n points lie at
    equal distances, from a random start, over the images laid end to end in random order, each as long as its
    weight. Image i comes up ⌊w_i⌋ or ⌈w_i⌉ times and w_i times on the average, so that the expected gradient
    is that of the weighted loss (1/n) Σ_i w_i loss_i, whatever the method's loss is.
    """
    order = torch.randperm(images, generator=generator)
    if weights is None:
        return order
    lengths = weights.cpu().double()[order]
    ends = (lengths * (images / lengths.sum())).cumsum(0)
    points = torch.arange(images, dtype=ends.dtype) + torch.rand(1, dtype=ends.dtype, generator=generator)
    met = torch.searchsorted(ends, points, right=True).clamp(max=images - 1)  # the last end is rounded
    return order[met][torch.randperm(images, generator=generator)]


class Step:
    """`step(images, rows, seed, rate)` learns from those rows of the images and returns the loss's terms.

    On a GPU, starting the short kernels of a step takes longer than running them. A method whose steps are
    always the same kernels (`Trained.capturable`) is therefore captured as a CUDA graph after a few plain
    steps, the optimiser with it: the same kernels and the same numbers, started at once. Its noise is then
    drawn on the device, from the same seed in every run. All batches have one shape.

    Before a half-precision tower the method's own float32 matrices are multiplied on the tensor cores: what
    comes out is rounded to as many bits on its way into the tower.
    """

    def __init__(self, method: Trained, examples: int) -> None:
        self.method, self.examples = method, examples
        device = method.backbone.device
        self._capture = device.type == "cuda" and method.capturable and distributed.world()[1] == 1
        self.optimiser = make_optimiser(method, captured=self._capture)
        self._generator = torch.Generator(device if self._capture else "cpu")
        self.begun = 0  # updates of the parameters, the one under way among them
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, images: Batch, rows: Int[Tensor, " b"], seed: int, rate: float) -> Terms:
        self._generator.manual_seed(seed)
        self._set_rate(rate)
        if not self._capture:
            return self._run(_rows_of(images, rows))
        if self.begun < WARM_UP:
            with aside():
                return self._run(_rows_of(images, rows))
        if self._graph is None:
            self._graph = self._captured(_rows_of(images, rows))
        held, new = ((*batch.images, batch.labels) for batch in (self._batch, images))
        for into, some in zip(held, new, strict=True):
            torch.index_select(some, 0, rows, out=into)
        self.begun += 1
        self._graph.replay()
        return dict(zip(self._names, self._values.clone().unbind(), strict=True))

    def _set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            own = rate * group["share"]
            if not self._capture:
                group["lr"] = own
            elif group.get("rate") != own:
                group["lr"].fill_(own)  # where the graph reads it
                group["rate"] = own

    def _run(self, batch: Batch) -> Terms:
        method = self.method
        for parameter in method.trainable():
            parameter.grad = None
        towers = method.backbone
        noise = towers.noisy(self._generator.initial_seed()) if isinstance(towers, Tapped) else nullcontext()
        with float32_products(tensor_cores=towers.dtype.itemsize < 4), noise:
            terms = method.loss(method.encoded(batch), self._generator, self.examples)
            method.backward(terms)
        distributed.average([own.grad for own in method.trainable() if own.grad is not None])
        if method.config.clip_norm:
            torch.nn.utils.clip_grad_norm_(method.trainable(), method.config.clip_norm)
        self.begun += 1
        self.optimiser.step()
        return {name: term.detach() for name, term in terms.items()}

    def _captured(self, batch: Batch) -> torch.cuda.CUDAGraph:
        self._batch = batch
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with captured(graph):
            terms = self._run(self._batch)
            self.begun -= 1  # only captured
            self._names = list(terms)
            self._values = torch.stack([term.float() for term in terms.values()])
        return graph


def _rows_of(images: Batch, rows: Int[Tensor, " b"]) -> Batch:
    (global_, patches), labels, _ = images
    return Batch(Encoded(global_[rows], patches[rows]), labels[rows])
