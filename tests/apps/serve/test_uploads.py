"""Multipart bodies, read in memory."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from pbprompt.apps.serve.limits import Limits, Refused
from pbprompt.apps.serve.uploads import FormReader

LIMITS = Limits(image_bytes=5000, images=2)
TYPE = "multipart/form-data; boundary=xyz"


def part(content: bytes, **options: str) -> bytes:
    pairs = "".join(f'; {key}="{value}"' for key, value in options.items())
    return f"--xyz\r\nContent-Disposition: form-data{pairs}\r\n\r\n".encode() + content + b"\r\n"


def read(body: bytes, step: int = 7, kind: str = TYPE) -> tuple[dict[str, str], list[dict[str, object]]]:
    async def chunks():
        for at in range(0, len(body), step):
            yield body[at : at + step]

    request = Request({"type": "http", "headers": [(b"content-type", kind.encode())]})
    return asyncio.run(FormReader(request, chunks(), LIMITS).read())


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=100).filter(lambda data: b"--xyz" not in data), st.integers(1, 300))
def test_files_and_fields_come_through_however_they_are_cut(data, step):
    body = part(data, name="files", filename="../a b.jpg") + part(b"3", name="top_k") + b"--xyz--\r\n"
    assert read(body, step) == ({"top_k": "3"}, [{"name": "../a b.jpg", "data": data}])


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300))
def test_nonsense_is_refused(body):
    with pytest.raises(Refused) as refused:
        read(body)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (part(bytes(5001), name="f", filename="a"), 413, "larger"),
        (part(b"", name="f", filename="a") * 4, 413, "2 images"),
        (part(b"", name="f") * 129, 400, "fields is 128"),
        (part(bytes(4097), name="f"), 400, "4KB"),
        (part(b"", name="f", filename="a", **{f"x{n}": "" for n in range(2000)}), 400, "form"),
        (part(b"", name="f", filename="a" * 9000), 400, "form|header"),
        (part(b"x", name="f", filename="a"), 400, "too early"),
    ],
)
def test_limits_hold_while_reading(body, status, says):
    with pytest.raises(Refused, match=says) as refused:
        read(body)
    assert refused.value.status == status


def test_a_boundary_is_needed():
    for options in ("", "; boundary=", "; boundary=" + "x" * 999):
        with pytest.raises(Refused) as refused:
            read(b"--xyz--", kind="multipart/form-data" + options)
        assert refused.value.status == 400
