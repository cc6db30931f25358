"""The bound that the whole of a batch is held to, and how far off other ways to decode are."""

import pytest
import torch

from benchmarks import ways_to_decode
from benchmarks.batch import Cost, medians, pictures


def test_the_whole_is_held_to_the_smaller_of_its_own_turn():
    def turn(decoding, tower, whole):
        return {"decoding": Cost(decoding, 3, 3), "tower": Cost(tower, 1, 0), "whole": Cost(whole, 4, 3)}

    found = medians([turn(100, 200, 90), turn(300, 200, 150), turn(100, 400, 99)])
    assert found["whole"]["beside_bound"] == 0.9 and found["whole"]["rate"] == 99
    assert found["whole"]["beside_tower"] == pytest.approx(0.45)


def test_ways_that_promise_pillows_bits_keep_them(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(ways_to_decode, "OTHERS", {})
    found = ways_to_decode.measure(pictures(1), turns=1)
    exact = ("Pillow", "Pillow, cropped after both its passes", "Pillow, reducing_gap=1", "Pillow, draft")
    assert all(found[name].off == found[name].share == 0 for name in exact)
    assert found["Pillow, colours converted after resizing"].off > 1
    near = [found["Pillow, the kept box alone resized"], found["Pillow, then torch's uint8 resize"]]
    assert all(one.off <= 1 and one.share < 0.01 for one in near)
