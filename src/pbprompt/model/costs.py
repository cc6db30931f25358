"""What wrong answers cost, where some are worse than others, and the answer that costs least.

    R_k(x) = Σ_c p(c | x) L_ck            answer argmin_k R_k

L_ck is what it costs to answer k of an image of class c: 0 for the right one, and 1 unless it is told. To be
`unsure` may be an answer, with a cost u. Where each wrong answer costs 1, that is: unsure where no class has
1 − u (Chow, IEEE Transactions on Information Theory, 1970). Where wrong answers k cost f_k whatever the
class, k is answered from p_k ≥ 1 − u / f_k on: a threshold for each class.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from pbprompt.errors import InputError, suggest
from pbprompt.files import read_text
from pbprompt.vision.images.names import name_key

ANY, UNSURE = "*", "unsure"

Costs = Mapping[tuple[str, str], float]  # of a class and an answer, of which either may be any


def read_costs(path: Path, classes: Sequence[str]) -> dict[tuple[str, str], float]:
    """Of a table of three columns: class, answer, cost."""
    found: dict[tuple[str, str], float] = {}
    for row in csv.reader(StringIO(read_text(path), newline="")):
        cells = [" ".join(cell.split()) for cell in row]
        if not any(cells) or cells == ["class", "answer", "cost"]:
            continue
        if len(cells) != 3:
            raise InputError(
                f"{path}: {','.join(row)[:60]!r} is no line `class,answer,cost`: write three cells"
            )
        try:
            found[cells[0], cells[1]] = float(cells[2])
        except ValueError:
            raise InputError(f"{path}: the cost {cells[2]!r} is no number: write such as 5 or 0.2") from None
    if not found:
        raise InputError(f"{path}: no costs in it: write lines `class,answer,cost`")
    return checked_costs(found, classes, str(path))


def checked_costs(given: Costs, classes: Sequence[str], where: str) -> dict[tuple[str, str], float]:
    """With classes as they are spelt; refused where a name is none, or a number cannot be a cost."""
    known = {name_key(name): name for name in classes}
    found: dict[tuple[str, str], float] = {}
    for (true, answer), cost in given.items():
        pair = []
        for name, others in ((true, (ANY,)), (answer, (ANY, UNSURE))):
            own = known.get(name_key(name), name if name in others else None)
            if own is None:
                raise InputError(
                    f"{where}: no class is called {name!r}: {suggest(name, [*classes, *others])}"
                )
            pair.append(own)
        if not 0 <= cost < math.inf:
            raise InputError(
                f"{where}: {true!r} taken for {answer!r} costs {cost:g}: give a number, 0 or more"
            )
        if pair[0] == pair[1] and pair[0] != ANY and cost:
            raise InputError(f"{where}: a right answer, {true!r}, costs {cost:g}: leave the line out")
        found[pair[0], pair[1]] = float(cost)
    return found


def matrix(costs: Costs, classes: Sequence[str]) -> Float[NDArray[np.float64], "c k"]:
    """L, of which the last column is unsure, if that has a cost; what names more decides."""
    answers = [*classes, *([UNSURE] if any(answer == UNSURE for _, answer in costs) else [])]

    def cost(true: str, answer: str) -> float:
        anything = () if answer == UNSURE else ((true, ANY), (ANY, ANY))
        told = ((true, answer), (ANY, answer), *anything)
        return next((costs[pair] for pair in told if pair in costs), 1.0)

    return np.array(
        [[0.0 if true == answer else cost(true, answer) for answer in answers] for true in classes]
    )


def cheapest(
    probabilities: Float[NDArray[np.float64], "n c"],
    classes: Sequence[str],
    losses: Float[NDArray[np.float64], "c k"],
) -> NDArray[np.object_]:
    """The class of each image that costs least, and its probability; ("", 0.0) where being unsure does."""
    best = (probabilities @ losses).argmin(1)
    found = np.empty(len(best), dtype=object)
    found[:] = [
        (classes[at], float(row[at])) if at < len(classes) else ("", 0.0)
        for at, row in zip(best.tolist(), probabilities, strict=True)
    ]
    return found
