"""Multipart form data read in memory, part by part.

The framework's own parser spools files to disk; this one, over the same tokeniser, never does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from pbprompt.serve.limits import Limits, Refused, too_large, too_many_images

FIELDS, FIELD_BYTES, HEADER_BYTES = 32, 4096, 8192


@dataclass
class Part:
    """One part of a form; a file name makes it a file."""

    name: str = ""
    file_name: str | None = None
    data: bytearray = field(default_factory=bytearray)


class FormReader:
    """Feed it the body in chunks; `finish` gives the parts."""

    def __init__(self, content_type: str, limits: Limits) -> None:
        self._limits = limits
        self._parts: list[Part] = []
        self._header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._disposition = b""
        self._header_bytes = 0
        self._ended = False
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise Refused(400, "multipart/form-data without a boundary")
        callbacks: dict[str, Callable[..., Any]] = {
            "on_part_begin": self._begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        except FormParserError:
            raise _malformed() from None

    def feed(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise _malformed() from None

    def finish(self) -> list[Part]:
        if not self._ended:
            raise Refused(400, "the form data ends too early")
        return self._parts

    def _begin(self) -> None:
        self._parts.append(Part())
        self._disposition, self._header_bytes = b"", 0

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._add_header(0, data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._add_header(1, data[start:end])

    def _add_header(self, which: int, piece: bytes) -> None:
        self._header_bytes += len(piece)
        if self._header_bytes > HEADER_BYTES:
            raise Refused(400, "the headers of a form part are too long")
        self._header[which].extend(piece)

    def _header_end(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = (bytearray(), bytearray())

    def _headers_finished(self) -> None:
        options = parse_options_header(self._disposition)[1]
        part = self._parts[-1]
        part.name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            part.file_name = options[b"filename"].decode("utf-8", "replace")
        files = sum(part.file_name is not None for part in self._parts)
        if files > self._limits.images:
            raise too_many_images(self._limits)
        if len(self._parts) - files > FIELDS:
            raise Refused(400, f"more than {FIELDS} fields in a form")

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = self._parts[-1]
        part.data.extend(memoryview(data)[start:end])
        if part.file_name is not None and len(part.data) > self._limits.image_bytes:
            raise too_large(self._limits)
        if part.file_name is None and len(part.data) > FIELD_BYTES:
            raise Refused(413, f"form field {part.name[:40]!r} is longer than {FIELD_BYTES} bytes")

    def _end(self) -> None:
        self._ended = True


def _malformed() -> Refused:
    return Refused(400, "the body is not valid multipart/form-data")
