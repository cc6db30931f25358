"""This part looks like that part: patches of an image beside the training photographs that they match.

A patch's share of the logit is exact: over all patches they add up to what comparing adds to the class
(`evidence/experts/patches.py`). Shown are those that add most, of different photographs and different places:
a patch beside one that is shown already, or one that points to the same photograph, would say the same again.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw

from pbprompt.apps.explain.drawing import GAP, INK, LINE, SIDE, seen, write
from pbprompt.errors import InputError
from pbprompt.evidence.experts.patches import SIDE as CELLS
from pbprompt.learners.fitted import ComparesParts
from pbprompt.model.metrics.evaluation import Evaluation
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.names import class_rows

CLASSES, PARTS = 3, 4  # that are shown: classes where none is named, and parts of each
LIKELY = 0.05  # probability of a class that is shown unasked, besides the likeliest
MISTAKES = 6  # of a report
MARK = "#ffd33d"

Box = tuple[float, float, float, float]


class Case(NamedTuple):
    """A patch of the image, and the place in a training photograph that it is most like."""

    logit: float
    """what it adds"""
    box: Box
    """left, top, right and bottom, as shares of the square that the model sees"""
    photograph: Path
    place: Box


class Cases(NamedTuple):
    """Of a class, the patches that spoke for it most."""

    name: str
    probability: float
    logit: float
    """what all patches add"""
    parts: list[Case]


def comparing(tuned: TunedModel) -> ComparesParts | None:
    """What was fitted, where it compares patches."""
    fitted = tuned.method.fitted
    return fitted if isinstance(fitted, ComparesParts) and fitted.compares else None


@torch.no_grad()
def cases(
    tuned: TunedModel, image: Image.Image, names: Sequence[str] | None = None, root: Path | None = None
) -> list[Cases]:
    """Of the named classes, or of those that are likely; `root`: where the training photographs are now, if
    not where they were: then none outside of it is opened."""
    data = tuned.info.data
    if (method := comparing(tuned)) is None or not data.photographs:
        raise InputError(
            "--reading cases: the model compares no patches: fit it by `fit --set patches=true`, or use "
            "another reading"
        )
    encoded = tuned.encode([tuned.backbone.preprocess(image)])
    said = tuned.predictor(encoded).probabilities[0]
    first, *others = said.argsort(descending=True)[:CLASSES].tolist()
    likely = [first, *(row for row in others if said[row] >= LIKELY)]
    rows = class_rows(tuned.classes, names) if names else likely
    adds, sources = (part[0].cpu() for part in method.parts(encoded))
    folder, side = Path(os.path.abspath(root or data.root)), tuned.backbone.grid[0]  # noqa: PTH100 - links stay
    found = []
    for row in rows:
        parts = []
        for patch in told_apart(adds[:, row].tolist(), sources[:, row, 0].tolist(), cells(side)):
            photograph, place = sources[patch, row].tolist()
            where = Path(os.path.normpath(folder / data.photographs[photograph]))
            if root and not where.is_relative_to(folder):  # whoever made the model may have named any file
                raise InputError(f"the model names a training photograph that is not in {folder}")
            parts.append(Case(float(adds[patch, row]), box(patch, side), where, box(place, side)))
        found.append(Cases(tuned.classes[row], float(said[row]), float(adds[:, row].sum()), parts))
    return found


def told_apart(adds: Sequence[float], photographs: Sequence[int], across: int) -> list[int]:
    """The patches that add most, none beside another and none of the same photograph."""

    def apart(one: int, other: int) -> bool:
        (row, column), (its_row, its_column) = divmod(one, across), divmod(other, across)
        beside = max(abs(row - its_row), abs(column - its_column)) <= 1
        return photographs[one] != photographs[other] and not beside

    chosen: list[int] = []
    for patch in sorted(range(len(adds)), key=lambda place: -adds[place]):
        if adds[patch] <= 0 or len(chosen) == PARTS:
            break
        if photographs[patch] >= 0 and all(apart(patch, other) for other in chosen):
            chosen.append(patch)
    return chosen


def cells(side: int) -> int:
    """How many squares across a grid is read in: a fine one not patch by patch."""
    return math.ceil(side / math.ceil(side / CELLS))


def box(place: int, side: int) -> Box:
    """Where a patch is, of a grid with so many a side; fine grids are read in squares."""
    step = math.ceil(side / CELLS)
    down, across = divmod(place, cells(side))
    left, top = across * step / side, down * step / side
    return left, top, min(1.0, left + step / side), min(1.0, top + step / side)


def draw_cases(found: Sequence[Cases], image: Image.Image, tuned: TunedModel) -> Image.Image:
    """A row per class: the image and its parts in pairs, each with the photograph that it is like."""
    pair, height = 2 * SIDE + 3 * GAP, SIDE + 3 * LINE + GAP
    canvas = Image.new("RGB", (PARTS * pair + GAP, len(found) * height + GAP), "white")
    draw = ImageDraw.Draw(canvas)
    for row, one in enumerate(found):
        top = GAP + row * height
        told = f"{one.name}, probability {one.probability:.1%}: patches add {one.logit:+.2f} to its logit"
        write(draw, (GAP, top), told if one.parts else f"{told}, none of them much", canvas.width, INK)
        for column, part in enumerate(one.parts):
            left = GAP + column * pair
            write(draw, (left, top + LINE), f"{part.logit:+.3f}   {part.photograph.name}", pair - GAP, INK)
            canvas.paste(draw_case(part, image, tuned), (left, top + 2 * LINE))
    return canvas


def draw_case(part: Case, image: Image.Image, tuned: TunedModel) -> Image.Image:
    """The image and the photograph side by side, a frame around what is alike."""
    see = tuned.backbone.preprocess
    canvas = Image.new("RGB", (2 * SIDE + GAP, SIDE), "white")
    for at, picture, where in ((0, image, part.box), (1, _opened(part.photograph), part.place)):
        tile = Image.new("RGB", (SIDE, SIDE), "lightgrey")
        if picture is not None:
            tile = seen(picture, SIDE, see.fit, see.kept)
        ImageDraw.Draw(tile).rectangle([share * (SIDE - 1) for share in where], outline=MARK, width=3)
        canvas.paste(tile, (at * (SIDE + GAP), 0))
    return canvas


def of_mistakes(tuned: TunedModel, answers: Evaluation, root: Path) -> dict[str, Image.Image]:
    """By path, of the surest mistake of each of the most confused pairs: what spoke for the answer, above
    what spoke for the truth. None of a model that compares no patches."""
    if comparing(tuned) is None or not tuned.info.data.photographs:
        return {}
    drawn = {}
    for pair in answers.confused[:MISTAKES]:
        path = answers.paths[answers.examples(pair)[0]]
        image, names = open_image(root / path), [answers.classes[at] for at in (pair.taken_for, pair.true)]
        drawn[path] = draw_cases(cases(tuned, image, names), image, tuned)
    return drawn


def _opened(path: Path) -> Image.Image | None:
    """A training photograph, if it is still there."""
    try:
        return open_image(path)
    except InputError:
        return None
