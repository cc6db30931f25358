"""What the endpoints do: decode in a few processes, predict in batches, explain one at a time."""

import asyncio
import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image

from pbprompt.apps.serve import schemas
from pbprompt.apps.serve.batching import Batcher
from pbprompt.apps.serve.explain import SHOWN_SIDE, explain
from pbprompt.apps.serve.fairness import Shares, Turns
from pbprompt.apps.serve.images import decode_image, shown_jpeg
from pbprompt.apps.serve.limits import MIB, Limits, Refused, in_time
from pbprompt.apps.serve.middleware import Metrics
from pbprompt.apps.serve.model import (
    new_names,
    rule_and_note,
    single_spaced,
    with_classes,
    with_examples,
)
from pbprompt.learners.predictive import Prediction
from pbprompt.model.decisions import Rule
from pbprompt.model.monitoring import at_fit, unsure_below
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.crops import Cropper
from pbprompt.vision.images.names import known_as, missing_names
from pbprompt.vision.images.workers import Workers, available_cpus
from pbprompt.vision.towers.backbone import Encoded

DECODERS = 4  # processes at most: each may hold a whole photograph
TRIM_SECONDS = 5.0
PIXEL_BYTES = 32  # that decoding and converting a pixel may take

T = TypeVar("T")


class Question(NamedTuple):
    """An image, and the model and rule that it was sent to: classes may be added while it waits."""

    square: Image.Image
    model: TunedModel
    rule: Rule


