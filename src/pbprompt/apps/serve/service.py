"""What the endpoints do: decode in a few processes, predict in batches, explain one at a time."""

import asyncio
import base64
import ctypes
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image

from pbprompt.apps.explain.cases import draw_case
from pbprompt.apps.explain.drawing import draw_heat_maps, overlay, seen
from pbprompt.apps.serve import schemas
from pbprompt.apps.serve.batching import Batcher
from pbprompt.apps.serve.fairness import Shares, Turns
from pbprompt.apps.serve.images import decode_image, shown_jpeg
from pbprompt.apps.serve.limits import MIB, Limits, Refused, in_time
from pbprompt.apps.serve.middleware import Metrics
from pbprompt.apps.serve.model import (
    explain,
    like_photographs,
    ready,
    rule_and_note,
    single_spaced,
    with_classes,
    with_examples,
    without_class,
)
from pbprompt.apps.serve.schemas import (
    AddClasses,
    Examples,
    Explain,
    Explanation,
    LikePart,
    Predict,
    Predictions,
    Upload,
)
from pbprompt.learners.predictive import Prediction
from pbprompt.model.monitoring import at_fit, unsure_below
from pbprompt.model.rule import Rule
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.crops import Cropper
from pbprompt.vision.images.images import encoded_image
from pbprompt.vision.images.names import known_as
from pbprompt.vision.images.workers import Workers, available_cpus
from pbprompt.vision.towers.backbone import Encoded

