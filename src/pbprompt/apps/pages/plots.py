"""Figures from plain numbers. Each function returns a matplotlib Figure; `save` writes it as SVG or PNG.

Shares (accuracy, confidence, risk, coverage) come in as fractions and are labelled in per cent. Figures are
made without pyplot and without the user's matplotlib settings: the same numbers give the same bytes.
"""

import io
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from pbprompt.errors import InputError, needing
from pbprompt.files import write_bytes
from pbprompt.model.metrics.classification import ReliabilityBins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

# A line: where on the x axis -> the accuracy of each seed there.
Points = Mapping[float, Sequence[float]]


class Bar(NamedTuple):
    """A bar's height as a share, its standard deviation over seeds, and the paper's figure, where known."""

    mean: float
    std: float | None = None
    published: float | None = None


@dataclass(frozen=True)
class Drawing:
    """A figure with a name for its file, a caption, and in words what is to be seen in it."""

    name: str
    caption: str
    description: str
    figure: "Figure"
    small: bool = False


INK = "#24292f"  # all text and axes, and nothing else: a page may put its own text colour in its place
# Okabe and Ito's colours, which the colour-blind tell apart, without those too pale for a white page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
GAP = "#f0b890"
MARKERS = "os^DvPX"
DASHES = ("-", "--", ":", "-.")
SHOTS = "Training images per class (shots)"
HATCHES = ("", "///", "...", "xxx")


def available() -> bool:
    """Whether figures can be drawn here."""
    return find_spec("matplotlib") is not None


def styled(function: Callable[P, T]) -> Callable[P, T]:
    """Run the function in figures.mplstyle: matplotlib reads some of it late, when texts are made."""

    @wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> T:
        with needing("figures need matplotlib", "plots"):
            from matplotlib import style
        with style.context(["default", "pbprompt.apps.pages.figures"]):
            return function(*args, **kwargs)

    return inside


@styled
def curves(
    lines: Mapping[str, Points],
    title: str = "",
    measured: str = "Accuracy",
    axis: str = SHOTS,
    share: bool = True,
) -> "Figure":
    """Accuracy against shots or a setting's value: a line per method through the means, a band of one std.

    What is measured may be something else, and no share of a whole: then it is not labelled in per cent.
    """
    figure, axes = new_axes(6.4, 3.6, title)
    for number, (label, points) in enumerate(lines.items()):
        x = sorted(points)
        mean = np.array([fmean(points[value]) for value in x])
        spread = np.array([stdev(points[value]) if len(points[value]) > 1 else 0.0 for value in x])
        look = _look(number)
        axes.plot(x, mean, marker=MARKERS[number % len(MARKERS)], label=label, **look)
        if spread.any():
            axes.fill_between(x, mean - spread, mean + spread, color=look["color"], alpha=0.15, linewidth=0)
    values = sorted({x for points in lines.values() for x in points})
    if axis == SHOTS or (values[0] > 0 and values[-1] / values[0] >= 50):  # as 0.001, 0.01, 0.1: equal steps
        axes.set_xscale("log", base=2 if axis == SHOTS else 10)
        axes.set_xticks(values, [f"{x:g}" for x in values])
        axes.set_xticks([], minor=True)
    axes.set(xlabel=axis, ylabel=f"{measured} (%)" if share else measured)
    if share:
        _percent(axes.yaxis)
    _legend_of_lines(figure, axes)
    return figure


