"""Memory behind a handle: one sees what the other wrote, also after it has grown, and never another file."""

import os

import pytest

from pbprompt.data.shared import Shared, nameless_file


@pytest.mark.parametrize("of_memory", [True, False])
def test_both_see_the_same_bytes_and_more_of_them_when_it_has_grown(of_memory, monkeypatch):
    if not of_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    ours = Shared(nameless_file())
    theirs = Shared(os.dup(ours.handle))
    ours.memory(3)[:] = bytes([7, 7, 7])
    assert theirs.memory(3).tolist() == [7, 7, 7]
    theirs.memory(3)[1] = 8
    assert ours.memory(100_000)[:4].tolist() == [7, 8, 7, 0]
    ours.memory(100_000)[-1] = 9
    assert theirs.memory(100_000)[-1] == 9
    for one in (ours, theirs):
        one.close()


def test_a_closed_one_touches_no_file_that_has_its_number_now(tmp_path):
    shared = Shared(nameless_file())
    held = shared.memory(5)
    number = shared.handle
    shared.close()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    assert other == number
    with pytest.raises(EOFError):
        shared.memory(5)
    assert os.fstat(other).st_size == 0 and held.tolist() == [0] * 5
    os.close(other)
