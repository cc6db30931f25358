"""What the endpoints do: decode in a few threads, predict in batches, explain one at a time."""

import asyncio
import base64
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from PIL import Image
from torch import Tensor

from pbprompt.explain.drawing import draw_heat_maps, overlay
from pbprompt.serve.batching import Batcher
from pbprompt.serve.images import decode_image
from pbprompt.serve.limits import Limits, Refused, too_busy
from pbprompt.serve.metrics import Metrics
from pbprompt.serve.model import Outcome, ServedModel
from pbprompt.serve.schemas import AddClasses, Explain, Explanation, Predict, Predictions, Upload, prediction

SHOWN_SIDE = 640  # pixels of a heat map's longer side
DECODERS = 4  # threads at most: each may hold a whole photograph

T = TypeVar("T")


@dataclass(frozen=True)
class Picture:
    """A drawn explanation, as a PNG file."""

    png: bytes


class Service:
    """The work behind one app, and the threads that do it."""

    def __init__(self, model: ServedModel, limits: Limits, metrics: Metrics) -> None:
        self.model, self.limits, self.metrics = model, limits, metrics
        self.batcher: Batcher[Tensor, Outcome] = Batcher(
            self._predict_batch,
            capacity=limits.queue,
            batch=limits.batch,
            gather_seconds=limits.gather_seconds,
        )
        self._decoders = ThreadPoolExecutor(min(DECODERS, os.cpu_count() or 1), "decoder")
        self._side = ThreadPoolExecutor(1, "side")
        self._side_jobs = 0
        metrics.waiting.set_function(lambda: self.batcher.reserved)
        metrics.classes.set_function(lambda: len(model.classes))

    def start(self) -> None:
        self.batcher.start()

    def close(self) -> None:
        """Finish what was begun."""
        self.batcher.close()
        self._decoders.shutdown()
        self._side.shutdown()

    async def predict(self, asked: Predict) -> Predictions:
        with self.batcher.reserve(len(asked.images)):
            tensors = await self._decoded(asked.images, self._tensor)
            outcomes = await self.batcher.submit(tensors, self.limits.answer_seconds)
        named = enumerate(zip(asked.images, outcomes, strict=True), 1)
        said = [prediction(image.name or f"image {n}", outcome, asked) for n, (image, outcome) in named]
        return Predictions(predictions=said)

    async def explain(self, asked: Explain) -> Explanation | Picture:
        with self.batcher.reserve(1):
            (image,) = await self._decoded([asked.image], lambda data: decode_image(data, self.limits))
            return await self._aside(lambda: self._drawn(image, asked))

    async def add_classes(self, asked: AddClasses) -> None:
        await self._aside(lambda: self.model.add_classes(asked.names, self.limits))

    def _predict_batch(self, tensors: Sequence[Tensor]) -> list[Outcome]:
        self.metrics.batches.observe(len(tensors))
        return self.model.predict(tensors)

    def _tensor(self, data: bytes) -> Tensor:
        return self.model.tensor(decode_image(data, self.limits))

    async def _decoded(self, images: Sequence[Upload], decode: Callable[[bytes], T]) -> list[T]:
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(self._decoders, decode, image.data) for image in images]
        results = await asyncio.gather(*jobs, return_exceptions=True)
        decoded: list[T] = []
        for number, (image, result) in enumerate(zip(images, results, strict=True), 1):
            if isinstance(result, Refused):
                shown = f"image {number}" + (f" ({image.name})" if image.name else "")
                raise Refused(result.status, f"{shown}: {result.reason}")
            if isinstance(result, BaseException):
                raise result
            decoded.append(result)
        return decoded

    async def _aside(self, work: Callable[[], T]) -> T:
        """Rarer, longer work: one at a time, few in line."""
        if self._side_jobs >= self.limits.explanations:
            raise too_busy(f"{self._side_jobs} explanations wait already")
        self._side_jobs += 1
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                return await asyncio.wrap_future(self._side.submit(work))
        except TimeoutError:
            reason = f"no answer within {self.limits.answer_seconds:g} s: try again"
            raise Refused(503, reason, retry_after=5) from None
        finally:
            self._side_jobs -= 1

    def _drawn(self, image: Image.Image, asked: Explain) -> Explanation | Picture:
        maps, strongest = self.model.explain(image, asked.class_name, asked.samples)
        image.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
        if asked.format == "png":
            return Picture(_png(draw_heat_maps(maps, image, asked.reading)))
        heat = maps.of(asked.reading)[:, 0]
        # One scale of evidence for all classes: where nothing speaks for one, its map stays dark.
        scale = (0.0, strongest) if asked.reading == "evidence" else (None, None)
        return Explanation(
            class_name=asked.class_name,
            probability=float(maps.probabilities[0]),
            mean=_base64(overlay(image, heat.mean(0), *scale)),
            samples=[_base64(overlay(image, one, *scale)) for one in heat],
        )


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _base64(image: Image.Image) -> str:
    return base64.b64encode(_png(image)).decode()
