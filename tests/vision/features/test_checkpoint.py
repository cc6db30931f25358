"""What a pass keeps on the disk: whole or not at all, its own job's, and gone when it is needed no more."""

import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.vision.features import checkpoint as checkpoints
from pbprompt.vision.features.checkpoint import Checkpoint

JOB = {"images": ["a.tar"], "backbone": "x", "processes": 2}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kept"


def test_each_process_has_its_own_and_the_last_removes_the_folder(folder):
    first, second = (Checkpoint(folder, JOB, process) for process in (0, 1))
    assert first.read() is None and not folder.exists()
    for number, one in enumerate((first, second)):
        one.write(({"sums": torch.full((2,), float(number))}, {"failed": number}))
    tensors, facts = Checkpoint(folder, JOB, 1).read()
    assert tensors["sums"].tolist() == [1, 1] and facts["failed"] == 1
    (folder / ".0.safetensors.x").touch()  # as a kill leaves it
    first.remove()
    assert [path.name for path in folder.iterdir()] == ["1.safetensors"]
    second.remove()
    assert not folder.exists()


def test_another_jobs_is_refused_and_stays(folder):
    Checkpoint(folder, JOB, 1).write(({}, {}))  # of a process that this job has not
    content = (folder / "1.safetensors").read_bytes()
    with pytest.raises(
        InputError, match=r"kept: holds .* \(other images, processes\): choose another folder"
    ):
        Checkpoint(folder, {**JOB, "images": ["b.tar"], "processes": 1}).read()
    assert (folder / "1.safetensors").read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_what_is_none_is_told(folder, content):
    checkpoint = Checkpoint(folder, JOB)
    checkpoint.write(({"sums": torch.ones(3)}, {}))
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:-4] if content is None else content)
    with pytest.raises(InputError, match=r"0\.safetensors: not what a fit has gathered .*remove it"):
        checkpoint.read()


def test_a_flipped_byte_anywhere_is_told(folder):
    checkpoint = Checkpoint(folder, JOB)
    state = {"sums": torch.arange(3.0), "counts": torch.arange(2), "seen": torch.tensor(True)}
    checkpoint.write((state, {"failed": 3, "by_unit": {10: 1, 2: [0.1]}}))
    tensors, facts = checkpoint.read()
    assert tensors.keys() == state.keys() and facts["failed"] == 3
    good = checkpoint.path.read_bytes()
    same = 0
    for place in range(len(good)):
        checkpoint.path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        try:
            checkpoint.read()
            same += 1
        except InputError:
            pass
    assert same == 0


def test_it_is_written_now_and_then(folder, monkeypatch):
    now, written = 100.0, []
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now)
    monkeypatch.setattr(checkpoints, "write_bytes", lambda *_: slowly())
    checkpoint = Checkpoint(folder, JOB)

    def slowly() -> None:
        nonlocal now
        now += 3
        written.append(now)

    for now in (105.0, 110.0, 123.0, 172.0, 173.0):  # noqa: B007 - the clock reads it
        checkpoint.write_if_due(lambda: ({}, {}))
    assert written == [113.0, 176.0], "after ten seconds, then after twenty times what it took"
