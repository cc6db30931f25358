"""The gradients of one training step; on CUDA they are captured once and replayed as one graph."""

import torch

from pbprompt import distributed
from pbprompt.clip.backbone import Encoded
from pbprompt.methods.base import Batch, Method, Terms

WARM_UP = 2  # plain steps before the capture, in which libraries make what they need once


class Gradients:
    """`gradients(batch, seed)` fills the gradients of a step and returns its terms.

    On a GPU, starting the short kernels of a step takes longer than running them. A method whose steps are
    always the same kernels (`Method.capturable`) is therefore captured as a CUDA graph after a few plain
    steps: the same kernels and the same numbers, started at once. Its noise is then drawn on the device, from
    the same seed in every run. All batches have one shape.
    """

    def __init__(self, method: Method, examples: int) -> None:
        self.method, self.examples = method, examples
        device = method.backbone.device
        self._capture = device.type == "cuda" and method.capturable and distributed.world()[1] == 1
        self._generator = torch.Generator(device if self._capture else "cpu")
        self._plain_steps = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Batch, seed: int) -> Terms:
        self._generator.manual_seed(seed)
        if not self._capture:
            return self._run(batch)
        if self._plain_steps < WARM_UP:
            self._plain_steps += 1
            return self._run_aside(batch)
        if self._graph is None:
            self._graph = self._captured(batch)
        for held, new in zip(_tensors(self._batch), _tensors(batch), strict=True):
            held.copy_(new)
        self._graph.replay()
        return dict(zip(self._names, self._values.clone().unbind(), strict=True))

    def _run(self, batch: Batch) -> Terms:
        for parameter in self.method.trainable():
            parameter.grad = None
        terms = self.method.loss(batch, self._generator, self.examples)
        self.method.backward(terms)
        return {name: term.detach() for name, term in terms.items()}

    def _run_aside(self, batch: Batch) -> Terms:
        """A plain step on another stream, as a capture has it: autograd remembers where gradients arrive."""
        stream, here = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            terms = self._run(batch)
        here.wait_stream(stream)
        return terms

    def _captured(self, batch: Batch) -> torch.cuda.CUDAGraph:
        global_, patches, labels = (tensor.clone() for tensor in _tensors(batch))
        self._batch = Batch(Encoded(global_, patches), labels)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        # other threads may be encoding the next epoch's views meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            terms = self._run(self._batch)
            self._names = list(terms)
            self._values = torch.stack([term.float() for term in terms.values()])
        return graph


def _tensors(batch: Batch) -> tuple[torch.Tensor, ...]:
    return (*batch.images, batch.labels)
