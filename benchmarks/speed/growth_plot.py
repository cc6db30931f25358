"""Time and memory against each size that grows, one line per machine."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pbprompt.apps.pages.plots import COLOURS, INK, MARKERS, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
LABELS = {
    "classes": "classes C",
    "samples": "samples S",
    "patches": "patches M",
    "batch": "images per step",
    "images": "images per run",
}


@styled
def growth_figure(lines: Mapping[str, Sequence[Row]], labels: Mapping[str, str] = LABELS) -> "Figure":
    """A column per size: above milliseconds, below GiB, both axes logarithmic; dashed: in proportion."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    sizes = [size for size in labels if any(row["grows"] == size for rows in lines.values() for row in rows)]
    figure = Figure(figsize=(2.2 * len(sizes), 4.2), layout="constrained")
    grid = figure.subplots(2, len(sizes), squeeze=False, sharex="col", sharey="row")
    for number, (label, rows) in enumerate(lines.items()):
        look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        for column, size in enumerate(sizes):
            points = sorted((row["value"], row["ms"], row["gib"]) for row in rows if row["grows"] == size)
            if not points:
                continue
            at, *measured = zip(*points, strict=True)
            for axes, heights in zip(grid[:, column], measured, strict=True):
                axes.plot(at, heights, label=label if column == 0 else None, **look)
                in_proportion = [heights[0] * value / at[0] for value in at]
                axes.plot(at, in_proportion, color=INK, alpha=0.4, linewidth=0.8, linestyle="--")
    for column, size in enumerate(sizes):
        values = sorted({row["value"] for rows in lines.values() for row in rows if row["grows"] == size})
        for axes in grid[:, column]:
            axes.set(xscale="log", yscale="log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_locator(NullLocator())
        shown = values if len(values) <= 4 else values[:: -(len(values) // 3)]
        grid[1, column].set_xticks(shown, [f"{value:g}" for value in shown], fontsize=8)
        grid[1, column].set_xticks([], minor=True)
        grid[1, column].set_xlabel(labels[size])
    grid[0, 0].set_ylabel("milliseconds")
    grid[1, 0].set_ylabel("peak, GiB")
    handles, machines = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, machines, loc="outside upper left", ncols=2, fontsize=9)
    return figure
