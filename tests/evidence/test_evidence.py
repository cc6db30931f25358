"""Evidence gathered from a stream against evidence of images that are all there."""

import pytest
import torch
from gather import gather
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.errors import InputError
from pbprompt.evidence import evidence
from pbprompt.evidence.evidence import Evidence, Gathering, Kept

unit = torch.nn.functional.normalize
KEPT, BLOCK = 12, 5


@pytest.fixture(autouse=True)
def few_are_kept(monkeypatch):
    monkeypatch.setattr(evidence, "KEPT", KEPT)
    monkeypatch.setattr(evidence, "BLOCK", BLOCK)


def drawn(count: int, classes: int = 4, width: int = 6, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    images = 7 * torch.randn(count, width, generator=generator)
    return images, torch.randint(classes, (count,), generator=generator)


def same(mine: Evidence, theirs: Evidence, *, in_order: bool = True) -> None:
    for one, other in zip(mine.statistics, theirs.statistics, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    first, second = (kept if in_order else kept.in_order() for kept in (mine.kept, theirs.kept))
    assert all(map(torch.equal, first, second))


def batches(images, labels, *sizes: int):
    at = 0
    while at < len(labels):
        for size in sizes:
            yield images[at : at + size], labels[at : at + size]
            at += size


@pytest.mark.parametrize("count", [1, 5, 11, 12, 13, 40])
@pytest.mark.parametrize("sizes", [(1,), (3, 0, 4), (100,)])
def test_a_stream_gives_what_all_images_give(count, sizes):
    images, labels = drawn(count)
    found = gather(batches(images, labels, *sizes), 6, classes=4)
    same(found, Evidence.of(unit(images), labels, 4))
    assert len(found.kept.keys) == min(count, KEPT)


def test_classes_are_those_that_were_met():
    images, labels = drawn(30)
    assert gather([(images, labels)], 6).classes == 4
    assert gather([(images, labels)], 6, classes=9).classes == 9
    assert gather([], 6).classes == 0


def test_no_more_is_held_than_a_block():
    gathering = Gathering(6)
    for images, labels in batches(*drawn(60), 2, 1, 23):
        gathering.add(images, labels)
        assert gathering.held < BLOCK
        assert len(gathering._kept.keys) <= KEPT
    assert gathering.images == 60


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 60), st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_going_on_from_what_was_kept_changes_no_bit(count, sizes):
    images, labels = drawn(count)
    whole, kept = Gathering(6), Gathering(6)
    for some in batches(images, labels, *sizes, 1):
        whole.add(*some)
        kept.add(*some)
        kept = Gathering.from_tensors({name: value.clone() for name, value in kept.tensors().items()})
        assert (kept.images, kept.held) == (whole.images, whole.held)
    one, other = whole.evidence(4), kept.evidence(4)
    assert all(map(torch.equal, (*one.statistics, *one.kept), (*other.statistics, *other.kept)))


def test_what_was_kept_must_fit_together():
    gathering = Gathering(6)
    gathering.add(*drawn(9))
    whole = gathering.tensors()
    for name in whole:
        with pytest.raises((ValueError, KeyError)):
            Gathering.from_tensors({**whole, name: torch.zeros(2, 5)})
        with pytest.raises(KeyError):
            Gathering.from_tensors({key: value for key, value in whole.items() if key != name})


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.data())
def test_any_order_and_any_sharing_out(count, data):
    images, labels = drawn(count)
    images[count // 2] = images[0]  # one picture twice, perhaps with two labels
    whole = Evidence.of(unit(images), labels, 4)
    order = torch.tensor(data.draw(st.permutations(range(count))))
    ends = sorted(data.draw(st.lists(st.integers(0, count), min_size=2, max_size=2)))
    a, b, c = (gather([(images[rows], labels[rows])], 6, 4) for rows in torch.tensor_split(order, ends))
    same(a.merged(b).merged(c), whole, in_order=False)
    same(a.merged(b.merged(c)), whole, in_order=False)
    same(c.merged(a).merged(b), whole, in_order=False)


def test_parts_may_have_met_other_classes():
    images, labels = drawn(20)
    first = labels < 2
    a, b = (gather([(images[rows], labels[rows])], 6) for rows in (first, ~first))
    assert (a.classes, b.classes) == (2, 4)
    same(a.merged(b), Evidence.of(unit(images), labels, 4), in_order=False)
    same(b.merged(a), Evidence.of(unit(images), labels, 4), in_order=False)


def test_relabelled():
    images, labels = drawn(30)
    places = torch.tensor([3, 0, 5, 1])
    whole = Evidence.of(unit(images), labels, 4).relabelled(places, 6)
    same(whole, Evidence.of(unit(images), places[labels], 6), in_order=False)


def test_keys_are_of_the_bits_and_nothing_else():
    images = unit(drawn(9)[0])
    odd = (torch.arange(6) * 2654435761 + 40503) | 1
    expected = (images.view(torch.int32).long() * odd).sum(1)
    assert torch.equal(Kept.of(images, torch.zeros(9, dtype=torch.long)).keys, expected)


def test_what_is_no_number_is_refused():
    gathering = Gathering(6)
    with pytest.raises(InputError, match="NaN"):
        gathering.add(torch.full((2, 6), torch.nan), torch.tensor([0, 1]))
    assert gathering.images == 0
