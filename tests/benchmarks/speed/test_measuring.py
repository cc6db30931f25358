"""Timings and peaks of memory, in a process of their own on a CPU."""

import os
import time

import pytest
import torch

from benchmarks.speed.measuring import DidNotFitError, apart, measure, take_device
from pbprompt.errors import InputError

MIB = 1 << 20


def hold(mib):
    def run():
        torch.ones(mib * MIB // 4)

    return measure(run, "cpu", repeats=2)


def leave():
    os._exit(1)


def allocate_far_too_much():
    return torch.empty(1 << 60, dtype=torch.uint8)


def test_the_peak_is_the_works_own():
    small, large = (apart("cpu", hold, mib).gib * 1024 for mib in (40, 200))
    assert 39 <= small < 80 and 199 <= large < 240


def test_calls_in_a_process_of_their_own():
    assert apart("cpu", os.getpid) != os.getpid()


@pytest.mark.parametrize("work", [leave, allocate_far_too_much])
def test_what_does_not_fit_is_told(work):
    with pytest.raises(DidNotFitError):
        apart("cpu", work)


def test_a_long_run_is_timed_once_and_a_short_one_often(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    calls = []

    def run(seconds):
        calls.append(seconds)
        now[0] += seconds

    assert measure(lambda: run(3.0), "cpu", repeats=10, limit=2.0).repeats == 1 == len(calls)
    calls.clear()
    short = measure(lambda: run(0.1), "cpu", repeats=10, limit=2.0)
    assert short.repeats == 10 and len(calls) == 11 and short.seconds == pytest.approx(0.1)
    calls.clear()
    assert measure(lambda: run(0.9), "cpu", repeats=10, limit=2.0).repeats == 3


@pytest.mark.parametrize("device", ["gpu", "tpu:0"])
def test_devices_that_are_not_known(device):
    with pytest.raises(InputError, match="device '"):
        take_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA")
def test_cuda_that_is_not_there():
    with pytest.raises(InputError, match="sees no CUDA"):
        take_device("cuda")
