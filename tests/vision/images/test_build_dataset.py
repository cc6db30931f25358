"""The seeded split: shares, determinism, independence of classes, groups."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.vision.images.build_dataset import OF_A_DRAW, Listed, sorted_keys, split_classes


def rows(key, count, domain=""):
    return [Listed(f"{domain}{key}/{place:03d}.jpg", key, domain=domain) for place in range(count)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 9))
def test_shares_and_determinism(counts, seed):
    listed = [row for place, count in enumerate(counts) for row in rows(f"c{place}", count)]
    split = split_classes(listed, seed, *OF_A_DRAW)
    assert set(split) == {row.path for row in listed} and split == split_classes(
        listed[::-1], seed, *OF_A_DRAW
    )
    for place, count in enumerate(counts):
        got = Counter(split[row.path] for row in listed if row.key == f"c{place}")
        assert got["train"] >= 1 and (count < 2 or got["test"] >= 1)
        assert abs(got["train"] - count / 2) <= 0.5 and abs(got["val"] - count / 5) <= 1


def test_a_new_class_leaves_the_others_alone():
    first = split_classes(rows("a", 20), 1, *OF_A_DRAW)
    second = split_classes(rows("zz", 7) + rows("a", 20), 1, *OF_A_DRAW)
    assert {path: split for path, split in second.items() if path in first} == first
    assert split_classes(rows("a", 20), 2, *OF_A_DRAW) != first


def test_domains_are_split_one_by_one():
    split = split_classes(rows("a", 10, "photo/") + rows("a", 10, "sketch/"), 1, *OF_A_DRAW)
    for domain in ("photo/", "sketch/"):
        own = Counter(found for path, found in split.items() if path.startswith(domain))
        assert own == {"train": 5, "val": 2, "test": 3}


def test_a_test_alone_takes_its_share_and_leaves_each_class_an_image():
    split = split_classes(rows("a", 10) + rows("b", 2) + rows("c", 1), 1, 0.0, 0.2)
    found = {
        key: Counter(split[row.path] for row in rows(key, count))
        for key, count in (("a", 10), ("b", 2), ("c", 1))
    }
    assert found == {"a": {"train": 8, "test": 2}, "b": {"train": 1, "test": 1}, "c": {"train": 1}}


def test_keys_sort_as_numbers_only_where_all_are():
    assert sorted_keys({"10", "9", "1"}) == ["1", "9", "10"]
    assert sorted_keys({"10", "9", "a"}) == ["10", "9", "a"]
