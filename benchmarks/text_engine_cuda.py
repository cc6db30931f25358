"""The text engine on CUDA: plain, engine without CUDA graphs, engine; forward and backward in milliseconds.

python benchmarks/text_engine_cuda.py
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from pbprompt.bench.text import _plain_features, imagenet_like_prompts, vit_b16_text
from pbprompt.clip.engine import TextEngine


def timed(features: Callable[[Tensor], Tensor], context: Tensor, repeats: int, warm_up: int) -> float:
    """Median milliseconds of a forward and backward pass."""
    seconds = []
    for turn in range(warm_up + repeats):
        context.grad = None
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = features(context)
        out.backward(torch.ones_like(out))
        torch.cuda.synchronize()
        if turn >= warm_up:
            seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def main() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        backbone = vit_b16_text(dtype, "cuda")
        for classes in (1000, 101):
            prompts = imagenet_like_prompts(classes, 4)
            for kind, shape in (("shared", (4, 512)), ("per class", (classes, 4, 512))):
                context = (0.02 * torch.randn(*shape, device="cuda")).requires_grad_()
                plain = timed(lambda x: _plain_features(backbone, prompts, x, 0, classes), context, 5, 2)  # noqa: B023
                eager = timed(TextEngine(backbone, prompts, graph=False), context, 20, 6)
                engine = timed(TextEngine(backbone, prompts), context, 20, 6)
                figures = f"{plain:7.2f} {eager:7.2f} {engine:7.2f} {plain / engine:5.1f}x"
                print(f"{dtype} {classes:5} {kind:10} {figures}")


if __name__ == "__main__":
    main()
