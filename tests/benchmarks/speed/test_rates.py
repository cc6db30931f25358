"""Images a second are images over the median's seconds."""

import time

import pytest

from benchmarks.speed.rates import rate


def test_images_a_second(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def run():
        now[0] += 0.5

    assert rate(run, 4, "cpu") == pytest.approx(8)
