"""The seeded split: shares, determinism, independence of classes, groups."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.data.assemble import Row, seeded_split, sorted_keys


def rows(key, count, domain=""):
    return [Row(f"{domain}{key}/{place:03d}.jpg", key, domain=domain) for place in range(count)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 9))
def test_shares_and_determinism(counts, seed):
    listed = [row for place, count in enumerate(counts) for row in rows(f"c{place}", count)]
    split = seeded_split(listed, seed)
    assert [row.path for row in split] == [row.path for row in listed]
    assert {row.path: row.split for row in seeded_split(listed[::-1], seed)} == {
        r.path: r.split for r in split
    }
    for place, count in enumerate(counts):
        got = Counter(row.split for row in split if row.key == f"c{place}")
        assert got["train"] >= 1 and (count < 2 or got["test"] >= 1)
        assert abs(got["train"] - count / 2) <= 0.5 and abs(got["val"] - count / 5) <= 1


def test_a_new_class_leaves_the_others_alone():
    first = seeded_split(rows("a", 20), 1)
    second = seeded_split(rows("zz", 7) + rows("a", 20), 1)
    assert [row for row in second if row.key == "a"] == first
    assert seeded_split(rows("a", 20), 2) != first


def test_domains_are_split_one_by_one():
    split = seeded_split(rows("a", 10, "photo/") + rows("a", 10, "sketch/"), 1)
    for domain in ("photo/", "sketch/"):
        assert Counter(row.split for row in split if row.domain == domain) == {
            "train": 5,
            "val": 2,
            "test": 3,
        }


def test_keys_sort_as_numbers_only_where_all_are():
    assert sorted_keys({"10", "9", "1"}) == ["1", "9", "10"]
    assert sorted_keys({"10", "9", "a"}) == ["10", "9", "a"]
