"""The study's tables in Markdown: figures of every row and column, and how far the first row is ahead."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from benchmarks.study.claims import HIGHER_IS_BETTER, Lead, first_row
from benchmarks.study.parts import AVERAGE
from pbprompt import markdown

Study = Mapping[str, Any]
SCALES = {
    "accuracy": (100, 2),
    "nll": (1, 3),
    "ece": (100, 1),
    "posterior_std": (1, 4),
    "sampled_cosine": (1, 4),
}
UNITS = {
    "accuracy": "accuracy, points",
    "nll": "NLL",
    "ece": "ECE, points",
    "sampled_cosine": "cosine of sampled prompts",
}
TITLES = {"accuracy": "accuracy, %", "nll": "NLL", "ece": "ECE, %"}
SIGNS = {"yes": "↓", "no": "↑", "open": ""}  # a row beside the first one: it is worse, better, or neither
USUAL_SEEDS = 3  # fewer are told in the cell
NOT_RUN = "–"


def number(metric: str, value: float, signed: bool = False) -> str:
    """A figure as the page prints it: shares in per cent."""
    scale, digits = SCALES.get(metric, (100, 1))
    return f"{scale * value:{'+' if signed else ''}.{digits}f}".replace("-", "−")


def plain_lead(lead: Lead | None) -> str:
    """difference [low, high]"""
    if lead is None:
        return "not run"
    if not isfinite(lead.low):
        return f"{number(lead.metric, lead.difference, signed=True)} (no interval)"
    difference, low, high = (
        number(lead.metric, v, signed=True) for v in (lead.difference, lead.low, lead.high)
    )
    return f"{difference} [{low}, {high}]"


def marked_lead(lead: Lead | None) -> str:
    """In bold where zero is left out."""
    text = plain_lead(lead)
    return f"**{text}**" if lead and lead.outcome() != "open" else text


def _columns(study: Study, part: str) -> dict[str, list[tuple[str, str]]]:
    """Group -> (heading, key) of its columns."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for group, heading in study["parts"][part]["columns"]:
        key = ", ".join(filter(None, (group, heading)))
        groups.setdefault(group, []).append((heading, key))
    return groups


def tables(study: Study, part: str, only: str = "") -> str:
    """A table for each metric of every group of columns; or of the average alone."""
    groups = {group: c for group, c in _columns(study, part).items() if not only or group == only}
    return "\n\n".join(
        _table(study, part, group, columns, metric)
        for group, columns in groups.items()
        for metric in ("accuracy", "nll", "ece")
    )


def overview(study: Study, part: str, *wanted: str) -> str:
    """One table of accuracy / NLL / ECE in the columns, or groups of them, that are named; else in all."""
    columns = [
        (", ".join(filter(None, (group * (len(wanted) > 1), heading))), key)
        for group, some in _columns(study, part).items()
        for heading, key in some
        if not wanted or {group, key} & set(wanted)
    ]
    first = first_row(study, part)
    rows = []
    for label in study["parts"][part]["rows"]:
        cells = study["parts"][part]["cells"].get(label, {})
        texts = [" / ".join(_marked(cells.get(key), metric) for metric in TITLES) for _, key in columns]
        if any(key in cells for _, key in columns):
            rows.append([f"**{label}**" if label == first else label, *texts])
    return markdown.table(["accuracy, % / NLL / ECE, %", *(heading for heading, _ in columns)], rows)


def _marked(cell: Mapping[str, Any] | None, metric: str) -> str:
    """The mean, with a sign where it differs from the first row's for sure."""
    if cell is None:
        return NOT_RUN
    mean, _, *lead = cell[metric]
    sign = SIGNS[Lead(metric, *lead).outcome()] if len(lead) == 3 else ""
    return number(metric, mean) + sign


def _table(study: Study, part: str, group: str, columns: Sequence[tuple[str, str]], metric: str) -> str:
    """Methods first; below a line of their own, rows that are variants of one ("LP++, tempered")."""
    summary = study["parts"][part]
    choose = max if metric in HIGHER_IS_BETTER else min
    best = {
        key: choose((row[key][metric][0] for row in summary["cells"].values() if key in row), default=None)
        for _, key in columns
    }
    rows: list[list[str]] = []
    variants: list[list[str]] = []
    for label in summary["rows"]:
        cells = summary["cells"].get(label, {})
        texts = [_cell(cells.get(key), best[key], metric) for _, key in columns]
        own = label.partition(", ")[0]
        (variants if own != label and own in summary["rows"] else rows).append([label, *texts])
    if variants:
        rows += [["*variants*", *("" for _ in columns)], *variants]
    title = ": ".join(filter(None, (group, TITLES[metric])))
    return markdown.table([title, *(heading for heading, _ in columns)], rows)


def _cell(cell: Mapping[str, Any] | None, best: float | None, metric: str) -> str:
    """mean ± spread, with a sign where it differs from the first row's for sure."""
    if cell is None:
        return NOT_RUN
    figure = cell[metric]
    text = number(metric, figure[0])
    text = f"**{text}**" if figure[0] == best else text
    text += f" ± {number(metric, figure[1])}" if cell["seeds"] > 1 else ""
    if len(figure) == 5:
        text += SIGNS[Lead(metric, *figure[2:]).outcome()]
    few = f" ({cell['seeds']} seed{'s' * (cell['seeds'] > 1)})" if cell["seeds"] < USUAL_SEEDS else ""
    return text + few


def ablations(study: Study, *names: str) -> str:
    """The averages of the named ablations in one table; signs are against the first row of each."""
    rows: list[list[str]] = []
    heads: list[str] = []
    for name in names:
        columns = _columns(study, name)[AVERAGE]
        heads = heads or [heading for heading, _ in columns]
        for place, label in enumerate(study["parts"][name]["rows"]):
            cells = study["parts"][name]["cells"].get(label, {})
            texts = [" / ".join(_marked(cells.get(key), metric) for metric in TITLES) for _, key in columns]
            rows.append(["" if place else name, label, *texts])
    return markdown.table(["setting", "accuracy, % / NLL / ECE, %", *heads], rows)
