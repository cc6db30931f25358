"""Hostile images cannot hold the decoders, the answers or the server's end."""

import io
import os
import time

import pytest
from PIL import Image, JpegImagePlugin
from real_server import RealServer

from pbprompt.apps.serve.app import create_app
from pbprompt.apps.serve.images import decode_image
from pbprompt.apps.serve.limits import Limits, Refused
from pbprompt.vision.images.workers import Workers


def many_scans(scans: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again, at some ten bytes each."""
    buffer = io.BytesIO()
    Image.new("L", (640, 640), 128).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + data[-2:]


@pytest.fixture
def stuck(monkeypatch):
    """Decoders that never come to an end."""
    ask = Workers.ask
    monkeypatch.setattr(Workers, "ask", lambda self, decode, *given: ask(self, time.sleep, 600))


def test_scans_are_counted_before_they_are_decoded(monkeypatch):
    data = many_scans(40_000)
    assert len(data) < 600_000
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", lambda image: 1 / 0)
    with pytest.raises(Refused) as refused:
        decode_image(data, Limits())
    assert refused.value.status == 422 and "40,005 scans of 640 × 640" in refused.value.reason


def test_a_progressive_photograph_is_no_such_thing():
    assert decode_image(many_scans(20), Limits()).size == (640, 640)


def test_what_takes_too_long_is_refused(model, cat, stuck):
    with RealServer(create_app(model, limits=Limits(decode_seconds=0.1)), "http://localhost") as client:
        answer = client.post("/predict", files=[("files", ("a.jpg", cat))])
        assert answer.status_code == 422 and "0.1 s" in answer.json()["error"]


def test_late_decoders_are_a_503_and_do_not_hold_the_end(model, cat, stuck):
    limits = Limits(decode_seconds=600, answer_seconds=0.1)
    with RealServer(create_app(model, limits=limits), "http://localhost") as client:
        answer = client.post("/predict", files=[("files", ("a.jpg", cat))] * 3)
        assert answer.status_code == 503 and answer.headers["retry-after"] == "5"


@pytest.mark.parametrize(("deaths", "status"), [(1, 200), (2, 503)])
def test_a_decoder_that_was_killed_is_no_fault_of_the_image(model, cat, monkeypatch, deaths, status):
    left, ask = [os._exit] * deaths, Workers.ask

    def killed_at_first(self, decode, *given):
        return ask(self, left.pop(), 137) if left else ask(self, decode, *given)

    monkeypatch.setattr(Workers, "ask", killed_at_first)
    with RealServer(create_app(model), "http://localhost") as client:
        answer = client.post("/predict", files=[("files", ("a.jpg", cat))])
        assert answer.status_code == status and ("retry-after" in answer.headers) == (status == 503)
