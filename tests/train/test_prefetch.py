"""Each is made once, in order, the next one while this one is in use."""

import threading

import pytest

from pbprompt.train.prefetch import one_ahead


def test_the_next_is_made_while_this_one_is_in_use():
    made, second = [], threading.Event()

    def make(index):
        made.append(index)
        if index == 1:
            second.set()
        return index * 10

    get = one_ahead(make, 3)
    assert get(0) == 0
    assert second.wait()  # nobody has asked for it yet
    assert [get(1), get(2)] == [10, 20]
    assert made == [0, 1, 2]


def test_it_starts_where_it_is_asked():
    assert one_ahead(str, 5)(3) == "3"


def test_an_error_comes_with_its_own_epoch():
    def make(index):
        if index == 1:
            raise ValueError("epoch 1")
        return index

    get = one_ahead(make, 2)
    assert get(0) == 0
    with pytest.raises(ValueError, match="epoch 1"):
        get(1)
