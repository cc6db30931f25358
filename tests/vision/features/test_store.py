"""The stored features: kills, concurrent writers, damage and the size limit lose nothing but time."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from pbprompt import files
from pbprompt.errors import InputError
from pbprompt.vision.features import store as feature_store
from pbprompt.vision.features.store import (
    FeatureStore,
    ShardWriter,
    clear,
    file_hashes,
    memory_file,
    prune,
    total_bytes,
    usage,
)
from pbprompt.vision.images.locations import state

DIM, PATCHES = 4, 3


def make(cache, transform="test"):
    return FeatureStore(cache, backbone="b", fingerprint="f", precision="float32", transform=transform)


def rows(*values):
    """Rows that tell which value they hold."""
    column = torch.tensor(values, dtype=torch.float32)
    return column[:, None].repeat(1, DIM), column[:, None, None].repeat(1, PATCHES, DIM).half()


def put(store, **values):
    store.write(list(values), *rows(*values.values()))


def get(store, *keys):
    """Values by key; None where missing."""
    global_, patches = torch.full((len(keys), DIM), -1.0), torch.full((len(keys), PATCHES, DIM), -1.0).half()
    missing = store.read(keys, global_, patches)
    for row in range(len(keys)):
        value = -1.0 if row in missing else global_[row, 0].item()
        assert (global_[row] == value).all() and (patches[row] == value).all()
    return [None if row in missing else global_[row, 0].item() for row in range(len(keys))]


def shards(store):
    return sorted(store.folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)


def age(path, seconds):
    when = time.time() - seconds
    os.utime(path, (when, when))


@pytest.fixture(autouse=True)
def nothing_in_use(monkeypatch):
    monkeypatch.setattr(feature_store, "in_use", set())


def test_read_back_last_write_wins(tmp_path):
    store = make(tmp_path)
    assert get(store, "a") == [None]
    put(store, a=1, b=2)
    put(store, c=3, a=4)
    assert get(store, "c", "x", "a", "b", "a") == [3, None, 4, 2, 4]
    assert get(make(tmp_path, "another"), "a") == [None]
    assert not list(store.folder.glob(".*"))


def test_torn_line_is_passed_over_and_does_not_swallow_the_next(tmp_path):
    store = make(tmp_path)
    put(store, a=1)
    put(store, b=2)
    index = store.folder / "index.jsonl"
    index.write_bytes(index.read_bytes()[:-20])  # killed while the second line was written
    assert get(store, "a", "b") == [1, None]
    put(store, c=3)
    assert get(store, "a", "b", "c") == [1, None, 3]


def test_every_cut_of_the_index_is_read(tmp_path):
    log = tmp_path / "log.jsonl"
    files.append_records(log, [{"n": 1}, {"n": 22}])
    whole = log.read_bytes()
    for cut in range(len(whole) + 1):
        log.write_bytes(whole[:cut])
        found = [record["n"] for record in files.read_records(log)]
        assert found == [1, 22][: whole[:cut].count(b"}")]
        files.append_records(log, [{"n": 3}])
        assert [record["n"] for record in files.read_records(log)] == [*found, 3]


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_truncated_shard_is_a_miss(tmp_path, keep):
    store = make(tmp_path)
    put(store, a=1)
    (shard,) = shards(store)
    shard.write_bytes(shard.read_bytes()[:keep])
    assert get(store, "a") == [None]
    put(store, a=2)
    assert get(store, "a") == [2]


@pytest.mark.parametrize("value", [float("nan"), 7.0])
def test_a_shard_whose_values_changed_is_a_miss(tmp_path, value):
    store = make(tmp_path)
    put(store, a=1, b=2)
    (shard,) = shards(store)
    tensors = load_file(shard)
    tensors["patches"][1, 2, 3] = value
    save_file(tensors, shard)
    assert get(store, "a") == [1], "only the rows that are wanted are read"
    assert get(store, "a", "b") == [None, None] and not shards(store)
    put(store, a=1, b=2)
    assert get(store, "a", "b") == [1, 2]


def test_a_shard_without_checksums_is_a_miss(tmp_path):
    store = make(tmp_path)
    put(store, a=1)
    index = store.folder / "index.jsonl"
    line = json.loads(index.read_text())
    del line["sums"]
    index.write_text(json.dumps(line) + "\n")
    assert get(store, "a") == [None]
    put(store, a=2)
    assert get(store, "a") == [2]


@pytest.mark.parametrize(
    "line",
    [
        "1",
        "[]",
        "{}",
        '{"shard": 1, "keys": []}',
        '{"shard": "../x", "keys": ["a"]}',
        '{"shard": "x", "keys": ["a"], "sums": 1}',
        "[" * 9999,
    ],
)
def test_index_lines_that_are_none_are_passed_over(tmp_path, line):
    store = make(tmp_path)
    put(store, a=1)
    for path in (store.folder / "index.jsonl", memory_file(tmp_path, tmp_path)):
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(f"{line}\n")
    assert get(store, "a") == [1] and usage(tmp_path)[0].entries == 1
    assert prune(tmp_path, 1e9) == 0 and get(store, "a") == [1]
    assert len(file_hashes(tmp_path, tmp_path, [str(shards(store)[0].relative_to(tmp_path))])) == 1


def test_missing_shard_is_a_miss(tmp_path):
    store = make(tmp_path)
    put(store, a=1)
    put(store, b=2)
    shards(store)[0].unlink()
    assert sorted(get(store, "a", "b"), key=str) in ([1, None], [2, None])


def test_abandoned_files_are_pruned_and_young_ones_are_not(tmp_path):
    store = make(tmp_path)
    put(store, a=1)
    (good,) = shards(store)
    for name, old in (("x", True), ("y", False)):
        orphan = store.folder / f"{name}.safetensors"
        orphan.write_bytes(good.read_bytes())
        half = store.folder / f".{name}.safetensors.k2j3"
        half.write_bytes(b"half")
        if old:
            age(orphan, 7200)
            age(half, 7200)
    age(good, 7200)
    assert prune(tmp_path, 1e9) == good.stat().st_size
    assert {path.name for path in store.folder.iterdir()} == {
        good.name, "y.safetensors", ".y.safetensors.k2j3", "index.jsonl", "about.json"
    }  # fmt: skip
    assert get(store, "a") == [1]


def test_least_recently_used_go_first_and_reading_is_using(tmp_path):
    store, other = make(tmp_path), make(tmp_path, "other")
    for place, (owner, key) in enumerate([(store, "a"), (store, "b"), (other, "c"), (store, "d")]):
        before = set(shards(owner))
        put(owner, **{key: place})
        (new,) = set(shards(owner)) - before
        age(new, 100 - place)
    get(store, "a")
    size = total_bytes(tmp_path) // 4
    assert prune(tmp_path, 2 * size) == 2 * size
    assert (get(store, "a", "b", "d"), get(other, "c")) == ([0, None, 3], [None])
    assert not other.folder.exists()
    lines = list(files.read_records(store.folder / "index.jsonl"))
    assert [line["keys"] for line in lines] == [["a"], ["d"]]


def test_what_this_process_used_is_spared(tmp_path):
    store = make(tmp_path)
    put(store, a=1)
    put(store, b=2)
    assert prune(tmp_path, 0, spare=feature_store.in_use) == 0
    assert prune(tmp_path, 0, spare=[shards(store)[0]]) > 0
    assert len(shards(store)) == 1


def test_usage_and_clear(tmp_path):
    assert usage(tmp_path / "none") == [] and prune(tmp_path / "none", 0) == 0
    store = make(tmp_path)
    put(store, a=1, b=2)
    put(store, b=3)
    (use,) = usage(tmp_path)
    assert (use.entries, use.about["transform"]) == (2, "test")
    assert use.bytes == sum(path.stat().st_size for path in shards(store)) == total_bytes(tmp_path)
    assert clear(tmp_path) == use.bytes
    assert usage(tmp_path) == [] and get(store, "a") == [None]


def test_writer_cuts_shards_and_writes_the_rest_on_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_store, "SHARD_IMAGES", 4)
    store = make(tmp_path)
    with pytest.raises(ZeroDivisionError), ShardWriter(store) as writer:
        for place in range(5):
            writer.add([f"{place}a", f"{place}b"], *rows(place, place))
        raise ZeroDivisionError
    assert sorted(len(line["keys"]) for line in files.read_records(store.folder / "index.jsonl")) == [2, 4, 4]
    assert get(store, "0a", "2b", "4b") == [0, 2, 4]


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write features to .*PBPROMPT_CACHE"):
        put(make(tmp_path / "file"), a=1)
    with (
        pytest.warns(UserWarning, match="images are encoded each time"),
        ShardWriter(make(tmp_path / "file")) as writer,
    ):
        for place in range(3):
            writer.add([str(place)], *rows(place))
            writer.flush()


WRITER = """
import os, signal, sys, torch
from pathlib import Path
from pbprompt.vision.features.store import FeatureStore
from pbprompt.vision.features.store import prune
cache = Path(sys.argv[1])
name = "p" if os.fork() else "q" if os.fork() else "r"  # three processes, of which one imported torch
store = FeatureStore(cache, backbone="b", fingerprint="f", precision="float32", transform="test")
for place in range(40):
    value = torch.full((1, 4), float(place))
    store.write([f"{name}{place}"], value, value[:, None].repeat(1, 3, 1).half())
    if place % 10 == 0:
        prune(cache, 1e9)  # rewrites nothing that others just added
