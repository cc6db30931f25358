"""How each part's rows are shown, on the console and in the document."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]
NAMES = {"coop": "CoOp", "cocoop": "CoCoOp", "plot": "PLOT", "vpt": "VPT", "pbprompt": "PBPrompt"}


class Column(NamedTuple):
    """A heading, the row's key below it, and how its value is written."""

    heading: str
    key: str
    write: Callable[[Any], str] = str


def digits(value: float) -> str:
    """Three significant digits, thousands with commas."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def number(value: int) -> str:
    return f"{value:,}"


def times(value: float) -> str:
    return f"{digits(value)}×"


def share(value: float) -> str:
    return f"{100 * value:.3g} %"


def power(value: float) -> str:
    return f"{value:.0e}"


def name(method: str) -> str:
    return NAMES.get(method, method)


METHOD, BACKBONE = Column("method", "method", name), Column("backbone", "backbone")
PRECISION, CLASSES = Column("precision", "precision"), Column("classes", "classes", number)
IMAGES, EPOCHS, NOTE = Column("images", "images", number), Column("epochs", "epochs"), Column("", "note")
RATIO = Column("ratio", "ratio", times)

TITLES = {
    "steps": "Training step",
    "fit": "Fit, from image files to the tuned method",
    "predict": "Prediction",
    "imagenet": "A whole PBPrompt run from JPEG files, fresh views each epoch",
    "classes": "Very many classes",
    "growth": "Growth",
    "stream": "One pass over as many images as ImageNet has, as features",
    "conjugate": "`conjugate` as images or classes grow, from features",
    "stages": "`pbprompt fit` by stages, from cached features: processor time with one thread",
}
COLUMNS: dict[str, Sequence[Column]] = {
    "steps": (
        METHOD,
        BACKBONE,
        PRECISION,
        CLASSES,
        Column("batch", "batch"),
        Column("plain, ms", "plain_ms", digits),
        Column("ours, ms", "ours_ms", digits),
        RATIO,
        Column("plain, GiB", "plain_gib", digits),
        Column("ours, GiB", "ours_gib", digits),
        Column("matrix product, TFLOP/s", "product_tflops", digits),
        Column("floor, ms", "floor_ms", digits),
        Column("floor / ours", "floor_share", share),
        Column("difference", "difference", power),
        Column("in float32", "difference_float32", power),
        NOTE,
    ),
    "fit": (
        METHOD,
        Column("settings", "settings"),
        BACKBONE,
        PRECISION,
        CLASSES,
        IMAGES,
        EPOCHS,
        Column("batch", "batch"),
        Column("from", "from"),
        Column("plain, s", "plain_s", digits),
        Column("ours, s", "ours_s", digits),
        RATIO,
        Column("plain loss", "plain_loss", "{:.4f}".format),
        Column("our loss", "ours_loss", "{:.4f}".format),
        Column("steps", "steps", number),
        Column("of which run", "steps_run", number),
        Column("floor, s", "floor_s", digits),
    ),
    "predict": (
        Column("what", "what"),
        BACKBONE,
        PRECISION,
        CLASSES,
        Column("way", "way"),
        Column("images/s", "images_per_second", digits),
        Column("against", "against"),
        Column("images/s", "against_images_per_second", digits),
        RATIO,
        NOTE,
    ),
    "imagenet": (
        METHOD,
        BACKBONE,
        PRECISION,
        IMAGES,
        CLASSES,
        EPOCHS,
        Column("KB per image", "kb_an_image", digits),
        Column("seconds", "seconds", digits),
        Column("views/s", "images_per_second", digits),
        Column("peak, GiB", "gib", digits),
    ),
    "classes": (
        METHOD,
        BACKBONE,
        PRECISION,
        CLASSES,
        Column("batch", "batch"),
        Column("step, ms", "ms", digits),
        Column("peak, GiB", "gib", digits),
        NOTE,
    ),
    "growth": (
        Column("grows", "grows"),
        Column("to", "value", number),
        BACKBONE,
        Column("ms", "ms", digits),
        Column("GiB", "gib", digits),
    ),
    "stream": (
        IMAGES,
        CLASSES,
        Column("width", "width"),
        Column("pass, s", "seconds", digits),
        Column("images/s", "images_per_second", digits),
        Column("copy, images/s", "copy_per_second", digits),
        Column("sum, images/s", "sum_per_second", digits),
        Column("XᵀX in float64, images/s", "product_per_second", digits),
        Column("copy / pass", "to_copy", times),
        Column("XᵀX / pass", "to_product", times),
        Column("peak, GiB", "gib", digits),
    ),
    "conjugate": (
        Column("grows", "grows"),
        IMAGES,
        CLASSES,
        BACKBONE,
        Column("names, ms", "names_ms", digits),
        Column("pass, ms", "pass_ms", digits),
        Column("choice, ms", "choice_ms", digits),
        Column("fit, ms", "fit_ms", digits),
        Column("one image more, ms", "learn_ms", digits),
        Column("64 predictions, ms", "predict_ms", digits),
        Column("peak, GiB", "gib", digits),
    ),
    "stages": (
        Column("stage", "stage"),
        Column("seconds", "seconds", digits),
        Column("of all", "share", share),
        CLASSES,
        IMAGES,
    ),
}


def table(part: str, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a part, without the columns that no row fills."""
    filled = [column for column in COLUMNS[part] if any(row.get(column.key) is not None for row in rows)]
    cells = [
        ["–" if row.get(column.key) is None else column.write(row[column.key]) for column in filled]
        for row in rows
    ]
    return [column.heading for column in filled], cells
