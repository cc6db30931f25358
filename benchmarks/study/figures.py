"""Curves of accuracy and NLL against shots, one figure a dataset and one of the average."""

from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

from benchmarks.study.parts import AVERAGE
from pbprompt.apps.pages import plots

PART = "few-shot"
WORDS = {"accuracy": "Accuracy", "nll": "Negative log-likelihood"}
FAR = 2.0  # a line that stays this many times above the first one's worst NLL would flatten all the others


def draw_curves(study: Mapping[str, Any], folder: Path, stem: str, only: str = "") -> str:
    """Draw (of one group of columns, or of all) into the folder; the Markdown that shows the figures."""
    shown = []
    groups = list(dict.fromkeys(group for group, _ in study["parts"].get(PART, {"columns": []})["columns"]))
    for group in [only] if only else groups:
        for metric, words in WORDS.items():
            lines = _lines(study, group, metric)
            if not lines:
                continue
            lines, far = _near(lines) if metric == "nll" else (lines, [])
            name = f"{stem}-{'-'.join(group.lower().split())}-{metric}.svg"
            title = "Average over the datasets" if group == AVERAGE else group
            share = metric == "accuracy"
            plots.save(plots.curves(lines, title, words, share=share), folder / name)
            beyond = f" Far above, not drawn: {', '.join(far)}." if far else ""
            shown.append(
                f"![{words} against shots, {title}]({folder.name}/{name})\n\n{words}, {title}.{beyond}"
            )
    return "\n\n".join(shown) or "Not run."


def _lines(study: Mapping[str, Any], group: str, metric: str) -> dict[str, plots.Points]:
    """A line per method: the first one's variants are left to the tables."""
    summary = study["parts"][PART]
    first, *others = summary["rows"]
    chosen = [first] + [row for row in others if summary["rows"][row] != summary["rows"][first]]
    shots = {
        f"{group}, {h}": int(h.split()[0]) for g, h in summary["columns"] if g == group and " and " not in h
    }
    lines: dict[str, plots.Points] = {}
    for row in chosen:
        cells = summary["cells"].get(row, {})
        points: plots.Points = {shots[key]: _points(cells[key][metric]) for key in shots if key in cells}
        if points:
            lines[row] = points
    return lines


def _points(figure: list[float]) -> list[float]:
    """Two values with the figure's mean and sample deviation over seeds."""
    mean, spread = figure[0], figure[1] / sqrt(2)
    return [mean - spread, mean + spread]


def _near(lines: Mapping[str, plots.Points]) -> tuple[dict[str, plots.Points], list[str]]:
    """The lines that can share an axis with the first one, and the names of the others."""
    first = next(iter(lines.values()))
    limit = FAR * max(sum(values) / 2 for values in first.values())
    far = [name for name, points in lines.items() if min(sum(v) / 2 for v in points.values()) > limit]
    return {name: points for name, points in lines.items() if name not in far}, far