class Service:
    """The work behind one app, the model as it is now, and the threads that do it."""

    def __init__(
        self,
        model: TunedModel,
        limits: Limits,
        metrics: Metrics,
        photographs: Path | None = None,
        comparing: TunedModel | None = None,
    ) -> None:
        self.limits, self.metrics = limits, metrics
        self._photographs, self._comparing = photographs, comparing
        self._fitted = model
        self.take(model)
        self._rule = lru_cache(maxsize=limits.visits)(rule_and_note)  # asked with every image
        self._visits: dict[tuple[TunedModel, tuple[str, ...]], TunedModel] = {}
        self._room = Shares(limits.queue, "{} images wait already")  # until answered: decoding counts too
        self.batcher: Batcher[Question, Prediction] = Batcher(
            self._predict_batch,
            batch=limits.batch,
            gather_seconds=limits.gather_seconds,
            expected=lambda: self._room.held,
        )
        count = min(DECODERS, available_cpus())
        memory = 256 * MIB + PIXEL_BYTES * limits.image_pixels
        self._decoders = Workers(
            count, memory=memory, seconds=limits.decode_seconds, prepare=decode_image.__module__
        )
        self._decoding, self._decoding_turns = ThreadPoolExecutor(count, "decoding"), Turns(count)
        self._side, self._side_turns = ThreadPoolExecutor(1, "side"), Turns(1)
        self._side_room = Shares(limits.explanations, "{} such jobs wait already")
        self._changing = asyncio.Lock()
        metrics.waiting.set_function(lambda: self._room.held)
        metrics.classes.set_function(lambda: len(self.model.classes))
        if model.calibration:
            before, threshold = at_fit(model.calibration), unsure_below(model.calibration)
            weights = model.calibration.weights / len(before.confidence)
            metrics.unsure_at_fit.set(float(weights @ (np.asarray(before.confidence) < threshold)))
            for name, weight in zip(before.labels, weights, strict=False):  # no labels: of a model of before
                metrics.class_at_fit.labels(name).inc(weight)

    def close(self) -> None:
        """Answer what waits for the model, and end the rest."""
        self._decoders.close()
        for threads in (self._decoding, self._side):
            threads.shutdown(cancel_futures=True)
        self.batcher.close()

    @property
    def added(self) -> list[str]:
        """Classes that clients added by name alone."""
        return list(self.model.classes[len(self._base.classes) :])

    async def predict(self, request: schemas.Predict) -> schemas.Predictions:
        with self._room.taken(len(request.images)):
            async with in_time(self.limits.answer_seconds):
                model = await self._visited(request.classes)
                shares = request.reject_at, request.coverage, request.none_at, request.back_off
                rule, note = self._rule(model, self._fitted, self._base, *shares)
                squares = await self._decoded(request.images, model.backbone.preprocess.cropper)
                answers = await self.batcher.submit([Question(one, model, rule) for one in squares])
        self._count(answers)
        records = []
        for number, (image, answer) in enumerate(zip(request.images, answers, strict=True), 1):
            name = image.name or f"image {number}"
            records.append(schemas.Prediction(image=name, **answer.to_dict(request.top_k)))
        return schemas.Predictions(predictions=records, note=note)

    def _count(self, answers: Sequence[Prediction]) -> None:
        """For /metrics; names that clients have brought are nobody else's business, and without end."""
        for one in answers:
            for label in (one.label,) if one.labels is None else one.labels:
                self.metrics.answers.labels(label if label in self._base.classes else "(added)").inc()
            self.metrics.unsure.inc(bool(one.unsure))
            if one.familiarity is not None:
                self.metrics.familiarity.observe(one.familiarity)

    async def explain(self, request: schemas.Explain) -> schemas.Explanation | bytes:
        """The maps, or drawn as one PNG."""
        with self._room.taken(1):
            async with in_time(self.limits.answer_seconds):
                model = await self._visited(request.classes)
                (image,) = await self._decoded([request.image])
                by = self._comparing or model
                return await self._aside(lambda: explain(model, image, request, self._photographs, by))

    async def add_classes(self, names: Sequence[str]) -> None:
        async with in_time(self.limits.answer_seconds):
            await self._change(
                lambda: (self._base, [*self.added, *new_names(names, self.model.classes, self.limits)])
            )

    async def remove_class(self, name: str) -> None:
        """One that is not there is gone already."""
        (name,) = known_as(self.model.classes, [single_spaced(name)])
        if name in self._base.classes:
            raise Refused(409, f"class {name!r} is the model's own: only added ones can be removed")
        async with in_time(self.limits.answer_seconds):
            await self._change(lambda: (self._base, [one for one in self.added if one != name]))

    async def learn(self, request: schemas.Examples) -> None:
        images, labels = request.images, request.labels
        if len(labels) != len(images):
            raise Refused(422, f"{len(images)} images and {len(labels)} labels: send one each")
        with self._room.taken(len(images)):
            async with in_time(self.limits.answer_seconds):
                squares = await self._decoded(images, self.model.backbone.preprocess.cropper)
                await self.teach(
                    lambda base: with_examples(base, _seen(base, squares), labels, self.added, self.limits)
                )
        self.metrics.examples.inc(len(squares))

    async def teach(self, learned: Callable[[TunedModel], TunedModel]) -> None:
        """Let the model become what `learned` makes of it; classes that it learned are its own."""

        def changed() -> tuple[TunedModel, list[str]]:
            base = learned(self._base)
            return base, missing_names(base.classes, self.added)

        await self._change(changed)

    async def _change(self, changed: Callable[[], tuple[TunedModel, Sequence[str]]]) -> None:
        """Answer by another model of the server's own, with these classes added."""

        def made() -> tuple[TunedModel, TunedModel]:
            base, added = changed()
            if base is self._base and added == self.added:
                return base, self.model
            return base, with_classes(base, added, self.limits)

        async with self._changing:
            # Nothing is awaited after this: who gets a 503 has changed nothing.
            self._base, self.model = await self._aside(made)

    def take(self, model: TunedModel) -> None:
        """Answer by this model, without added classes."""
        self._base = self.model = with_classes(model, (), self.limits)

    async def picture(self, path: Path) -> bytes:
        """An image of this machine as a JPEG that any browser shows."""
        return await self._decode(shown_jpeg, str(path), SHOWN_SIDE)

    async def _visited(self, names: Sequence[str]) -> TunedModel:
        """The model with a request's own classes: nobody else's request has them."""
        if not names:
            return self.model
        model = self.model
        key = model, tuple(names)
        visited = self._visits.pop(key, None)
        if visited is None:
            visited = await self._aside(lambda: with_classes(model, names, self.limits))
        self._visits[key] = visited  # the last that will be forgotten
        if len(self._visits) > self.limits.visits:
            del self._visits[next(iter(self._visits))]
        return visited

    def _predict_batch(self, questions: Sequence[Question]) -> list[Prediction]:
        """The tower, which all models share, and one pass for each model and rule."""
        self.metrics.batches.observe(len(questions))
        images = _seen(questions[0].model, [one.square for one in questions])
        answers: list[Prediction] = []
        for (model, rule), alike in groupby(questions, lambda one: (one.model, one.rule)):
            rows = slice(len(answers), len(answers) + len(list(alike)))
            answers += model.predict(Encoded(*(part[rows] for part in images)), rule)
        return answers

    async def _decoded(
        self, images: Sequence[schemas.Upload], cropper: Cropper | None = None
    ) -> list[Image.Image]:
        jobs = [self._decode(decode_image, image.data, self.limits, cropper) for image in images]
        results = await asyncio.gather(*jobs, return_exceptions=True)
        decoded: list[Image.Image] = []
        for number, (image, result) in enumerate(zip(images, results, strict=True), 1):
            if isinstance(result, Refused):
                shown = f"image {number}" + (f" ({image.name})" if image.name else "")
                raise Refused(result.status, f"{shown}: {result.reason}", retry_after=result.retry_after)
            if isinstance(result, BaseException):
                raise result
            decoded.append(result)
        return decoded

    async def _decode(self, decode: Callable[..., T], *given: object) -> T:
        """In another process, which is ended when it is late: no thread could be."""
        try:
            async with self._decoding_turns.turn():
                return await asyncio.wrap_future(self._decoding.submit(self._ask, decode, *given))
        except TimeoutError:
            limit = self.limits.decode_seconds
            raise Refused(422, f"the image takes longer than {limit:g} s to decode") from None
        except EOFError:
            raise Refused(503, "the image was not decoded: the decoder failed twice", retry_after=5) from None

    def _ask(self, decode: Callable[..., T], *given: object) -> T:
        """Once more where a decoder dies: the system may have ended it, whatever the image."""
        with suppress(EOFError):
            return self._decoders.ask(decode, *given)
        return self._decoders.ask(decode, *given)

    async def _aside(self, work: Callable[[], T]) -> T:
        """Rarer, longer work: one at a time, few in line."""
        with self._side_room.taken(1):
            async with self._side_turns.turn():
                return await asyncio.wrap_future(self._side.submit(work))


async def give_memory_back() -> None:
    """Now and then what is free: glibc keeps it for each thread, more and more of it for hours."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        trim = ctypes.CDLL(None).malloc_trim
        while True:
            await asyncio.sleep(TRIM_SECONDS)
            await asyncio.to_thread(trim, 0)


def _seen(model: TunedModel, squares: Sequence[Image.Image]) -> Encoded:
    return model.encode([model.backbone.preprocess.normalised(square) for square in squares])
