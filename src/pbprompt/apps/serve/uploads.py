"""Reading a request's body into memory: multipart or JSON, every limit checked while reading.

Nothing of a client is written to disk, and its file names are text that is handed back, never a path.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from pbprompt.apps.serve.fairness import Shares
from pbprompt.apps.serve.limits import MIB, Limits, Refused, too_large, too_many_images
from pbprompt.apps.serve.schemas import Body, parsed_body

FIELDS, FIELD_BYTES = 128, 4096
JSON_VALUES = 10_000  # each takes many times its bytes once it is read


@asynccontextmanager
async def receive(
    request: Request, kind: type[Body], limits: Limits, held: Shares, *, form: str | None = None
) -> AsyncIterator[Body]:
    """The request's body, counted among the held bytes for as long as it is used."""
    taken = 0
    most = limits.request_bytes if form else min(limits.request_bytes, limits.fields_bytes)

    async def counted() -> AsyncGenerator[bytes, None]:
        nonlocal taken
        async for chunk in request.stream():
            if taken + len(chunk) > most:
                raise Refused(413, f"the request is larger than {most / MIB:g} MiB")
            held.take(len(chunk))
            taken += len(chunk)
            yield chunk

    try:
        try:
            async with asyncio.timeout(limits.receive_seconds):
                sent = await _read(request, counted(), limits, form)
        except TimeoutError:
            raise Refused(408, f"the request took longer than {limits.receive_seconds:g} s") from None
        except ClientDisconnect:
            raise Refused(400, "the client went away") from None
        body = await asyncio.to_thread(parsed_body, kind, sent)
        if len(getattr(body, "images", ())) > limits.images:
            raise too_many_images(limits)
        yield body
    finally:
        held.give_back(taken)


async def _read(
    request: Request, stream: AsyncGenerator[bytes, None], limits: Limits, form: str | None
) -> Any:
    match request.headers.get("content-type", "").partition(";")[0].strip().lower():
        case "multipart/form-data" if form:
            fields, images = await FormReader(request, stream, limits).read()
            if form == "files":
                return fields | {"images": images}
            if len(images) != 1:
                raise Refused(422, "send one image to explain")
            return fields | {"image": images[0]}
        case "application/json":
            return await asyncio.to_thread(_json, b"".join([chunk async for chunk in stream]))
    raise Refused(415, f"send application/json{' or multipart/form-data with files' if form else ''}")


def _json(body: bytes) -> Any:
    if sum(map(body.count, b"[{,")) > JSON_VALUES:
        raise Refused(413, f"the JSON has more than {JSON_VALUES:,} values")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not valid JSON") from None


class FormReader(MultiPartParser):
    """Multipart: every part with a file name is an image, every other a field.

    Starlette spools files larger than `spool_max_size` to disk: here they are refused before.
    """

    def __init__(self, request: Request, stream: AsyncGenerator[bytes, None], limits: Limits) -> None:
        super().__init__(request.headers, stream, max_fields=FIELDS, max_part_size=FIELD_BYTES)
        self.spool_max_size = limits.image_bytes
        self._limits = limits
        self._part_bytes = self._images = 0
        self._ended = False

    async def read(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The fields, and the images as JSON would have them."""
        try:
            parts = (await self.parse()).multi_items()
        except MultiPartException as error:
            raise Refused(400, f"the form data cannot be used: {error.message}") from None
        except (LookupError, UnicodeError):
            reason = "the form data cannot be used: its charset is not known, or is another"
            raise Refused(400, reason) from None
        if not self._ended:
            raise Refused(400, "the form data ends too early")
        fields: dict[str, Any] = {}
        images = []
        for name, value in parts:
            if isinstance(value, UploadFile):
                images.append({"name": value.filename, "data": await value.read()})
                await value.close()
            elif name in ("labels", "classes"):  # as many parts as there are
                fields.setdefault(name, []).append(value)
            else:
                fields[name] = value
        return fields, images

    def on_part_begin(self) -> None:
        super().on_part_begin()
        self._part_bytes = 0

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        super().on_part_data(data, start, end)
        self._part_bytes += end - start
        if self._part_bytes > self._limits.image_bytes:
            raise too_large(self._limits)

    def on_part_end(self) -> None:
        super().on_part_end()
        self._images += isinstance(self.items[-1][1], UploadFile)
        if self._images > self._limits.images:  # at once: the next ones are not kept
            raise too_many_images(self._limits)

    def on_end(self) -> None:
        self._ended = True
