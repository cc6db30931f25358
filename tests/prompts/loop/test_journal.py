"""The log of a run: what is appended, and what a kill leaves behind."""

import json

from pbprompt.prompts.loop.journal import Journal


def lines(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def written(folder, *steps, start=0):
    journal = Journal(folder, start)
    for step in steps:
        journal.write(step, {"total": step / 2})
    journal.close()


def test_one_line_a_record(tmp_path):
    written(tmp_path / "new" / "run", 10, 20)
    assert lines(tmp_path / "new" / "run") == [{"step": 10, "total": 5.0}, {"step": 20, "total": 10.0}]


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path):
    journal = Journal(tmp_path)
    journal.write(1, {"total": 2.0})
    assert lines(tmp_path) == [{"step": 1, "total": 2.0}]
    journal.close()


def test_floats_keep_every_bit(tmp_path):
    value = 0.1 + 0.2
    journal = Journal(tmp_path)
    journal.write(1, {"total": value})
    journal.close()
    assert lines(tmp_path)[0]["total"] == value


def test_going_on_drops_what_came_after(tmp_path):
    written(tmp_path, 10, 20, 20, 30)
    written(tmp_path, 30, start=20)
    assert [line["step"] for line in lines(tmp_path)] == [10, 20, 20, 30]


def test_a_fresh_start_drops_all(tmp_path):
    written(tmp_path, 10, 20)
    written(tmp_path, 5)
    assert [line["step"] for line in lines(tmp_path)] == [5]


def test_torn_and_foreign_lines_go(tmp_path):
    written(tmp_path, 10, 20)
    whole = (tmp_path / "log.jsonl").read_bytes()
    torn = [
        whole + b'{"step": 30, "to',
        whole + b'{"step": 20, "total": 1.0}',  # whole, but its line end is missing
        whole + b"[]\nnull\n{}\nnot json\n",
        whole + b"\xff\xfe\x00\n",
    ]
    for content in torn:
        (tmp_path / "log.jsonl").write_bytes(content)
        written(tmp_path, 40, start=30)
        assert [line["step"] for line in lines(tmp_path)] == [10, 20, 40]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(None, 1)
    assert list(tmp_path.iterdir()) == []
