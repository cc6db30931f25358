"""Tables as HTML: a recipe's, in the paper's shape, and a comparison's, with every figure of quality."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, pstdev

from pbprompt.data.fewshot import shots_in_words
from pbprompt.registry import methods
from pbprompt.report.comparisons import Comparison
from pbprompt.report.render import Style, footer_lines, head_cells, lead_cells, row_cells
from pbprompt.report.tables import Table
from pbprompt.runs.record import Record

HTML = Style(escape, "<strong>{}</strong>", "<u>{}</u>")
NOTHING = "–"
UNEQUAL = (
    '<p class="notice" role="note">These methods trained for different numbers of epochs (“its own”: its '
    "schedule by shots; “none”: closed form or untrained): a difference between them is one of method and "
    "training together.</p>"
)
_TAG = re.compile("<[^>]*>")


@dataclass(frozen=True)
class Column:
    """A figure of a run: where it is, how it is printed, and whether more of it is better (None: neither)."""

    heading: str
    value: Callable[[Record], float | None]
    scale: int = 100
    digits: int = 2
    higher: bool | None = True

    @property
    def title(self) -> str:
        arrow = {True: "\N{NO-BREAK SPACE}↑", False: "\N{NO-BREAK SPACE}↓", None: ""}[self.higher]
        return escape(self.heading) + arrow

    def mean(self, values: Sequence[float]) -> float:
        """As it is printed: what prints alike is equally good."""
        return round(self.scale * fmean(values), self.digits)

    def text(self, values: Sequence[float]) -> str:
        spread = f" ± {self.scale * pstdev(values):.{self.digits}f}" if len(values) > 1 else ""
        return f"{self.mean(values):.{self.digits}f}{spread}"

    def cells(self, values: Sequence[Sequence[float]]) -> list[str]:
        """One a row, the best of them marked."""
        means = [self.mean(some) for some in values if some]
        marked = len(set(means)) > 1 and self.higher is not None
        best = (max(means) if self.higher else min(means)) if marked else None
        return [
            NOTHING if not some else HTML.ranked(self.text(some), int(self.mean(some) == best))
            for some in values
        ]


def recipe_table(table: Table) -> str:
    """The table that the command line prints, one `<table>` for each section with something measured."""
    parts = []
    for section in table.sections:
        if not any(cell.measured for row in section.cells for cell in row):
            continue
        _, *heads = head_cells(section, HTML)
        bodies = [row_cells(table, section, HTML), lead_cells(table, section, HTML)]
        parts.append(
            _table(escape(section.title), ["Method", *heads], [("", body) for body in bodies if body])
        )
    notes = "".join(f"<li>{escape(note)}</li>" for note in footer_lines(table))
    return "\n".join([*parts, f'<ul class="quiet">{notes}</ul>' if notes else ""])


def comparison_table(comparison: Comparison) -> str:
    """Every method's figures, mean ± standard deviation over seeds, grouped by shots."""
    columns = _columns(comparison)
    bodies = [(shots_in_words(shots), _cells(comparison.at(shots), columns)) for shots in comparison.shots]
    caption = (
        "Mean ± standard deviation over seeds; bold: the best of a column. ↑: higher is better, ↓: lower."
    )
    table = _table(caption, ["Method", "Seeds", "Epochs", *(column.title for column in columns)], bodies)
    trained = {_epochs(line[0]) for shots in comparison.shots for line in comparison.at(shots).values()}
    return f"{table}\n{UNEQUAL}" if len(trained) > 1 else table


def _columns(comparison: Comparison) -> list[Column]:
    def of(test: str, metric: str) -> Callable[[Record], float | None]:
        return lambda record: record.figure(test, metric)

    time = Column("Seconds a run", lambda record: record.seconds, scale=1, digits=1, higher=None)
    if comparison.task == "base-to-new":
        return [
            Column("Base %", of("base", "accuracy")),
            Column("New %", of("new", "accuracy")),
            Column("H %", of("H", "accuracy")),
            Column("Joint %", of("joint", "accuracy")),
            Column("ECE base %", of("base", "ece"), higher=False),
            Column("ECE new %", of("new", "ece"), higher=False),
            Column("New by entropy, AUROC %", of("joint", "auroc_entropy")),
            Column("by mutual information %", of("joint", "auroc_mutual_information")),
            time,
        ]
    if comparison.targets:
        tests = [
            Column(f"{name} %", of(name, "accuracy")) for name in (comparison.dataset, *comparison.targets)
        ]
        return [*tests, Column("Mean of targets %", lambda record: record.score), time]
    test = comparison.dataset
    return [
        Column("Accuracy %", of(test, "accuracy")),
        Column("Macro-F1 %", of(test, "macro_f1")),
        Column("NLL", of(test, "nll"), scale=1, digits=3, higher=False),
        Column("Brier", of(test, "brier"), scale=1, digits=3, higher=False),
        Column("ECE %", of(test, "ece"), higher=False),
        Column("AURC %", of(test, "aurc"), higher=False),
        time,
    ]


def _cells(lines: dict[str, Sequence[Record]], columns: Sequence[Column]) -> list[list[str]]:
    rows = [[escape(label), str(len(runs)), _epochs(runs[0])] for label, runs in lines.items()]
    for column in columns:
        said = [[column.value(run) for run in runs] for runs in lines.values()]
        cells = column.cells([[value for value in some if value is not None] for some in said])
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    return rows


def _epochs(run: Record) -> str:
    """How long the runs of a row trained: one of them tells, since they were made alike."""
    kind = methods().get(run.config.method)
    if kind is not None and not (kind.trains and kind.stepwise) and not run.train:
        return "none"
    return str(run.settings.get("epochs") or "its own")


def _table(caption: str, heads: Sequence[str], bodies: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> str:
    """Escaped texts as a table; a body with a name starts with a row that says it."""
    lines = [f'<div class="wide cards" role="region" aria-label="{caption}" tabindex="0"><table>']
    lines.append(f"<caption>{caption}</caption>")
    lines.append("<thead><tr>" + "".join(f'<th scope="col">{head}</th>' for head in heads) + "</tr></thead>")
    for name, rows in bodies:
        lines.append("<tbody>")
        if name:
            lines.append(f'<tr><th scope="rowgroup" colspan="{len(heads)}">{name}</th></tr>')
        for first, *cells in rows:
            named = zip(heads[1:], cells, strict=True)  # a narrow screen shows the head beside each cell
            data = "".join(f'<td data-head="{_TAG.sub("", head)}">{cell}</td>' for head, cell in named)
            lines.append(f'<tr><th scope="row">{first}</th>{data}</tr>')
        lines.append("</tbody>")
    return "\n".join([*lines, "</table></div>"])
