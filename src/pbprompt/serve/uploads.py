"""Reading a request's images and fields into memory: multipart or JSON, every limit checked while reading.

Nothing of a client is written to disk, and its file names are text that is handed back, never a path.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect, Request

from pbprompt.serve.form_data import FormReader
from pbprompt.serve.images import decode_base64
from pbprompt.serve.limits import MIB, Limits, Refused, too_busy, too_many_images

NAME_LENGTH = 200


@dataclass(frozen=True)
class Upload:
    """One image as sent, with the name the client gave it."""

    name: str
    data: bytes


@dataclass
class Sent:
    """What a request holds."""

    images: list[Upload] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)


class HeldBytes:
    """How much all requests hold together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, count: int) -> None:
        if self.held + count > self.limit:
            raise too_busy("too much is being uploaded at once")
        self.held += count

    def give_back(self, count: int) -> None:
        self.held -= count


@asynccontextmanager
async def receive(
    request: Request, limits: Limits, held: HeldBytes, *, forms: bool = True
) -> AsyncIterator[Sent]:
    """The request's content, counted among the held bytes for as long as it is used."""
    taken = 0
    reader = _reader(request, limits, forms)
    try:
        try:
            async with asyncio.timeout(limits.receive_seconds):
                async for chunk in request.stream():
                    if taken + len(chunk) > limits.request_bytes:
                        raise Refused(413, f"the request is larger than {limits.request_bytes / MIB:g} MiB")
                    held.take(len(chunk))
                    taken += len(chunk)
                    reader.feed(chunk)
        except TimeoutError:
            raise Refused(408, f"the request took longer than {limits.receive_seconds:g} s") from None
        except ClientDisconnect:
            raise Refused(400, "the client went away") from None
        yield reader.finish()
    finally:
        held.give_back(taken)


def _reader(request: Request, limits: Limits, forms: bool) -> "FormUpload | JsonUpload":
    kind = request.headers.get("content-type", "")
    match kind.partition(";")[0].strip().lower():
        case "multipart/form-data" if forms:
            return FormUpload(kind, limits)
        case "application/json":
            return JsonUpload(limits)
    raise Refused(415, f"send application/json{' or multipart/form-data with files' if forms else ''}")


class FormUpload:
    """Multipart: every part with a file name is an image, every other a field."""

    def __init__(self, content_type: str, limits: Limits) -> None:
        self._form = FormReader(content_type, limits)

    def feed(self, chunk: bytes) -> None:
        self._form.feed(chunk)

    def finish(self) -> Sent:
        sent = Sent()
        for part in self._form.finish():
            if part.file_name is None:
                sent.fields[part.name] = bytes(part.data).decode("utf-8", "replace")
            else:
                sent.images.append(Upload(readable(part.file_name), bytes(part.data)))
        return sent


class JsonUpload:
    """JSON: `images` (or one `image`) are base64 or {"name": …, "data": base64}; the rest are fields."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._body = bytearray()

    def feed(self, chunk: bytes) -> None:
        self._body += chunk

    def finish(self) -> Sent:
        fields = parse_object(bytes(self._body))
        images = [fields.pop("image")] if "image" in fields else fields.pop("images", [])
        if not isinstance(images, list):
            raise Refused(422, "images: send a list")
        if len(images) > self._limits.images:
            raise too_many_images(self._limits)
        return Sent([self._image(number, given) for number, given in enumerate(images)], fields)

    def _image(self, number: int, given: Any) -> Upload:
        if isinstance(given, str):
            given = {"data": given}
        if not isinstance(given, dict) or not isinstance(given.get("data"), str):
            raise Refused(422, f'images[{number}]: send base64 text or {{"name": …, "data": base64}}')
        name = given.get("name", f"image {number + 1}")
        if not isinstance(name, str):
            raise Refused(422, f"images[{number}].name: send text")
        try:
            return Upload(readable(name), decode_base64(given["data"], self._limits))
        except Refused as refused:
            raise Refused(refused.status, f"images[{number}]: {refused.reason}") from None


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise Refused(422, "send a JSON object")
    return value


def readable(name: str) -> str:
    """A client's name for an image, as text that can always be written: no control characters, not long."""
    text = name.encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else "�" for c in text[:NAME_LENGTH])
