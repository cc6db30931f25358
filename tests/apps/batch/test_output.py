"""Parts on the disk: every record once, whatever ends the job, and nothing of others overwritten."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.apps.batch.job import Answer, Mark, make_part
from pbprompt.apps.batch.output import MANIFEST, Output
from pbprompt.errors import InputError
from pbprompt.vision.images.stream import Files, Record

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
            yield make_part(mark, answers, ".jsonl", False, "")


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
        assert sorted(path.name for path in folder.iterdir()) == ["a.failed.jsonl", "a.jsonl"]
        return
    found = [name for path in sorted((folder / "a.jsonl").glob("part-*")) for name in answered(path)]
    assert found == GOOD
    with Output(out).opened(JOB) as output:
        assert output.finished and output.rows == 12 and not list(output.todo(UNITS))
        assert output.complete(UNITS) and not output.damaged


def finished(out: str) -> None:
    with Output(out).opened(JOB) as output:
        for part in parts(output.todo(UNITS)):
            output.add(part)
        output.finish()


def test_what_is_there_from_others_stays(tmp_path):
    out = tmp_path / "a.jsonl"
    out.write_text("mine")
    with (
        pytest.raises(InputError, match=r"a\.jsonl: exists already: give another name"),
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


def test_after_the_end_the_name_is_free_again_once_the_file_is_gone(tmp_path):
    out = tmp_path / "a.jsonl"
    finished(str(out))
    whole = out.read_bytes()
    with pytest.raises(InputError, match="exists already: give another name, or remove it"):
        finished(str(out))
    assert out.read_bytes() == whole
    out.unlink()
    (tmp_path / "a.failed.jsonl").unlink()
    with Output(str(out)).opened({"model": "b"}) as output:
        assert not output.done
    assert not list(tmp_path.iterdir()), "nothing was made, and nothing stays"


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("how", ["removed", "longer", "failures"])
def test_parts_that_were_changed_are_made_again(tmp_path, ended, how):
    out = f"{tmp_path}/a.jsonl/"
    with Output(out).opened(JOB) as output:
        for part in parts(output.todo(UNITS)):
            output.add(part)
        if ended:
            output.finish()
    before = {path.name: path.read_bytes() for path in output.folder.glob("*[0-9].jsonl")}
    one = output.folder / (
        "_failed-00000001-00000002.jsonl" if how == "failures" else "part-00000001-00000000.jsonl"
    )
    if how == "longer":
        with one.open("a") as file:
            file.write("more")
    else:
        one.unlink()
    with Output(out).opened(JOB) as output:
        assert output.damaged == 1 and not output.complete(UNITS)
        assert [(todo.number, todo.skip) for todo in output.todo(UNITS)] == [
            (1, 2 if how == "failures" else 0)
        ]
        for part in parts(output.todo(UNITS)):
            output.add(part)
        output.finish()
        assert (output.rows, output.failures) == (12, 3)
    assert {path.name: path.read_bytes() for path in output.folder.glob("*[0-9].jsonl")} == before
    with Output(out).opened(JOB) as output:
        assert output.complete(UNITS)


def test_a_part_that_changes_while_the_job_runs_is_told_and_made_again(tmp_path):
    with Output(str(tmp_path / "a.jsonl")).opened(JOB) as output:
        for part in parts(output.todo(UNITS)):
            output.add(part)
        next(output.folder.glob("part-*")).write_text("changed")
        with pytest.raises(InputError, match="is not what was written: the same command again"):
            output.finish()
    assert not (tmp_path / "a.jsonl").exists()
    finished(str(tmp_path / "a.jsonl"))
    assert answered(tmp_path / "a.jsonl") == GOOD


def test_a_finished_folder_is_not_complete_for_other_images(tmp_path):
    finished(f"{tmp_path}/a.jsonl/")
    other = Files((Record("new", b""),))
    for changed in ([*UNITS[:2], other], UNITS[:2]):
        with (
            Output(f"{tmp_path}/a.jsonl/").opened(JOB) as output,
            pytest.raises(InputError, match="the images are others"),
        ):
            output.complete(changed)
    with Output(f"{tmp_path}/a.jsonl/").opened(JOB) as output:
        assert not output.complete([*UNITS, other]), "a further unit is answered"
        assert [todo.unit for todo in output.todo([*UNITS, other])] == [other]


@pytest.mark.parametrize("name", ["a.jsonl", "a.failed.jsonl"])
def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path, name):
    out = str(tmp_path / "a.jsonl")
    with Output(out).opened(JOB) as output:
        for part in parts(output.todo(UNITS)):
            output.add(part)
        (tmp_path / name).write_text("mine")
        with pytest.raises(InputError, match=r"move it away and run the same command again"):
            output.finish()
    for _ in range(2):
        with pytest.raises(InputError, match="the answers are kept in"), Output(out).opened(JOB):
            pass
    assert (tmp_path / name).read_text() == "mine"
    (tmp_path / name).unlink()
    with Output(out).opened(JOB) as output:
        assert output.complete(UNITS)
    assert answered(tmp_path / "a.jsonl") == GOOD and answered(tmp_path / "a.failed.jsonl") == BAD
    assert not output.folder.exists()


def test_only_its_own_files_are_removed(tmp_path):
    for out in (f"{tmp_path}/a.jsonl/", str(tmp_path / "b.jsonl")):
        with Output(out).opened(JOB) as output:
            for name in (".mine", "notes.txt", ".part-00000000-00000000.jsonl.ab_1"):
                (output.folder / name).touch()
            for part in parts(output.todo(UNITS)):
                output.add(part)
            output.finish()
        left = {
            path.name for path in output.folder.iterdir() if not path.name.startswith(("part-", "_failed"))
        }
        assert left - {".lock", MANIFEST} == {".mine", "notes.txt"}


@pytest.mark.parametrize(
    "line",
    [{"part": "x"}, {"unit": "0"}, {"finished": 3}, {"finished": {}}, {"finished": {"rows": "1"}}, [1], 7],
)
def test_lines_of_the_manifest_that_are_none_are_passed_over(tmp_path, line):
    for out in (f"{tmp_path}/a.jsonl/", str(tmp_path / "b.jsonl")):
        with Output(out).opened(JOB) as output:
            part = next(parts(output.todo(UNITS)))
            output.add(part)
            manifest = output.folder / MANIFEST
        lines = manifest.read_text().splitlines()
        full = {**json.loads(lines[1]), **line} if isinstance(line, dict) and "unit" in line else line
        manifest.write_text("\n".join([lines[0], json.dumps(full)]) + "\n")
        with Output(out).opened(JOB) as output:
            assert not output.done and not output.complete(UNITS)
        output.folder.mkdir(exist_ok=True)
        manifest.write_text('{"job": 3}\n' + lines[1] + "\n")
        with pytest.raises(InputError, match="was begun by another job"), Output(out).opened(JOB):
            pass


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
            for name in ("replace", "unlink", "hardlink_to", "rmdir"):
                patch.setattr(Path, name, ending(getattr(Path, name)))
            output.finish()
        ended += len(calls) > at
        with suppress(InputError), Output(str(out)).opened(JOB) as output:  # InputError: it is complete
            if not output.complete(UNITS):
                assert not list(output.todo(UNITS))
                output.finish()
        assert out.read_bytes() == (tmp_path / "wanted.jsonl").read_bytes(), at
        assert answered(out.with_name("a.failed.jsonl")) == BAD
        assert {path.name for path in output.folder.glob("*")} <= {".lock"}, "the name is free"
        if len(calls) <= at:
            break
    assert ended > 5
