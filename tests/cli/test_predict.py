"""`pbprompt predict`, as a user runs it."""

import json
import shutil
import sys
from pathlib import Path

import pytest

import pbprompt
from pbprompt.cli import main

SAMPLE = Path(pbprompt.__file__).parent / "data" / "sample" / "images" / "fluent"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pbprompt", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    shutil.copy(SAMPLE / "mammal" / "1f408.webp", folder / "felix.jpg")
    shutil.copy(SAMPLE / "musical-instrument" / "1f3b8.webp", folder / "strat.jpg")
    return folder


def test_json_lines_name_what_is_there(run, images):
    code, out, _ = run("predict", str(images), "--classes", "guitar,cat", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [Path(record["image"]).name for record in records] == ["felix.jpg", "strat.jpg"]
    assert [record["label"] for record in records] == ["cat", "guitar"]
    for record in records:
        assert list(record["scores"]) == ["guitar", "cat"]
        assert sum(record["scores"].values()) == pytest.approx(1, abs=1e-4)
        assert record["score"] == max(record["scores"].values())


def test_table_globs_and_classes_file(run, images, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("guitar\n\ncat\ncar\n")
    code, out, _ = run("predict", str(images / "*.jpg"), "--classes-file", str(names), "--top-k", "2")
    assert code == 0
    assert "strat.jpg" in out and "guitar" in out and " 3. " not in out


def test_an_unreadable_image_does_not_stop_the_others(run, images):
    (images / "broken.jpg").write_bytes(b"not an image")
    code, out, err = run("predict", str(images), "--classes", "guitar,cat", "--json")
    assert code == 1
    assert len(out.splitlines()) == 2
    assert "broken.jpg" in err and "1 of 3" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--classes", " , "], "no class names"),
        (["--classes", "Red car,red_car"], "the same"),
        (["--classes", "a," + "word " * 60], "shorten it"),
        (["--classes", "a,b", "--backbone", "lyte"], "did you mean lite"),
        (["--classes", "a,b", "--template", "no hole"], "{}"),
        (["--classes", "a,b", "--classes-file", "x"], "choose one"),
        (["--classes-file", "absent.txt"], "absent.txt"),
        (["--classes", "a,b", "--device", "cuda:99"], "cuda:99"),
    ],
)
def test_bad_input_is_one_line_and_code_2(run, images, arguments, says):
    code, out, err = run("predict", str(images), *arguments)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1 and not out


def test_missing_files_and_empty_folders(run, tmp_path):
    (tmp_path / "empty").mkdir()
    for path, says in (("absent.jpg", "does not exist"), ("empty", "no images")):
        code, _, err = run("predict", str(tmp_path / path), "--classes", "a,b")
        assert code == 2 and says in err and "Traceback" not in err


def test_debug_shows_the_traceback(monkeypatch, tmp_path):
    from pbprompt.errors import InputError

    monkeypatch.setenv("PBPROMPT_DEBUG", "")
    monkeypatch.setattr(sys, "argv", ["pbprompt", "--debug", "predict", "absent.jpg", "--classes", "a"])
    with pytest.raises(InputError):
        main()
