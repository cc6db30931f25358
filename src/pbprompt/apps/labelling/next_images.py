"""Which of many unlabelled images to label next, and the table in which a person labels them.

The table has an image, its label (empty at first), and what the model would call it. `fit` reads it once
every row has a label; further rows are added below those that are there.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.apps.labelling.acquisition import By, choose_rows, margin_doubt
from pbprompt.errors import InputError
from pbprompt.evidence.series import find_series
from pbprompt.files import as_csv, as_name, as_text, cell_text, read_text, write_text
from pbprompt.learners.predictive import Predictive
from pbprompt.model.series import MOST
from pbprompt.seeding import generator
from pbprompt.vision.images.build_dataset import SEPARATOR
from pbprompt.vision.similarity import unit

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


def name_in_table(path: Path, folder: Path, root: Path) -> str:
    """An image of the folder as the table calls it; a link in the folder keeps its own name."""
    return (folder.resolve() / path.relative_to(folder)).relative_to(root).as_posix()


def read_table(path: Path) -> list[Entry]:
    """The rows of a table that `write_table` wrote and a person edited; spreadsheets may put ; for ,."""
    text = read_text(path)
    for delimiter in (",", ";", "\t"):
        try:
            lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
        except csv.Error as error:
            raise InputError(f"{path}: {error}: correct it, or choose another name") from None
        if lines and [cell.strip() for cell in lines[0]] in (HEADER, LABELS_HEADER):
            wrong = [at for at, line in enumerate(lines, 1) if line and len(line) != len(HEADER)]
            if wrong:
                raise InputError(f"{path} line {wrong[0]}: {len(HEADER)} fields belong there: correct it")
            rows = [Entry(*(cell_text(cell.strip()) for cell in line)) for line in lines[1:] if any(line)]
            named = [row._replace(image=as_name(row.image)) for row in rows]
            said = {row.image: row.label for row in named if row.label}
            named = [row for row in named if row.label or row.image not in said]
            if odd := next((row for row in named if row.label and row.label != said[row.image]), None):
                both = f"{odd.label!r} and {said[odd.image]!r}"
                raise InputError(f"{path}: {as_text(odd.image)} is listed twice, with {both}: keep one line")
            return named
    raise InputError(f"{path}: not a table of images to label ({','.join(HEADER)}): choose another name")


def write_table(path: Path, rows: Sequence[Entry], *, multi_label: bool = False) -> None:
    header = LABELS_HEADER if multi_label else HEADER
    write_text(path, as_csv([header, *(row._replace(image=as_text(row.image)) for row in rows)]))
