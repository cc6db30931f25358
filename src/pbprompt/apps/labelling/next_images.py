"""Which of many unlabelled images to label next, and the table in which a person labels them.

    margin_i = 1 − (p_i(1) − p_i(2))                    1 where the two likeliest classes are equally likely
    diverse: draw i with probability ∝ margin_i · min_{j drawn before} ‖x_i − x_j‖²

The latter is k-means++ with weights: what the model doubts, but not the same doubt twenty times.

The table has an image, its label (empty at first), and what the model would call it. `fit` reads it once
every row has a label; further rows are added below those that are there.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.evidence.series import find_series
from pbprompt.files import as_csv, as_name, as_text, cell_text, csv_rows, read_text, write_text
from pbprompt.learners.predictive import Predictive
from pbprompt.model.series import MOST
from pbprompt.seeding import generator
from pbprompt.vision.images.build_dataset import SEPARATOR
from pbprompt.vision.images.stream import list_images
from pbprompt.vision.similarity import unit

By = Literal["margin", "epistemic", "diverse", "random"]
RULES: tuple[By, ...] = get_args(By)
DEFAULT: By = "diverse"  # what needed the fewest labels on validation images: docs/label-next.md


@dataclass(frozen=True)
class Suggestion:
    """Image `row` is worth a label; the model would call it `label`."""

    row: int
    label: str
    probability: float
    score: float
    """its doubt: between the two likeliest classes (0 to 1), or the epistemic part in nats; of a multi-label
    model, summed over the labels, in nats"""


def series_among(features: Float[Tensor, "n d"], predictions: Predictive) -> Int[Tensor, " n"] | None:
    """The series of unlabelled images, told as if each were of its likeliest class; None where they are too
    many to compare, and of several labels."""
    if predictions.given is not None or not 1 < len(features) <= MOST:
        return None
    return find_series(unit(features.float()).cpu(), predictions.probabilities.argmax(1).cpu()).of


def margin_doubt(probabilities: Float[Tensor, "n c"]) -> Float[Tensor, " n"]:
    """1 less the lead of the likeliest class over the next."""
    if probabilities.shape[1] < 2:
        return torch.zeros(len(probabilities))
    first, second = probabilities.topk(2, dim=1).values.unbind(1)
    return (1 - (first - second)).clamp(min=0)  # rounding may put a probability above 1


def spread_out(
    features: Float[Tensor, "n d"], weights: Float[Tensor, " n"], count: int, generator: torch.Generator
) -> Int[Tensor, " count"]:
    """Distinct rows, each drawn by its weight times the squared distance to those drawn before."""
    x = unit(features)
    nearest = torch.ones_like(weights)
    free = torch.ones_like(weights)
    drawn: list[int] = []
    while len(drawn) < count:
        chances = (weights * nearest * free).double()
        if not chances.sum() > 0:  # copies of what was drawn, or all of it certain
            chances = free.double()
        row = int(torch.multinomial(chances, 1, generator=generator))
        distance = (x - x[row]).square().sum(1)
        nearest = torch.minimum(nearest, distance) if drawn else distance
        free[row] = 0
        drawn.append(row)
    return torch.tensor(drawn)


def choose_rows(
    features: Float[Tensor, "n d"],
    scores: Float[Tensor, " n"],
    count: int,
    by: By,
    generator: torch.Generator,
) -> Int[Tensor, " count"]:
    """The rows to label, in order; `scores` say how worthwhile each is by itself, 0 or more."""
    if by not in RULES:
        raise InputError(f"by is {by!r}: use {', '.join(RULES)}")
    if not 1 <= count <= len(scores):
        raise InputError(
            f"{count:,} images to choose, and there are {len(scores):,}: give 1 to {len(scores):,}"
        )
    if by == "random":
        return torch.randperm(len(scores), generator=generator)[:count]
    if by == "diverse":
        return spread_out(features, scores, count, generator)
    return scores.sort(descending=True, stable=True).indices[:count]


def next_images(
    features: Float[Tensor, "n d"],
    predictions: Predictive,
    n: int,
    by: By = DEFAULT,
    seed: int = 0,
    groups: Int[Tensor, " n"] | None = None,
) -> list[Suggestion]:
    """The `n` images to label next, in order; row i of the features is that of prediction i.

    Args:
        features: of the unlabelled images.
        predictions: a model's, of the same images.
        n: how many to choose.
        by: `margin` and `epistemic` take the largest doubt and the largest disagreement, `diverse` doubt
            among images that are unlike each other, `random` any.
        seed: matters to the last two.
        groups: the series of each: while there are enough, only that of each with the largest doubt is chosen
            from.

    Example:
        >>> said = Predictive.of_logits(torch.tensor([[[4.0, 0.0], [0.1, 0.0], [0.0, 3.0]]]))
        >>> [one.row for one in next_images(torch.eye(3), said.of_classes(["cat", "dog"]), 1, by="margin")]
        [1]
    """
    if len(features) != len(predictions):
        raise InputError(f"{len(features)} rows of features and {len(predictions)} predictions: give as many")
    multi_label, every = predictions.given is not None, list(predictions)
    if multi_label and by == "epistemic":
        raise InputError("a multi-label model has no sampled classifiers that could disagree: use diverse")
    if multi_label:
        scores = torch.tensor([said.entropy for said in every])
    elif by == "epistemic":
        scores = torch.tensor([said.epistemic for said in every])
    else:
        scores = margin_doubt(torch.tensor([list(said.scores.values()) for said in every]))
    free = torch.arange(len(scores)) if groups is None else worthiest(scores, groups)
    free = free if len(free) >= n else torch.arange(len(scores))
    rows = free[choose_rows(features.cpu()[free], scores[free], n, by, generator(seed))].tolist()
    chosen = []
    for row in rows:
        said = every[row]
        label = said.label if said.labels is None else SEPARATOR.join(said.labels)  # as a table has it
        chosen.append(Suggestion(row, label, said.score, float(scores[row])))
    return chosen


def worthiest(scores: Float[Tensor, " n"], groups: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
    """The row of each series with the highest score, in order."""
    order = scores.sort(descending=True, stable=True).indices
    first: dict[int, int] = {}
    for row in order.tolist():
        first.setdefault(int(groups[row]), row)
    return torch.tensor(sorted(first.values()))


class Entry(NamedTuple):
    """A line of the table, as text."""

    image: str
    label: str
    suggested: str
    probability: str
    score: str


HEADER = list(Entry._fields)
LABELS_HEADER = ["image", "labels", *HEADER[2:]]  # where an empty cell says none


def table_root(folder: Path, table: Path) -> Path:
    """What its paths are relative to: its own folder, as `fit` expects, if that holds the images."""
    home = table.parent.resolve()
    return home if folder.resolve().is_relative_to(home) else folder.resolve()


def names_in_table(folder: Path, table: Path) -> list[str]:
    """The folder's images as the table calls them; a link in the folder keeps its own name."""
    root, inside = table_root(folder, table), folder.resolve()
    return [(inside / path.relative_to(folder)).relative_to(root).as_posix() for path in list_images(folder)]