os.write(1, f"{name}\\n".encode())
signal.pause()  # until killed
"""


def test_processes_write_at_once_and_are_killed(tmp_path, child):
    running = child([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE)
    whole = [running.stdout.readline().strip() for _ in range(2)]
    os.killpg(running.pid, signal.SIGKILL)  # the third perhaps in the middle of a write
    rest = running.stdout.read()  # which ends with the last of them
    assert set(whole) | set(rest.split()) <= set("pqr") and len(set(whole)) == 2
    store = make(tmp_path)
    for name in "pqr":
        found = get(store, *(f"{name}{place}" for place in range(40)))
        assert found == list(range(40)) or (
            name not in whole and all(value in (None, place) for place, value in enumerate(found))
        )


def test_hashes_are_remembered_and_follow_the_content(tmp_path, monkeypatch):
    root, cache = tmp_path / "root", tmp_path / "cache"
    root.mkdir()
    (root / "a").write_bytes(b"abc")
    monkeypatch.setattr(feature_store, "SETTLED_NS", 0)
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of "abc", as published
    assert file_hashes(cache, root, ["a", "a"]) == {"a": known}
    path, seen, digest = json.loads(memory_file(cache, root).read_text())
    assert (path, seen[:2], digest) == ("a", [3, (root / "a").stat().st_mtime_ns], known)
    memory_file(cache, root).write_text(json.dumps(["a", seen, "remembered"]) + "\n")
    assert file_hashes(cache, root, ["a"]) == {"a": "remembered"}
    monkeypatch.setattr(feature_store, "SETTLED_NS", 10**10)
    (root / "a").write_bytes(b"abd")  # same size, and too young to be remembered
    assert file_hashes(cache, root, ["a"])["a"] not in ("remembered", known)
    assert len(memory_file(cache, root).read_text().splitlines()) == 1


@pytest.mark.parametrize("replace", [False, True])
def test_another_content_of_the_same_size_and_time_is_seen(tmp_path, monkeypatch, replace):
    monkeypatch.setattr(feature_store, "SETTLED_NS", 0)
    file, before = tmp_path / "a", b"abc"
    file.write_bytes(before)
    first, named = file_hashes(tmp_path / "cache", tmp_path, ["a"]), state(file)
    when = file.stat().st_mtime_ns
    (tmp_path / "b" if replace else file).write_bytes(b"abd")
    os.utime(tmp_path / "b" if replace else file, ns=(when, when))
    if replace:
        (tmp_path / "b").replace(file)
    assert file.stat().st_mtime_ns == when
    assert file_hashes(tmp_path / "cache", tmp_path, ["a"]) != first and state(file) != named


def test_a_file_that_cannot_be_read_is_reported(tmp_path):
    (error,) = file_hashes(tmp_path / "cache", tmp_path, ["none.png"]).values()
    assert isinstance(error, InputError) and "none.png" in str(error)
