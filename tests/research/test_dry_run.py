"""What a table costs, before it is run."""

import pytest

from pbprompt.errors import InputError
from pbprompt.research import dry_run
from pbprompt.research.dry_run import DryRun
from pbprompt.research.recipes import MethodRow, Recipe, load_recipe
from pbprompt.vision.images.sources import open_dataset

CLASSES = len(open_dataset("sample").classes)


def recipe(**changes):
    values = {
        "task": "few-shot",
        "backbone": "lite",
        "datasets": ("sample",),
        "shots": (2, 4),
        "seeds": (1, 2),
    }
    rows = (MethodRow("own", "coop", overrides=("epochs=3",)), MethodRow("plain", "zeroshot"))
    return Recipe(**{"name": "small", "title": "Small", "rows": rows, **values, **changes})


@pytest.fixture
def timed(monkeypatch):
    """Steps that take 10 ms and 1 ms for each class, images 0.1 s."""
    monkeypatch.setattr(DryRun, "_second", lambda self, *row: 0.01 + 0.001 * row[-1])
    monkeypatch.setattr(dry_run, "_seconds_an_image", lambda *towers: 0.1)


def test_runs_steps_and_hours(timed):
    own, plain = DryRun("lite").cost(recipe())
    images = (2 * CLASSES, 4 * CLASSES)
    steps = 2 * 3 * sum(count // 32 for count in images)
    assert (own.runs, own.steps) == (4, steps) and (plain.runs, plain.steps, plain.hours) == (4, 0, 0.0)
    assert own.hours == pytest.approx(steps * (0.01 + 0.001 * CLASSES) / 3600)
    assert own.most == pytest.approx(3 * (images[1] // 32) * (0.01 + 0.001 * CLASSES) / 3600)


def test_fresh_views_are_encoded_in_every_epoch(timed):
    kept, fresh = (DryRun("lite").cost(recipe(views=views))[0] for views in ("centre", "fresh"))
    assert fresh.steps == kept.steps
    assert fresh.hours - kept.hours == pytest.approx(2 * 3 * (2 + 4) * CLASSES * 0.1 / 3600)


def test_base_to_new_trains_on_half_of_the_classes(timed):
    dry = DryRun("lite")
    (run,) = [run for _, run in recipe(task="base-to-new", shots=(4,), seeds=(1,)).expand()][:1]
    assert dry.steps(run) == 3 * (4 * -(-CLASSES // 2) // 32)


def test_without_the_data_a_draw_is_reckoned(timed, monkeypatch, tmp_path):
    monkeypatch.delenv("PBPROMPT_DATA", raising=False)
    dry = DryRun("lite")
    (run,) = [run for _, run in recipe(datasets=("dtd",), shots=(16,), seeds=(1,)).expand()][:1]
    assert dry.steps(run) == 3 * (47 * 16 // 32) and dry.reckoned
    with pytest.raises(InputError, match="no benchmark of that name"):
        dry.cost(recipe(datasets=("nowhere",)))


def test_the_literal_rows_cost_is_told(timed):
    """One image a step: 400 epochs of 16,000 images are 6.4 million steps."""
    whole = load_recipe("few-shot-vit")
    literal = next(row for row in whole.rows if row.preset == "literal")
    assert DryRun("lite").steps(whole.run(literal, "imagenet")) == 6_400_000


def test_steps_are_really_timed():
    own, plain = DryRun("lite").cost(recipe(shots=(2,), seeds=(1,)))
    assert own.hours is not None and own.hours > 0 and plain.hours == 0


def test_unknown_towers_are_refused():
    with pytest.raises(InputError, match="not laid out here"):
        DryRun("hf-hub:a/b").cost(recipe())