@styled
def bars(groups: Mapping[str, Mapping[str, Bar]], title: str = "", measured: str = "Accuracy") -> "Figure":
    """For each group, as a dataset, a bar per method with one std over seeds; a diamond: as published.

    The axis starts a little below the lowest, since what differs is near the top.
    """
    labels = list(dict.fromkeys(label for group in groups.values() for label in group))
    shown = [bar for group in groups.values() for bar in group.values()]
    heights = [value for bar in shown for value in (bar.mean, bar.published) if value is not None]
    inches = max(6.4, 2.2 + 0.16 * len(labels) * len(groups))
    figure, axes = new_axes(inches, 3.6, "\n".join(wrap(title, int(10 * (inches - 2)))))
    width = 0.8 / len(labels)
    for number, label in enumerate(labels):
        own = {place: group[label] for place, group in enumerate(groups.values()) if label in group}
        at = np.array([place + (number - (len(labels) - 1) / 2) * width for place in own])
        axes.bar(
            at,
            [bar.mean for bar in own.values()],
            0.92 * width,
            yerr=[bar.std or 0.0 for bar in own.values()],
            label=label,
            color=COLOURS[number % len(COLOURS)],
            hatch=HATCHES[number // len(COLOURS) % len(HATCHES)],
            edgecolor="white",
            linewidth=0.3,
            error_kw={"elinewidth": 0.9, "ecolor": INK},
        )
        printed = [(x, bar.published) for x, bar in zip(at, own.values(), strict=True) if bar.published]
        if printed:
            axes.plot(*zip(*printed, strict=True), "D", color=INK, markersize=3, markerfacecolor="white")
    axes.set_ylim(bottom=max(0.0, math.floor(20 * min(heights) - 1) / 20))
    axes.set_xticks(range(len(groups)), ["\n".join(wrap(name, 12)) for name in groups], fontsize=8)
    axes.grid(visible=False, axis="x")
    axes.set(ylabel=f"{measured} (%)")
    _percent(axes.yaxis)
    _legend(figure, *axes.get_legend_handles_labels())
    return figure


@styled
def reliability_diagram(bins: ReliabilityBins, title: str = "") -> "Figure":
    """Accuracy in each bin of confidence with its gap to the mean confidence; below, where the images are.

    The title's last line is the expected calibration error.
    """
    full = bins.count > 0
    left, right = bins.edges[:-1][full], bins.edges[1:][full]
    accuracy, count, gap = bins.accuracy[full], bins.count[full], (bins.confidence - bins.accuracy)[full]
    lines = [*wrap(title, 30), f"ECE {100 * bins.error:.1f} %"]
    layout = {"nrows": 2, "sharex": True, "height_ratios": [4, 1]}
    figure, (axes, shares) = new_axes(3.3, 3.7, "\n".join(lines), **layout)

    axes.bar(left, accuracy, right - left, align="edge", color=COLOURS[0], alpha=0.8, label="accuracy")
    axes.bar(left, gap, right - left, accuracy, align="edge", color=GAP, label="gap to confidence")
    axes.hlines(accuracy, left, right, color=INK, linewidth=1.5)  # which end of the gap is the accuracy
    axes.plot([0, 1], [0, 1], linestyle="--", linewidth=1, color=INK)
    axes.legend(loc="upper left", fontsize=8, borderpad=0, handlelength=1.2)
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="Accuracy (%)")

    shares.bar(left, count / count.sum(), right - left, align="edge", color=INK, alpha=0.5)
    shares.set(xlabel="Confidence (%)", ylabel="Images (%)")
    shares.locator_params(axis="y", nbins=3)
    for axis in (axes.xaxis, axes.yaxis, shares.yaxis):
        _percent(axis)
    return figure


@styled
def risk_coverage_curves(curves: Mapping[str, tuple[ArrayLike, ArrayLike]], title: str = "") -> "Figure":
    """The share of errors among the answers given, against the share of images answered: lower is better."""
    figure, axes = new_axes(6.4, 3.6, title)
    for number, (label, (coverage, risk)) in enumerate(curves.items()):
        axes.plot(coverage, risk, label=label, **_look(number))
    axes.set(xlim=(0, 1), xlabel="Coverage: images answered, surest first (%)")
    axes.set(ylabel="Risk: errors among them (%)")
    axes.set_ylim(bottom=0)
    _percent(axes.xaxis)
    _percent(axes.yaxis)
    _legend_of_lines(figure, axes)
    return figure


@styled
def render(figure: "Figure", kind: str = "svg", transparent: bool = False) -> bytes:
    """The figure as a file's content; the same figure gives the same bytes, whenever it is rendered."""
    undated = {"svg": ("Date", "Creator", "Format", "Type"), "png": ("Software",)}[kind]
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Only the widths of such letters are guessed: a viewer of the SVG has fonts of its own.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=kind, dpi=200, metadata=dict.fromkeys(undated), transparent=transparent)
    return buffer.getvalue()


def save(figure: "Figure", path: str | Path) -> None:
    """Write the figure as SVG or PNG, by the file's suffix."""
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in ("svg", "png"):
        raise InputError(f"{path}: figures are written as .svg or .png: choose one of these suffixes")
    write_bytes(path, render(figure, kind))


def new_axes(width: float, height: float, title: str, **layout: Any) -> tuple["Figure", Any]:
    """A figure of that many inches and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(**layout)
    np.atleast_1d(axes)[0].set_title(title, loc="left")
    return figure, axes


def _look(number: int) -> dict[str, Any]:
    """Colour and dashes of a line: the dashes change when the colours start again."""
    dashes = DASHES[number // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes}


def _legend_of_lines(figure: "Figure", axes: "Axes") -> None:
    """Ordered as the lines end, from the top."""
    lines = sorted(axes.get_lines(), key=lambda line: -np.append(-np.inf, line.get_ydata())[-1])
    _legend(figure, lines, (str(line.get_label()) for line in lines))


def _legend(figure: "Figure", handles: Sequence[Any], names: Iterable[str]) -> None:
    """Beside the axes, where it covers nothing."""
    figure.legend(
        handles, ["\n".join(wrap(name, 24)) for name in names], loc="outside right upper", fontsize=9
    )


def _percent(axis: Any) -> None:
    axis.set_major_formatter(lambda share, _: f"{100 * share:.4g}")


def reliability_words(bins: ReliabilityBins) -> str:
    """The diagram for those who do not see it."""
    full = bins.count > 0
    pairs = zip(bins.confidence[full], bins.accuracy[full], strict=True)
    return "; ".join(f"{100 * confidence:.0f}: {100 * accuracy:.0f}" for confidence, accuracy in pairs) + "."
