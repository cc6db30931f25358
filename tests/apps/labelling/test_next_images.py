"""Suggestions from predictions."""

import pytest
import torch

import pbprompt
from pbprompt.apps.labelling.next_images import (
    Entry,
    name_in_table,
    next_images,
    read_table,
    series_among,
    table_root,
    write_table,
)
from pbprompt.errors import InputError
from pbprompt.learners.predictive import Predictive

P = torch.tensor([[0.9, 0.1], [0.55, 0.45], [0.2, 0.8]])
SAID = Predictive(P, torch.full((3,), 0.5), torch.tensor([0.0, 0.1, 0.3]), 0 * P, ("cat", "dog"))
FEATURES = torch.eye(3)


def test_doubt_or_disagreement():
    first, second = next_images(FEATURES, SAID, 2, "margin")
    assert (first.row, first.label, first.probability) == (1, "cat", 0.55)
    assert first.score == pytest.approx(0.9) and second.row == 2 and second.label == "dog"
    assert [one.row for one in next_images(FEATURES, SAID, 3, "epistemic")] == [2, 1, 0]


def test_as_many_features_as_predictions():
    with pytest.raises(InputError, match="give as many"):
        next_images(FEATURES[:2], SAID, 1)


def test_more_than_there_are():
    with pytest.raises(InputError, match="give 1 to 3"):
        next_images(FEATURES, SAID, 4)


def test_it_is_a_public_name():
    assert pbprompt.next_images is next_images


ROWS = [Entry('a, "b".jpg', "", "red panda", "0.5000", "0.9000"), Entry("c.jpg", "cat", "dog", "0.4", "0.8")]


def test_there_and_back(tmp_path):
    write_table(tmp_path / "next.csv", ROWS)
    assert read_table(tmp_path / "next.csv") == ROWS


def test_a_spreadsheet_may_change_the_separator(tmp_path):
    path = tmp_path / "next.csv"
    path.write_text(
        "image;label;suggested;probability;score\nc.jpg; cat;dog;0.4;0.8\n\n", encoding="utf-8-sig"
    )
    assert read_table(path) == ROWS[1:]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("image,label\na.jpg,cat\n", "choose another name"),
        ("", "choose another name"),
        ("image,label,suggested,probability,score\na.jpg,cat\n", "line 2: 5 fields"),
    ],
)
def test_other_files_are_refused(tmp_path, text, says):
    (tmp_path / "next.csv").write_text(text)
    with pytest.raises(InputError, match=says):
        read_table(tmp_path / "next.csv")


def test_names_are_relative_to_the_table_or_to_the_folder_and_links_keep_theirs(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (tmp_path / "elsewhere.png").touch()
    (folder / "link.png").symlink_to(tmp_path / "elsewhere.png")
    for table, name in ((tmp_path / "t.csv", "photos/link.png"), (tmp_path / "other" / "t.csv", "link.png")):
        root = table_root(folder, table)
        assert name_in_table(folder / "link.png", folder, root) == name and (root / name).exists()


def test_one_of_a_burst_is_chosen_while_there_are_others():
    chance, scenes = torch.Generator().manual_seed(0), torch.arange(80) // 4
    seen = torch.randn(20, 24, generator=chance)[scenes] + 0.02 * torch.randn(80, 24, generator=chance)
    p = 0.5 + 0.4 * torch.rand(80, generator=chance)
    p = torch.where(scenes % 2 == 0, p, 1 - p)  # the likelier class of two, by turns
    said = Predictive.of_logits(torch.stack([p, 1 - p], 1).log()[None]).of_classes(("cat", "dog"))
    groups = series_among(seen, said)
    assert [groups[row].item() // 4 for row in range(80)] == scenes.tolist()
    for by in ("diverse", "margin", "random"):
        chosen = [scenes[one.row].item() for one in next_images(seen, said, 15, by, groups=groups)]
        assert len(set(chosen)) == 15
    best = {scene: min(abs(p[row] - 0.5) for row in range(80) if scenes[row] == scene) for scene in range(20)}
    first = next_images(seen, said, 3, "margin", groups=groups)
    assert [scenes[one.row].item() for one in first] == sorted(best, key=best.__getitem__)[:3]
    assert len(next_images(seen, said, 30, "margin", groups=groups)) == 30  # more than there are scenes
