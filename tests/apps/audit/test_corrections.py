"""A table of decisions: what is listed, and what `fit` makes of it."""

import csv
from dataclasses import replace

import pytest

from pbprompt.apps.audit.corrections import HEADER, corrected, write_corrections
from pbprompt.apps.audit.duplicates import twins
from pbprompt.errors import InputError
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.sources import open_dataset


@pytest.fixture
def table(found, tmp_path):
    write_corrections(found, tmp_path / "corrections.csv")
    return tmp_path / "corrections.csv"


def rows(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def decided(path, decisions):
    kept = [{**row, **decisions.get(row["image"], {})} for row in rows(path)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, HEADER)
        writer.writeheader()
        writer.writerows(kept)


def test_everything_found_is_listed_once_and_changes_nothing(found, table):
    listed = rows(table)
    paths = [row["image"] for row in listed]
    assert len(set(paths)) == len(paths)
    for error in found.label_errors:
        row = next(row for row in listed if row["image"] == found.images[error.row].path)
        assert (row["decision"], row["label"], row["was"]) == (
            "",
            found.suggested(error),
            found.labelled_as(error.row),
        )
    dataset = open_dataset(found.root)
    same, words = corrected(dataset, table)
    assert same == dataset and words == "corrections.csv: 0 relabelled, 0 dropped"


def test_other_images_are_named_as_a_terminal_may_have_them(found, tmp_path):
    strange = [replace(one, path=f"\x1b]0;x\x07{one.path}\u202e") for one in found.images]
    write_corrections(replace(found, images=strange), tmp_path / "strange.csv")
    text = (tmp_path / "strange.csv").read_text()
    assert "same picture as \\u001b]0;x\\u0007" in text and not {"\x1b", "\x07", "\u202e"} & {*text}


def test_decisions_are_carried_out(found, table):
    first, second = (row["image"] for row in rows(table)[:2])
    decided(table, {first: {"decision": "relabel", "label": "Mammal"}, second: {"decision": "drop"}})
    dataset = open_dataset(found.root)
    done, words = corrected(dataset, table)
    assert words == "corrections.csv: 1 relabelled, 1 dropped"
    labels = {item.path: dataset.classes[item.label] for item in done.items}
    assert labels[first] == "mammal" and second not in labels and len(labels) == len(dataset.items) - 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"decision": "burn"}, "line 2: decision 'burn': write keep, relabel or drop"),
        ({"decision": "relabel", "label": "clok"}, "no class is called 'clok': did you mean 'clock'"),
        ({"decision": "drop", "image": "x.jpg"}, "line 2: x.jpg is not in"),
    ],
)
def test_what_is_wrong_is_named(found, table, changes, says):
    decided(table, {rows(table)[0]["image"]: changes})
    with pytest.raises(InputError, match=says):
        corrected(open_dataset(found.root), table)
    table.write_text(f'{",".join(HEADER)}\n"a.jpg,drop\n')
    with pytest.raises(InputError, match=r"line 2: .*correct the quotes"):
        corrected(open_dataset(found.root), table)
    table.write_text("image,label\n")
    with pytest.raises(InputError, match="no table of corrections"):
        corrected(open_dataset(found.root), table)


def test_test_images_that_are_training_images(found, lite):
    dataset = open_dataset(found.root)
    dataset = replace(dataset, train=tuple(one for one in dataset.train if "torn" not in one.path))
    assert set(twins(dataset, "test", FeatureCache(lite, progress=False))) == {
        found.images[row].path
        for group in found.duplicates
        if group.exact and {found.images[row].split for row in group.rows} >= {"train", "test"}
        for row in group.rows
        if found.images[row].split == "test"
    }
