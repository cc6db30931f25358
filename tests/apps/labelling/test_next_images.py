"""Choosing images against brute force and by the chances of the draws; suggestions and their table."""

import pytest
import torch
from PIL import Image

import pbprompt
from pbprompt.apps.labelling.next_images import (
    RULES,
    Entry,
    choose_rows,
    margin_doubt,
    names_in_table,
    next_images,
    read_table,
    series_among,
    spread_out,
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
    Image.new("RGB", (9, 9)).save(tmp_path / "elsewhere.png")
    (folder / "link.png").symlink_to(tmp_path / "elsewhere.png")
    for table, name in ((tmp_path / "t.csv", "photos/link.png"), (tmp_path / "other" / "t.csv", "link.png")):
        assert names_in_table(folder, table) == [name] and (table_root(folder, table) / name).exists()


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


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_margin_equals_a_sort_of_each_row():
    p = torch.rand(30, 7, generator=generator()).softmax(1)
    expected = [1 - (row[-1] - row[-2]) for row in (sorted(line) for line in p.tolist())]
    torch.testing.assert_close(margin_doubt(p), torch.tensor(expected))
    assert margin_doubt(torch.tensor([[1.0000001, 0.0]])).tolist() == [0]
    assert margin_doubt(torch.ones(3, 1)).tolist() == [0, 0, 0]  # a single class is never in doubt


@pytest.mark.parametrize("by", ["margin", "epistemic"])
def test_by_score_the_highest_come_first(by):
    scores = torch.rand(25, generator=generator())
    x = torch.randn(25, 3, generator=generator())
    expected = sorted(range(25), key=lambda row: -float(scores[row]))[:6]
    assert choose_rows(x, scores, 6, by, generator()).tolist() == expected


@pytest.mark.parametrize("by", RULES)
def test_all_of_them_are_all_of_them(by):
    scores = torch.tensor([0.0, 1.0, 0.5, 0.0])
    rows = choose_rows(torch.eye(4), scores, 4, by, generator())
    assert sorted(rows.tolist()) == [0, 1, 2, 3]


def test_draws_follow_weight_times_squared_distance():
    """The frequencies of second draws against those computed from the definition, in numbers."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [-1.0, 0.1]])
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1])
    unit = torch.nn.functional.normalize(x, dim=1)
    expected = torch.zeros(4, 4)
    for first in range(4):
        chance = weights * (unit - unit[first]).square().sum(1)
        expected[first] = weights[first] / weights.sum() * chance / chance.sum()
    counts, source, tries = torch.zeros(4, 4), generator(1), 4000
    for _ in range(tries):
        first, second = spread_out(x, weights, 2, source).tolist()
        counts[first, second] += 1
    assert (counts / tries - expected).abs().max() < 0.03  # over three standard errors
    assert (counts.diagonal() == 0).all()


def test_copies_are_drawn_last():
    x = torch.cat([torch.ones(20, 2), torch.tensor([[1.0, -1.0], [-1.0, 1.0]])])
    for seed in range(10):
        chosen = spread_out(x, torch.ones(22), 3, generator(seed)).tolist()
        assert {20, 21} < set(chosen)


def test_seeds_decide_draws():
    x, scores = torch.randn(50, 4, generator=generator()), torch.rand(50, generator=generator())
    for by in ("diverse", "random"):
        once, again, other = (choose_rows(x, scores, 5, by, generator(seed)).tolist() for seed in (1, 1, 2))
        assert once == again != other


def test_what_cannot_be_chosen_is_said():
    x, scores = torch.eye(3), torch.ones(3)
    with pytest.raises(InputError, match="give 1 to 3"):
        choose_rows(x, scores, 4, "margin", generator())
    with pytest.raises(InputError, match="use margin, epistemic, diverse, random"):
        choose_rows(x, scores, 1, "best", generator())  # type: ignore[arg-type]


def test_quotes_of_a_table_with_another_separator_are_read(tmp_path):
    path = tmp_path / "next.csv"
    path.write_text('"image";"label";"suggested";"probability";"score"\n"c.jpg";"cat";"dog";"0.4";"0.8"\n')
    assert read_table(path) == ROWS[1:]
