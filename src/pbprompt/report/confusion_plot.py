"""The confusion matrix as a picture: rows are the truth, each shaded by the share of its own images."""

from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from pbprompt.report.plots import new_axes, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMED = 60  # classes whose names fit beside the matrix
MOST_COUNTED = 24  # classes whose counts fit into the cells
DARK, PALE = "#101418", "#fdfdfd"  # not the page's ink: a cell keeps its colour on a dark page


@styled
def confusion_picture(matrix: ArrayLike, classes: Sequence[str], title: str = "") -> "Figure":
    """Names stand at up to `MOST_NAMED` classes, counts in the cells of up to `MOST_COUNTED`."""
    counts = np.asarray(matrix)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    named = len(classes) <= MOST_NAMED
    side = min(9.0, max(3.0, 1.2 + 0.3 * len(classes))) if named else 6.4
    figure, axes = new_axes(side + 0.6, side, title)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.grid(visible=False)
    axes.set(xlabel="answer", ylabel="true class")
    if named:
        names = [shorten(name, 18, placeholder="…") or name[:18] for name in classes]
        size = 8 if len(classes) <= MOST_COUNTED else 6
        axes.set_xticks(range(len(classes)), names, rotation=90, fontsize=size)
        axes.set_yticks(range(len(classes)), names, fontsize=size)
    if len(classes) <= MOST_COUNTED:
        for row, column in np.argwhere(counts):
            colour = PALE if share[row, column] > 0.5 else DARK
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour, size=7)
    return figure