SHOWN_SIDE = 640  # pixels of the longer side of a heat map, or of an image to label
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
        self, model: TunedModel, limits: Limits, metrics: Metrics, photographs: Path | None = None
    ) -> None:
        self._photographs = photographs
        self.model, self.limits, self.metrics = ready(model), limits, metrics
        self._fitted = model
        self._own = frozenset(model.classes)  # fitted or learned, not only named
        self._rule = lru_cache(maxsize=limits.visits)(rule_and_note)  # asked with every image
        self._calibration = model.calibration  # of these
        self._visits: OrderedDict[tuple[TunedModel, tuple[str, ...]], TunedModel] = OrderedDict()
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
        return [name for name in self.model.classes if name not in self._own]

    async def predict(self, asked: Predict) -> Predictions:
        with self._room.taken(len(asked.images)):
            async with in_time(self.limits.answer_seconds):
                model = await self._visited(asked.classes)
                shares = asked.reject_at, asked.coverage, asked.none_at, asked.back_off
                rule, note = self._rule(model, self._fitted, self._own, *shares)
                squares = await self._squares(asked.images)
                said = await self.batcher.submit([Question(one, model, rule) for one in squares])
        self._count(said)
        records = []
        for number, (image, one) in enumerate(zip(asked.images, said, strict=True), 1):
            name = image.name or f"image {number}"
            records.append(schemas.Prediction(image=name, **one.to_dict(asked.top_k)))
        return Predictions(predictions=records, note=note)

    def _count(self, said: Sequence[Prediction]) -> None:
        """For /metrics; names that clients have brought are nobody else's business, and without end."""
        for one in said:
            for label in (one.label,) if one.labels is None else one.labels:
                self.metrics.answers.labels(label if label in self._own else "(added)").inc()
            self.metrics.unsure.inc(bool(one.unsure))
            if one.familiarity is not None:
                self.metrics.familiarity.observe(one.familiarity)

    async def explain(self, asked: Explain) -> Explanation | bytes:
        """The maps, or drawn as one PNG."""
        with self._room.taken(1):
            async with in_time(self.limits.answer_seconds):
                model = await self._visited(asked.classes)
                (image,) = await self._decoded([asked.image])
                return await self._aside(lambda: self._drawn(model, image, asked))

    async def add_classes(self, asked: AddClasses) -> None:
        async with in_time(self.limits.answer_seconds), self._changing:
            # Nothing is awaited after this: who gets a 503 has changed nothing.
            self.model = await self._aside(lambda: with_classes(self.model, asked.names, self.limits))

    async def remove_class(self, name: str) -> None:
        async with in_time(self.limits.answer_seconds), self._changing:
            self.model = await self._aside(
                lambda: without_class(self.model, name, self._own, self._calibration)
            )

    async def learn(self, asked: Examples) -> None:
        if len(asked.labels) != len(asked.images):
            raise Refused(422, f"{len(asked.images)} images and {len(asked.labels)} labels: send one each")
        with self._room.taken(len(asked.images)):
            async with in_time(self.limits.answer_seconds):
                squares = await self._squares(asked.images)
                await self.teach(
                    lambda model: with_examples(model, _seen(model, squares), asked.labels, self.limits),
                    asked.labels,
                )
        self.metrics.examples.inc(len(squares))

    async def teach(self, learned: Callable[[TunedModel], TunedModel], labels: Sequence[str]) -> None:
        """Let the model become what it is after labelled images, which `learned` makes of it."""
        async with self._changing:
            self.take(await self._aside(lambda: learned(self.model)), labels)

    def take(self, model: TunedModel, labels: Sequence[str]) -> None:
        """Answer by what the model has become; the classes of its labels are its own from now on."""
        self.model = ready(model)
        self._own |= frozenset(known_as(model.classes, list(map(single_spaced, labels))))
        self._calibration = None

    async def picture(self, path: Path) -> bytes:
        """An image of this machine as a JPEG that any browser shows."""
        return await self._decode(shown_jpeg, str(path), SHOWN_SIDE)

    async def _visited(self, names: Sequence[str]) -> TunedModel:
        """The model with a request's own classes: nobody else's request has them."""
        if not names:
            return self.model
        key = (self.model, tuple(names))
        if key in self._visits:
            self._visits.move_to_end(key)
        else:
            self._visits[key] = await self._aside(lambda: with_classes(key[0], names, self.limits))
            while len(self._visits) > self.limits.visits:
                self._visits.popitem(last=False)
        return self._visits[key]

    def _predict_batch(self, asked: Sequence[Question]) -> list[Prediction]:
        """The tower, which all models share, and one pass for each model and rule."""
        self.metrics.batches.observe(len(asked))
        images = _seen(asked[0].model, [one.square for one in asked])
        said: list[Prediction] = []
        for (model, rule), alike in groupby(asked, lambda one: (one.model, one.rule)):
            rows = slice(len(said), len(said) + len(list(alike)))
            said += model.predict(Encoded(*(part[rows] for part in images)), rule)
        return said

    async def _squares(self, images: Sequence[Upload]) -> list[Image.Image]:
        return await self._decoded(images, self.model.backbone.preprocess.cropper)

    async def _decoded(self, images: Sequence[Upload], cropper: Cropper | None = None) -> list[Image.Image]:
        jobs = [self._decode(decode_image, image.data, self.limits, cropper) for image in images]
        results = await asyncio.gather(*jobs, return_exceptions=True)
        decoded: list[Image.Image] = []
        for number, (image, result) in enumerate(zip(images, results, strict=True), 1):
            if isinstance(result, Refused):
                shown = f"image {number}" + (f" ({image.name})" if image.name else "")
                later = int(result.headers.get("Retry-After", 0)) or None
                raise Refused(result.status, f"{shown}: {result.reason}", retry_after=later)
            if isinstance(result, BaseException):
                raise result
            decoded.append(result)
        return decoded

    async def _decode(self, decode: Callable[..., T], *given: object) -> T:
        """In another process, which is ended when it is late: no thread could be."""
        try:
            async with self._decoding_turns.turn():
                return await asyncio.wrap_future(self._decoding.submit(self._asked, decode, *given))
        except TimeoutError:
            limit = self.limits.decode_seconds
            raise Refused(422, f"the image takes longer than {limit:g} s to decode") from None
        except EOFError:
            raise Refused(503, "the image was not decoded: the decoder failed twice", retry_after=5) from None

    def _asked(self, decode: Callable[..., T], *given: object) -> T:
        """Asked again where a decoder dies: the system may have ended it, whatever the image."""
        try:
            return self._decoders.ask(decode, *given)
        except EOFError:
            return self._decoders.ask(decode, *given)

    async def _aside(self, work: Callable[[], T]) -> T:
        """Rarer, longer work: one at a time, few in line."""
        with self._side_room.taken(1):
            async with self._side_turns.turn():
                return await asyncio.wrap_future(self._side.submit(work))

    def _drawn(self, model: TunedModel, image: Image.Image, asked: Explain) -> Explanation | bytes:
        maps, strongest = explain(model, image, asked.class_name, asked.samples)
        png = asked.format == "png"
        alike = [] if png else like_photographs(model, image, maps.classes, self._photographs)
        image.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
        if png:
            return encoded_image(draw_heat_maps(maps, image, asked.reading))
        heat = maps.of(asked.reading)[:, 0]
        # One scale of contributions for all classes: where nothing speaks for one, its map stays dark.
        hottest = max(0.0, strongest) if asked.reading == "contribution" else None
        square = seen(image, fit=maps.fit, cropped=maps.cropped)
        return Explanation(
            class_name=asked.class_name,
            score=float(maps.probabilities[0]),
            range=(float(heat.mean(0).min()), float(heat.mean(0).max())),
            mean=_base64(overlay(square, heat.mean(0), hottest)),
            samples=[_base64(overlay(square, one, hottest)) for one in heat],
            parts=[
                LikePart(
                    logit=part.logit,
                    box=part.box,
                    photograph=part.photograph.name,
                    place=part.place,
                    picture=_base64(draw_case(part, image, model)),
                )
                for part in alike
            ],
        )


async def give_memory_back() -> None:
    """Now and then what is free: glibc keeps it for each thread, more and more of it for hours."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        trim = ctypes.CDLL(None).malloc_trim
        while True:
            await asyncio.sleep(TRIM_SECONDS)
            await asyncio.to_thread(trim, 0)


def _seen(model: TunedModel, squares: Sequence[Image.Image]) -> Encoded:
    return model.encode([model.backbone.preprocess.normalised(square) for square in squares])


def _base64(image: Image.Image) -> str:
    return base64.b64encode(encoded_image(image)).decode()
