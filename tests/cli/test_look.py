"""`pbprompt look`, as a user runs it."""

import json
import shutil
from pathlib import Path

import pytest

import pbprompt

SAMPLE = Path(pbprompt.__file__).parent / "data" / "sample" / "images" / "fluent"


@pytest.fixture
def photos(tmp_path) -> Path:
    root = tmp_path / "photos"
    for name in ("clock", "mammal"):
        (root / name).mkdir(parents=True)
        for file in sorted((SAMPLE / name).iterdir())[:6]:
            shutil.copy(file, root / name)
    shutil.copy(next((root / "mammal").iterdir()), root / "clock" / "[bold]odd.webp")
    return root


def test_a_table_that_fits_the_terminal(run, photos, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, err = run("look", photos, "--html", tmp_path / "look.html")
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 60
    assert "13 images" in out and "Duplicates: 1" in out and "[bold]odd.webp" in out
    assert "two labels: clock, mammal" in " ".join(out.split())
    assert "Unreadable files: none" in out
    assert (tmp_path / "look.html").stat().st_size > 5000 and "wrote" in err


def test_json_holds_it_all(run, photos):
    code, out, err = run("look", photos, "--json")
    assert code == 0 and not err
    said = json.loads(out)
    assert said["classes"] == {"clock": 7, "mammal": 6} and said["duplicates"][0]["across_classes"]


def test_one_line_for_what_cannot_be_looked_at(run, tmp_path):
    for place, says in ((tmp_path, "holds no images"), (tmp_path / "absent", "does not exist")):
        code, out, err = run("look", place)
        assert code == 2 and says in err and not out and len(err.strip().splitlines()) == 1
