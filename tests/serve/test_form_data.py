"""Multipart bodies, read in memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.serve.form_data import FormReader
from pbprompt.serve.limits import Limits, Refused

LIMITS = Limits(image_bytes=100, images=2)
TYPE = "multipart/form-data; boundary=xyz"


def part(content: bytes, **options: str) -> bytes:
    pairs = "".join(f'; {key}="{value}"' for key, value in options.items())
    return f"--xyz\r\nContent-Disposition: form-data{pairs}\r\n\r\n".encode() + content + b"\r\n"


def read(body: bytes, step: int = 7) -> list[tuple[str, str | None, bytes]]:
    reader = FormReader(TYPE, LIMITS)
    for at in range(0, len(body), step):
        reader.feed(body[at : at + step])
    return [(found.name, found.file_name, bytes(found.data)) for found in reader.finish()]


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=100).filter(lambda data: b"--xyz" not in data), st.integers(1, 300))
def test_files_and_fields_come_through_however_they_are_cut(data, step):
    body = part(data, name="files", filename="../a b.jpg") + part(b"3", name="top_k") + b"--xyz--\r\n"
    assert read(body, step) == [("files", "../a b.jpg", data), ("top_k", None, b"3")]


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300))
def test_nonsense_is_refused(body):
    with pytest.raises(Refused) as refused:
        read(body)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (part(bytes(101), name="f", filename="a"), 413, "larger"),
        (part(b"", name="f", filename="a") * 3, 413, "2 images"),
        (part(b"", name="f") * 33, 400, "32 fields"),
        (part(bytes(5000), name="f"), 413, "longer"),
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
        with pytest.raises(Refused):
            FormReader("multipart/form-data" + options, LIMITS)
