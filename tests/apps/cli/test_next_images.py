"""`pbprompt next`, as a user runs it."""

import csv
import json
import shutil
import sys
from pathlib import Path

import pytest

import pbprompt
from pbprompt.apps.cli import main
from pbprompt.vision.features.cache import FeatureCache

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
CLASSES = ("clock", "heart", "mammal")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> Path:
    """A model of two images a class, and loose/ with nine others."""
    home = tmp_path_factory.mktemp("home")
    (home / "loose" / "deep").mkdir(parents=True)
    for name in CLASSES:
        (home / "photos" / name).mkdir(parents=True)
        files = sorted((SAMPLE / name).iterdir())
        for file in files[:4]:
            shutil.copy(file, home / "photos" / name)
        for at, file in enumerate(files[4:7]):
            shutil.copy(file, home / "loose" / ("deep" if at else "") / f"{name}-{at}.webp")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(
            sys,
            "argv",
            ["pbprompt", "fit", str(home / "photos"), "--shots", "2", "--out", str(home / "model")],
        )
        main()
    assert not stop.value.code
    return home


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_whole_loop(run, fitted, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    loose = Path(shutil.copytree(fitted / "loose", tmp_path / "loose"))
    table = tmp_path / "labels.csv"
    next_ = ("next", loose, "--model", fitted / "model", "--out", table)
    code, out, err = run(*next_, "-n", "6")
    assert code == 0, err
    assert f"next: pbprompt model add {fitted / 'model'} {table} --out" in err
    assert max(map(len, out.splitlines())) <= 60
    first = rows(table)
    assert len(first) == 6 and all((tmp_path / row["image"]).is_file() for row in first)
    assert {row["label"] for row in first} == {""} and {row["suggested"] for row in first} <= set(CLASSES)

    code, _, err = run("fit", table, "--out", tmp_path / "too-early")
    assert code == 2 and "every label is empty" in err

    text = table.read_text()
    for row in first:
        label = Path(row["image"]).name.partition("-")[0]
        text = text.replace(f"{row['image']},,", f"{row['image']},{label},")
    table.write_text(text)
    assert run("fit", table, "--out", tmp_path / "model", "--shots", "0")[0] == 0

    code, out, err = run("next", loose, "--model", tmp_path / "model", "--out", table, "-n", "3", "--json")
    assert code == 0 and len(out.splitlines()) == 3 and json.loads(out.splitlines()[0])["suggested"]
    assert [row["image"] for row in rows(table)[:6]] == [row["image"] for row in first]
    assert len({row["image"] for row in rows(table)}) == 9

    code, _, err = run(*next_, "-n", "1")
    assert code == 2 and "nothing to label" in err


def test_what_is_filled_in_while_it_chooses_stays(run, fitted, tmp_path, monkeypatch):
    loose = Path(shutil.copytree(fitted / "loose", tmp_path / "loose"))
    table = tmp_path / "labels.csv"
    command = ("next", loose, "--model", fitted / "model", "--out", table)
    assert run(*command, "-n", "3")[0] == 0
    first, encode = rows(table), FeatureCache.encode

    def meanwhile(self, root, items, failures=None):
        found = encode(self, root, items, failures)
        table.write_text(table.read_text().replace(",,", ",clock,"))
        return found

    monkeypatch.setattr(FeatureCache, "encode", meanwhile)
    assert run(*command, "-n", "2")[0] == 0
    assert [row["label"] for row in rows(table)] == ["clock"] * 3 + [""] * 2
    assert [row["image"] for row in rows(table)][:3] == [row["image"] for row in first]


def test_a_table_elsewhere_says_where_the_images_are(run, fitted, tmp_path):
    code, _, err = run(
        "next",
        fitted / "loose",
        "--model",
        fitted / "model",
        "-n",
        "2",
        "--by",
        "margin",
        "-o",
        tmp_path / "my labels.csv",
    )
    assert code == 0 and f"model '{tmp_path / 'my labels.csv'}' --root {fitted / 'loose'}" in err
    assert all((fitted / "loose" / row["image"]).is_file() for row in rows(tmp_path / "my labels.csv"))


def test_an_unreadable_image_is_named_and_left_out(run, fitted, tmp_path):
    folder = Path(shutil.copytree(fitted / "loose" / "deep", tmp_path / "deep"))
    (folder / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 torn")
    arguments = ("next", folder, "--model", fitted / "model", "-o", tmp_path / "a.csv")
    code, _, err = run(*arguments, "-n", "7")
    assert (
        code == 2 and "torn.jpg" in err and "ask for 6 or fewer" in err and not (tmp_path / "a.csv").exists()
    )
    code, _, err = run(*arguments, "-n", "6")
    assert code == 0 and "torn.jpg" in err and len(rows(tmp_path / "a.csv")) == 6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-n", "10"], "ask for 9 or fewer"),
        (["--by", "marging"], "did you mean 'margin'"),
    ],
)
def test_bad_input_is_one_line_and_code_2(run, fitted, tmp_path, arguments, says):
    code, out, err = run(
        "next", fitted / "loose", "--model", fitted / "model", "-o", tmp_path / "a.csv", *arguments
    )
    assert code == 2 and says in err and not out and len(err.strip().splitlines()) == 1


def test_folders_that_hold_nothing(run, fitted, tmp_path):
    (tmp_path / "empty").mkdir()
    for place, says in (("empty", "holds no images"), ("absent", "not a folder")):
        code, _, err = run("next", tmp_path / place, "--model", fitted / "model", "-o", tmp_path / "a.csv")
        assert code == 2 and says in err
