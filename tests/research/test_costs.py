"""What a table costs, before it is run."""

import pytest

from pbprompt.errors import InputError
from pbprompt.research import costs
from pbprompt.research.costs import DryRun, Rate
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
    monkeypatch.setattr(DryRun, "_timed", lambda self, run: Rate(0.01, 0.001, 0.05))
    monkeypatch.setattr(costs, "_seconds_an_image", lambda *towers: 0.1)


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
    assert own.steps > 0 and plain.hours == 0  # whether more classes took longer is this machine's affair


def clock_of(monkeypatch, *pairs):
    """The seconds that pairs of steps take, from the fourth pair on as the third."""
    monkeypatch.setattr(costs, "_seconds", lambda work, device: [call() for call in work] and list(pairs))


def test_a_rate_is_the_median_of_pairs_with_its_spread(monkeypatch):
    clock_of(monkeypatch, (0.012, 0.020), (0.012, 0.028), (0.5, 0.508))  # 1, 2 and 1 ms a class
    few, more = costs.CLASSES
    assert (few, more) == (2, 10)
    rate = DryRun("lite").rate(recipe().expand()[0][1])
    assert rate.per_class == pytest.approx(0.001) and rate.fixed == pytest.approx(0.012 - 2 * 0.001)
    at_100 = sorted((0.012 + 0.098, 0.012 + 0.196, 0.5 + 0.098))
    quartiles = (at_100[0] + at_100[1]) / 2, (at_100[1] + at_100[2]) / 2
    assert rate.spread == pytest.approx((quartiles[1] - quartiles[0]) / 2 / at_100[1])


def test_steps_that_take_no_longer_with_more_classes_are_refused(monkeypatch):
    clock_of(monkeypatch, (0.02, 0.01), (0.02, 0.02), (0.02, 0.03))
    own, plain = DryRun("lite").cost(recipe())
    assert own.hours is None and own.steps > 0 and plain.hours == 0


def test_rows_that_differ_by_the_size_of_a_number_share_their_rate(monkeypatch):
    timed = []
    monkeypatch.setattr(DryRun, "_timed", lambda self, run: timed.append(run) or Rate(1, 1, 0))
    weights = [
        MethodRow(f"η = {eta}", "pbprompt", overrides=(f"ct_weight={eta}",)) for eta in (0, 0.1, 1, 10)
    ]
    rows = DryRun("lite").cost(recipe(rows=tuple(weights)))
    assert len({cost.hours for cost in rows}) == 1 and len(timed) == 2  # without a transport, and with one


def test_calls_are_timed_in_turn_behind_a_warm_up():
    order = []
    times = costs._seconds([lambda: order.append("few"), lambda: order.append("more")], "cpu")
    assert len(times) == costs.PAIRS[1]  # they take no time
    assert order == ["few", "more"] * (len(times) + 1)


def test_unknown_towers_are_refused():
    with pytest.raises(InputError, match="not laid out here"):
        DryRun("hf-hub:a/b").cost(recipe())


def test_the_costs_stand_beside_the_papers(tiny_vit, monkeypatch):
    monkeypatch.setattr(costs, "random_backbone", lambda config: tiny_vit)
    monkeypatch.setattr(costs, "PAPER_CLASSES", 3)
    monkeypatch.setattr(costs, "IMAGES", {"cpu": 2})
    rows = costs.computation_cost()
    assert [row.method for row in rows] == list(costs.ROWS)
    assert [row.published_parameters for row in rows] == [2048, 35360, 8192, 1577984]
    assert [row.published_images_per_second for row in rows] == [645, 37, 583, 541]
    assert all(row.images_per_second > 0 for row in rows)
    assert rows[0].parameters == 4 * tiny_vit.text_width
