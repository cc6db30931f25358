"""Parts are added to one file, row by row, and a file belongs to one machine."""

import json

import pytest

from benchmarks.speed import parts
from benchmarks.speed.rates import stamp
from benchmarks.speed.results import add_part, add_remark, read_results
from benchmarks.speed.setups import Options
from pbprompt.errors import InputError
from pbprompt.research.provenance import commit

HERE = {"kind": "cpu", "device": "A", "cpu": "A", "cores": 2, "threads": 2}


def part(rows, machine=HERE):
    return {"machine": machine, "rows": rows, "command": "python -m benchmarks.speed measure"}


def test_parts_are_merged_by_name(tmp_path):
    path = tmp_path / "deep" / "results.json"
    add_part(path, "steps", part([{"ours_ms": 1.0}]))
    add_part(path, "fit", part([{"ours_s": 2.0}]))
    add_part(path, "steps", part([{"ours_ms": 3.0}]))
    found = read_results(path)["parts"]
    assert list(found) == ["steps", "fit"]
    assert found["steps"]["rows"] == [{"ours_ms": 3.0}] and found["fit"]["rows"] == [{"ours_s": 2.0}]
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]  # no temporary file stays


def test_another_machine_is_refused_and_nothing_is_lost(tmp_path):
    path = tmp_path / "results.json"
    add_part(path, "steps", part([{"ours_ms": 1.0}]))
    with pytest.raises(InputError, match=r"another machine.*--out"):
        add_part(path, "fit", part([], HERE | {"threads": 8}))
    assert list(read_results(path)["parts"]) == ["steps"]


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": []}', '{"format": 99, "parts": {}}'])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"other\.json"):
        read_results(path)
    with pytest.raises(InputError, match=r"other\.json"):
        add_part(path, "steps", part([]))
    assert path.read_text() == content


def test_what_was_measured_before_an_end_is_kept(tmp_path, monkeypatch):
    def breaking(options):
        yield {"ours_ms": 1.0}
        yield {"ours_ms": 2.0}
        raise RuntimeError("the machine is gone")

    monkeypatch.setitem(parts.PARTS, "steps", breaking)
    path = tmp_path / "results.json"
    seen = []
    with pytest.raises(RuntimeError, match="gone"):
        parts.run_part("steps", Options(), path, seen.append)
    kept = json.loads(path.read_text())["parts"]["steps"]
    assert kept["rows"] == [{"ours_ms": 1.0}, {"ours_ms": 2.0}] == seen
    assert not kept["complete"]


def test_a_part_says_where_it_was_measured(tmp_path, monkeypatch):
    monkeypatch.setitem(parts.PARTS, "steps", lambda options: iter([{"ours_ms": 1.0}]))
    found = parts.run_part("steps", Options(quick=True), None)
    assert found["complete"] and found["quick"] and found["seconds"] >= 0
    assert found["machine"]["kind"] == "cpu" and found["machine"]["cores"] >= 1
    assert {"python", "torch", "pbprompt"} <= set(found["versions"])
    assert found["command"].startswith("python -m benchmarks.speed") and found["date"].endswith("+00:00")


def test_the_commit_can_be_told(monkeypatch):
    monkeypatch.setenv("PBPROMPT_COMMIT", "abc123")
    assert commit() == "abc123" == stamp("cpu", quick=False)["commit"]


def test_a_remark_leaves_the_figures_alone(tmp_path):
    path = tmp_path / "results.json"
    add_part(path, "steps", part([{"ours_ms": 1.0}]))
    before = read_results(path)["parts"]["steps"]
    add_remark(path, "steps", "measured beside other work")
    assert read_results(path)["parts"]["steps"] == {**before, "remark": "measured beside other work"}
    with pytest.raises(InputError, match="no part 'fit': choose of steps"):
        add_remark(path, "fit", "?")


def test_a_command_keeps_no_place_of_the_machine(tmp_path):
    path = tmp_path / "results.json"
    command = "python -m benchmarks.speed measure steps --out /home/me/a.json"
    add_part(path, "steps", {**part([]), "command": command})
    assert read_results(path)["parts"]["steps"]["command"].endswith("measure steps --out a.json")
