"""Rows of fits as tables: differences are paired, and a method that lacks a draw has no figures."""

import pytest

from benchmarks.towers import some_classes, table
from pbprompt.vision.images.sources import open_dataset


def row(method: str, right: list[int], seed: int = 1, **parts) -> dict:
    known = {"data": "pets", "classes": 4, "shots": 4, "part": "test", "task": "few-shot", "commit": "abc"}
    answers = {"right": right, "nll": [1.0 - 0.5 * one for one in right]}
    return {**known, "seed": seed, "method": method, "processor_seconds": 7, "base": answers, **parts}


def test_differences_are_to_conjugate_on_the_same_images():
    better = row("other", [1, 1, 1, 0], together={"right": [1, 1, 1, 1], "nll": [0.1] * 4})
    lines = table([row("conjugate", [1, 1, 0, 0]), better]).splitlines()
    (found,) = (line for line in lines if line.startswith("| other"))
    cells = [cell.strip() for cell in found.strip("|").split("|")]
    assert cells[:3] == ["other", "75.0", "0.625"]
    assert cells[3].startswith("+25.0 (+0.0 to +75.0)") and cells[4].startswith("-0.125 (")
    assert cells[5:] == ["100.0", "7"]


def test_a_row_of_base_to_new_has_the_harmonic_mean():
    new = {"right": [1, 0, 0, 0], "nll": [1.0] * 4}
    found = table([row("conjugate", [1, 1, 1, 0], task="base-to-new", new=new)])
    assert "| 75.0 | 0.625 | +0.0 (+0.0 to +0.0) | +0.000 (+0.000 to +0.000) | 25.0 | 37.5 | 7 |" in found


def test_a_method_that_lacks_a_draw_is_named_without_figures():
    rows = [row("conjugate", [1, 0]), row("conjugate", [1, 0], seed=2), row("other", [1, 1])]
    assert "| other | on 1 of 2 only |" in table(rows)


@pytest.mark.parametrize("count", [3, None])
def test_some_classes_keep_their_images(count):
    whole = open_dataset("sample")
    few = some_classes(whole, count)
    assert len(few.classes) == (count or len(whole.classes))
    for item in few.test:
        assert (
            whole.classes[next(one.label for one in whole.test if one.path == item.path)]
            == few.classes[item.label]
        )
