"""The loop as a user goes it: the last line of each verb is the next command, and nothing learned is lost."""

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import pbprompt

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
CLASSES = ("clock", "fruit", "heart", "mammal")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """photos/ with six drawings of each class, and pool/ with six more, whose names tell their class."""
    for name in CLASSES:
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "pool").mkdir(exist_ok=True)
        for at, file in enumerate(sorted((SAMPLE / name).iterdir())[:12]):
            shutil.copy(
                file, tmp_path / "photos" / name if at < 6 else tmp_path / "pool" / f"{name}.{file.name}"
            )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def next_command(err: str) -> list[str]:
    found = re.findall(r"^next: pbprompt (.*?)(?:   #.*)?$", err, re.M)
    assert found, err
    return shlex.split(found[-1])


def label(table: Path) -> int:
    """Fill in the column `label`, as a person does."""
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        row["label"] = Path(row["image"]).name.split(".")[0]
    with table.open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def test_each_verb_leads_to_the_next_and_the_model_grows(run, place):
    code, _, err = run("look", "photos")
    command = next_command(err)
    assert code == 0 and command == ["fit", "photos", "--out", "model/"]
    code, _, err = run(*command, "--hold-out", "0.34")
    command = next_command(err)
    assert code == 0 and command[:3] == ["evaluate", "model", "photos"]
    code, _, err = run(*command)
    command = next_command(err)
    assert (
        code == 0 and "8 test images of 24" in err and command == ["next", "UNLABELLED/", "--model", "model"]
    )
    command[1] = "pool"
    code, _, err = run(*command, "-n", "12")
    assert code == 0 and label(place / "next.csv") == 12
    command = next_command(err)
    assert command == ["model", "add", "model", "next.csv", "--out", "NEW-MODEL"]
    command[-1] = "model2"
    code, out, err = run(*command)
    assert code == 0 and "added 12 photographs" in out and "new:" not in out
    assert "by 16 training images" in out and "by 28 training images" in out  # nothing was lost
    command = next_command(err)
    assert command == ["evaluate", "model2", str(place / "photos"), "--against-model", "model"]
    code, out, err = run(*command)
    assert code == 0 and "\nmodel " in out and "right now and wrong by model:" in out and "warning" not in err

    code, _, err = run("next", "pool", "--model", "model2", "-n", "4")  # the table grows
    assert code == 0 and label(place / "next.csv") == 16
    code, out, _ = run("model", "add", "model2", "next.csv")
    assert code == 0 and "added 4 photographs" in out and "12 were added before" in out
    code, _, err = run("model", "add", "model2", "next.csv")
    assert code == 2 and "were added before" in err

    assert run("model", "merge", "model2", "clock", "heart", "--into", "thing")[0] == 0
    assert run("model", "remove", "model2", "fruit")[0] == 0
    code, out, err = run("evaluate", "model2", "photos", "--json")
    figures = json.loads(out)
    assert code == 0 and "removed from the model are left out" in err
    assert [one["class"] for one in figures["per_class"]] == ["thing", "mammal"] and figures["images"] == 6


def test_images_that_cannot_be_read_are_all_named_and_left_out(run, place):
    for name in ("clock", "mammal"):
        first = min((place / "photos" / name).iterdir())
        first.write_bytes(first.read_bytes()[:200])
    code, _, err = run("fit", "photos", "--strict", "--out", "model")
    assert code == 2 and err.count("\n") == 2 and "clock/" in err and "mammal/" in err
    code, _, err = run("fit", "photos", "--out", "model")
    assert (
        code == 0 and "left out, since unreadable: 2 images" in err and "learning from all 22 images" in err
    )
    assert err.count("cannot read") == 2
    code, _, err = run("evaluate", "model", "photos")
    assert code == 0 and "the 22 images that it was fitted to" in err and "unreadable: 2 images" in err
