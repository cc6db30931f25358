"""Parts on the disk: every record once, whatever ends the job, and nothing of others overwritten."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.batch.output import MANIFEST, Output
from pbprompt.batch.parts import Answer, Mark, Written, _part
from pbprompt.data.stream import Files, Record
from pbprompt.errors import InputError

JOB = {"model": "a"}
UNITS = [Files(tuple(Record(f"{unit}-{place}", b"") for place in range(5))) for unit in range(3)]


class Said:
    def __init__(self, value: str) -> None:
        self.value = value

    def to_dict(self) -> dict:
        return {"label": self.value}


def parts(units, size: int = 2):
    """What a job makes: every third image cannot be read."""
    for number, unit, skip in units:
        records = list(unit.records(skip))
        for at in range(0, len(records), size):
            some = records[at : at + size]
            answers = [
                Answer(one.name, InputError("bad") if one.name.endswith("2") else Said(one.name), None)
                for one in some
            ]
            mark = Mark(number, unit.identity, skip + at, at + size >= len(records))
            yield _part(mark, answers, Written(".jsonl"))


def answered(path) -> list[str]:
    return [json.loads(line)["image"] for line in path.read_text().splitlines()]


NAMES = [f"{unit}-{place}" for unit in range(3) for place in range(5)]
GOOD, BAD = [name for name in NAMES if name[-1] != "2"], ["0-2", "1-2", "2-2"]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=4), st.booleans(), st.integers(1, 4))
def test_whatever_is_done_before_an_end_every_image_is_there_once(tmp_path_factory, ends, whole, size):
    folder = tmp_path_factory.mktemp("out")
    out = str(folder / "a.jsonl") + ("" if whole else "/")
    for number in ends:  # each process gets so many parts done
        with Output(out).opened(JOB) as output:
            for part, _ in zip(parts(output.todo(UNITS), size), range(number), strict=False):
                output.add(part)
    with Output(out).opened(JOB) as output:
        for part in parts(output.todo(UNITS), size):
            output.add(part)
        output.finish()
        assert (output.rows, output.failures) == (12, 3)
    if whole:
        assert answered(folder / "a.jsonl") == GOOD and answered(folder / "a.failed.jsonl") == BAD
        assert sorted(path.name for path in (folder / ".a.jsonl.parts").iterdir()) == [".lock", MANIFEST]
    else:
        found = [name for path in sorted((folder / "a.jsonl").glob("part-*")) for name in answered(path)]
        assert found == GOOD
    with Output(out).opened(JOB) as output:
        assert output.finished and output.rows == 12 and not list(output.todo(UNITS))


def finished(out: str) -> None:
    with Output(out).opened(JOB) as output:
        for part in parts(output.todo(UNITS)):
            output.add(part)
        output.finish()


def test_what_is_there_from_others_stays(tmp_path):
    out = tmp_path / "a.jsonl"
    out.write_text("mine")
    with (
        pytest.raises(InputError, match=r"a\.jsonl: exists already, from another job"),
        Output(str(out)).opened(JOB),
    ):
        pass
    assert out.read_text() == "mine" and [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    (tmp_path / "b.csv").mkdir()
    (tmp_path / "b.csv" / "x").touch()
    with pytest.raises(InputError, match="x: exists already"), Output(f"{tmp_path}/b.csv/").opened(JOB):
        pass
    with pytest.raises(InputError, match="is a folder: give a file, or write"):
        Output(str(tmp_path / "b.csv"))
    with pytest.raises(InputError, match=r"ends in \.csv"):
        Output("a.txt")


def test_another_job_or_other_images_are_refused(tmp_path):
    out = str(tmp_path / "a.jsonl")
    with Output(out).opened(JOB) as output:
        for part, _ in zip(parts(output.todo(UNITS)), range(4), strict=False):
            output.add(part)
        with pytest.raises(InputError, match="another process is writing it"), Output(out).opened(JOB):
            pass
    with pytest.raises(InputError, match=r"another job \(other model\)"), Output(out).opened({"model": "b"}):
        pass
    for changed in (UNITS[1:], UNITS[:1]):
        with (
            Output(out).opened(JOB) as output,
            pytest.raises(InputError, match="the images are others than when this job began"),
        ):
            list(output.todo(changed))
    (tmp_path / "a.jsonl").write_text("put there meanwhile")
    with pytest.raises(InputError, match="exists already"), Output(out).opened(JOB):
        pass


def test_after_the_end(tmp_path):
    out = tmp_path / "a.jsonl"
    finished(str(out))
    whole = out.read_bytes()
    out.unlink()
    finished(str(out))  # taken away by its owner: made anew
    assert out.read_bytes() == whole
    out.write_text("changed")
    with pytest.raises(InputError, match="was changed since"), Output(str(out)).opened(JOB):
        pass
    assert out.read_text() == "changed"


def test_a_part_that_was_changed_is_told(tmp_path):
    with Output(str(tmp_path / "a.jsonl")).opened(JOB) as output:
        for part in parts(output.todo(UNITS)):
            output.add(part)
        next(output.folder.glob("part-*")).write_text("changed")
        with pytest.raises(InputError, match="is not what was written: remove"):
            output.finish()
    assert not (tmp_path / "a.jsonl").exists()


def test_an_end_between_any_two_steps_of_finishing(tmp_path, monkeypatch):
    """The process ends at its n-th rename or removal; the same again has the same files."""
    finished(str(tmp_path / "wanted.jsonl"))
    ended = 0
    for at in range(40):
        out = tmp_path / str(at) / "a.jsonl"
        calls = []

        def ending(original, at=at, calls=calls):
            def call(*given, **named):
                calls.append(1)
                if len(calls) > at:
                    raise KeyboardInterrupt
                return original(*given, **named)

            return call

        with (
            monkeypatch.context() as patch,
            suppress(KeyboardInterrupt),
            Output(str(out)).opened(JOB) as output,
        ):
            for part in parts(output.todo(UNITS)):
                output.add(part)
            for name in ("replace", "unlink"):
                patch.setattr(Path, name, ending(getattr(Path, name)))
            output.finish()
        ended += len(calls) > at
        with Output(str(out)).opened(JOB) as output:
            if not output.finished:
                assert not list(output.todo(UNITS))
                output.finish()
        assert out.read_bytes() == (tmp_path / "wanted.jsonl").read_bytes(), at
        assert answered(out.with_name("a.failed.jsonl")) == BAD
        assert sorted(path.name for path in output.folder.iterdir()) == [".lock", MANIFEST]
        if len(calls) <= at:
            break
    assert ended > 5