def read_table(path: Path) -> list[Entry]:
    """The rows of a table that `write_table` wrote and a person edited; spreadsheets may put ; for ,."""
    text = read_text(path)
    for delimiter in (",", ";", "\t"):
        lines = csv_rows(path, text, delimiter)
        with contextlib.suppress(InputError):  # quoted as another delimiter has it
            if [cell.strip() for cell in next(lines, ("", []))[1]] in (HEADER, LABELS_HEADER):
                break
    else:
        raise InputError(f"{path}: not a table of images to label ({','.join(HEADER)}): choose another name")
    rows = []
    for where, cells in lines:
        if len(cells) != len(HEADER):
            raise InputError(f"{where}: {len(HEADER)} fields belong there: correct it")
        row = Entry(*(cell_text(cell.strip()) for cell in cells))
        rows.append(row._replace(image=as_name(row.image)))
    labels = {row.image: row.label for row in rows if row.label}
    for row in rows:
        if row.label and row.label != labels[row.image]:
            both = f"{row.label!r} and {labels[row.image]!r}"
            raise InputError(f"{path}: {as_text(row.image)} is listed twice, with {both}: keep one line")
    return [row for row in rows if row.label or row.image not in labels]


def write_table(path: Path, rows: Sequence[Entry], *, multi_label: bool = False) -> None:
    header = LABELS_HEADER if multi_label else HEADER
    write_text(path, as_csv([header, *(row._replace(image=as_text(row.image)) for row in rows)]))
