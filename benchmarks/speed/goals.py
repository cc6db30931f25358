"""What the library should reach, and whether a machine's results do."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.speed.tables import digits

Row = Mapping[str, Any]


class Found(NamedTuple):
    """A measured value, and what of it the reader should know."""

    value: float
    detail: str = ""


class Goal(NamedTuple):
    """A bound on what `find` reads off the rows of a part; `find` gives None where they do not hold it."""

    part: str
    text: str
    bound: float
    unit: str
    at_most: bool
    find: Callable[[Sequence[Row]], Found | None]

    def met(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound


def one(key: str, **wanted: Any) -> Callable[[Sequence[Row]], Found | None]:
    """The value of the row that has all of these."""

    def find(rows: Sequence[Row]) -> Found | None:
        found = [row for row in rows if _has(row, wanted) and row.get(key) is not None]
        return Found(found[0][key]) if found else None

    return find


def worst(key: str, at_most: bool, *labels: str, **wanted: Any) -> Callable[[Sequence[Row]], Found | None]:
    """The row that is furthest from the goal, named by its labels."""

    def find(rows: Sequence[Row]) -> Found | None:
        found = [row for row in rows if _has(row, wanted) and row.get(key) is not None]
        if not found:
            return None
        row = (max if at_most else min)(found, key=lambda row: row[key])
        return Found(row[key], ", ".join(str(row[label]) for label in labels if row.get(label)))

    return find


def best(key: str, *labels: str, **wanted: Any) -> Callable[[Sequence[Row]], Found | None]:
    """The highest row, named by its labels."""
    return worst(key, True, *labels, **wanted)


def _has(row: Row, wanted: Mapping[str, Any]) -> bool:
    return all(row.get(key) == value for key, value in wanted.items())


def _cached_fit(rows: Sequence[Row]) -> Found | None:
    """Methods as they are decide; what makes one faster at some cost is named beside them."""
    wanted = {"from": "cached features", "backbone": "lite", "classes": 100}
    rows = [row for row in rows if _has(row, wanted)]
    plain = [row for row in rows if not row.get("settings")]
    if not plain:
        return None
    slowest = max(plain, key=lambda row: row["ours_s"])
    run, steps = slowest["steps_run"], slowest["steps"]
    how = "run whole" if run == steps else f"from its first {run:,} of {steps:,} steps"
    beside = "".join(
        f"; {digits(row['ours_s'])} s with {row['settings']}" for row in rows if row.get("settings")
    )
    return Found(slowest["ours_s"], f"{slowest['method']}, {how}{beside}")


def _step(method: str, classes: int, bound: float) -> Goal:
    title = {"coop": "CoOp", "cocoop": "CoCoOp", "pbprompt": "PBPrompt"}[method]
    find = one("ours_ms", method=method, classes=classes, backbone="ViT-B/16")
    return Goal("steps", f"{title} step, {classes:,} classes", bound, "ms", True, find)


VIT = {"backbone": "ViT-B/16"}
GOALS: dict[str, tuple[Goal, ...]] = {
    "cuda": (
        _step("coop", 1000, 2.0),
        _step("pbprompt", 1000, 4.5),
        _step("coop", 101, 0.8),
        _step("pbprompt", 101, 1.2),
        _step("cocoop", 101, 5.0),
        Goal(
            "predict",
            "CoCoOp inference, 101 classes",
            2000,
            "images/s",
            False,
            one("images_per_second", what="CoCoOp", classes=101, **VIT),
        ),
        Goal(
            "predict",
            "prediction with 20 samples beside the bare image tower",
            0.97,
            "×",
            False,
            worst("ratio", False, "classes", what="PBPrompt, 20 samples", **VIT),
        ),
        Goal(
            "predict",
            "image tower",
            9000,
            "images/s",
            False,
            best("images_per_second", "precision", "way", what="image tower", **VIT),
        ),
        Goal(
            "imagenet",
            "PBPrompt on 16,000 JPEG files, 1,000 classes, 10 epochs of fresh views, end to end",
            180,
            "s",
            True,
            one("seconds", images=16_000, classes=1000, epochs=10, **VIT),
        ),
        Goal(
            "classes",
            "a step over 21,000 classes",
            8,
            "GiB",
            True,
            worst("gib", True, "method", classes=21_000, **VIT),
        ),
    ),
    "cpu": (
        Goal(
            "predict",
            "`lite` image tower at 224 px",
            60,
            "images/s",
            False,
            one("images_per_second", what="image tower", backbone="lite", pixels=224),
        ),
        Goal(
            "fit",
            "fit of 100 classes × 16 shots × 50 epochs from cached features",
            180,
            "s",
            True,
            _cached_fit,
        ),
        Goal(
            "stages",
            "`pbprompt fit` of 100 classes × 16 shots from cached features, by the clock",
            3,
            "s",
            True,
            one("seconds", stage="all, by the clock", classes=100),
        ),
        Goal(
            "stages",
            "a second such fit in one Python process, by the clock",
            1,
            "s",
            True,
            one("seconds", stage="a second fit in Python, by the clock", classes=100),
        ),
        Goal(
            "predict",
            "ViT-B/16 image tower beside transformers' CLIPModel in float32",
            1.5,
            "×",
            False,
            best("ratio", "precision", "note", against="transformers' CLIPModel, float32", **VIT),
        ),
    ),
}


def judged(kind: str, parts: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(goal, measured, met) of every goal for a kind of device."""
    for goal in GOALS[kind]:
        bound = f"{goal.text}: {'at most' if goal.at_most else 'at least'} {digits(goal.bound)} {goal.unit}"
        part = parts.get(goal.part)
        found = goal.find(part["rows"]) if part and not part["quick"] else None  # try-outs do not count
        if found is None:
            yield bound, "not measured", "–"
            continue
        detail = f" ({found.detail})" if found.detail else ""
        met = "yes" if goal.met(found.value) else "**no**"
        yield bound, f"{digits(found.value)} {goal.unit}{detail}", met
