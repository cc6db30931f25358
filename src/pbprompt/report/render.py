"""A table as text: for the terminal, HTML, Markdown, CSV and LaTeX.

A cell reads "ours ± deviation [published, difference]"; the best of a column is bold, the runner-up
underlined. Below stands the lead of the first row over each other: "+1.20 [+0.40, +2.00]" is its accuracy
less the other's in points, with the 95 % interval; bold where that leaves out 0.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape as html_escape

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table as RichTable

from pbprompt.evaluate.resampling import PairedDifference
from pbprompt.files import as_csv
from pbprompt.markdown import table as markdown_table
from pbprompt.report import html_page
from pbprompt.report.tables import Cell, Section, Table

NOTHING = "–"
DEVIATION = "sample standard deviation (÷ (n − 1))"  # what stands after every ±
LATEX = {
    "\\": r"\textbackslash{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "→": r"$\to$",
    "λ": r"$\lambda$",
    "η": r"$\eta$",
    "μ": r"$\mu$",
    "†": r"$^\dagger$",
    "–": "--",
}
CSV_FIELDS = (
    *("table", "section", "row", "column", "mean", "std", "seeds", "rank"),
    *("published", "published_std", "misprint", "difference"),
    *("first_row_lead", "lead_low", "lead_high", "lead_probability"),
)


@dataclass(frozen=True)
class Style:
    """How a format writes plain words, the best and the runner-up."""

    plain: Callable[[str], str]
    best: str
    second: str

    def ranked(self, text: str, rank: int) -> str:
        return ("{}", self.best, self.second)[rank].format(self.plain(text))


def latex_escaped(text: str) -> str:
    """The words with everything that LaTeX would take as a command written out."""
    return "".join(LATEX.get(char, char) for char in text)


def _markdown_escaped(text: str) -> str:
    return re.sub(r"([\\|*_<>\[\]`])", r"\\\1", text)


TERMINAL = Style(escape, "[bold]{}[/]", "[underline]{}[/]")
HTML = Style(html_escape, "<strong>{}</strong>", "<u>{}</u>")
MARKDOWN = Style(_markdown_escaped, "**{}**", "<u>{}</u>")
TEX = Style(latex_escaped, r"\textbf{{{}}}", r"\underline{{{}}}")


def terminal(table: Table) -> Group:
    """For `rich.console.Console.print`."""
    parts: list[RichTable | str] = [f"[bold]{escape(table.title)}[/]"]
    for section in table.sections:
        grid = RichTable(*head_cells(section, TERMINAL), box=box.SIMPLE)
        for column in grid.columns[1:]:
            column.justify = "right"
        for row in row_cells(table, section, TERMINAL):
            grid.add_row(*row)
        leads = lead_cells(table, section, TERMINAL)
        if leads:
            grid.add_section()
        for row in leads:
            grid.add_row(*row, style="dim")
        parts.append(grid)
    return Group(*parts, *(f"[dim]{escape(line)}[/]" for line in footer_lines(table)))


def markdown(table: Table) -> str:
    """GitHub's tables, one per section."""
    lines = [f"**{_markdown_escaped(table.title)}**", ""]
    for section in table.sections:
        rows = row_cells(table, section, MARKDOWN) + lead_cells(table, section, MARKDOWN)
        lines += [markdown_table(head_cells(section, MARKDOWN), rows, figures=True), ""]
    lines += [f"- {_markdown_escaped(note)}" for note in footer_lines(table)]
    return "\n".join(lines).rstrip() + "\n"


def html(table: Table) -> str:
    """One `<table>` for each section with something measured."""
    parts = []
    for section in table.sections:
        if any(cell.measured for row in section.cells for cell in row):
            heads = ["Method", *head_cells(section, HTML)[1:]]
            rows = row_cells(table, section, HTML) + lead_cells(table, section, HTML)
            parts.append(html_page.table(section.title, heads, rows, kind="cards"))
    notes = "".join(f"<li>{html_escape(note)}</li>" for note in footer_lines(table))
    return "\n".join([*parts, f'<ul class="quiet">{notes}</ul>' if notes else ""])


def latex(table: Table) -> str:
    """One `tabular` per section, for the package booktabs."""

    def line(cells: list[str]) -> str:
        return " & ".join(cells) + r" \\"

    lines = [f"% {table.title}"]
    for section in table.sections:
        leads = lead_cells(table, section, TEX)
        lines += [rf"\begin{{tabular}}{{l{'r' * len(section.columns)}}}", r"\toprule"]
        lines += [line(head_cells(section, TEX)), r"\midrule", *map(line, row_cells(table, section, TEX))]
        lines += [r"\midrule", *map(line, leads)] if leads else []
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    lines += [rf"\par{{\footnotesize {latex_escaped(note)}}}" for note in footer_lines(table)]
    return "\n".join(lines).rstrip() + "\n"


def csv_text(table: Table) -> str:
    """One line per cell, figures unrounded."""
    rows: list[Sequence[float | str | None]] = [CSV_FIELDS]
    for section in table.sections:
        for label, cells, leads in zip(table.labels, section.cells, section.leads, strict=True):
            for heading, cell, lead in zip(section.columns, cells, leads, strict=True):
                rows.append([table.name, section.title, label, heading, *_values(cell), *_ends(lead)])
    return as_csv(rows)


def _values(cell: Cell) -> list[float | str | None]:
    figure = cell.published
    return [
        cell.mean if cell.measured else None,
        cell.std,
        cell.seeds,
        cell.rank or None,
        figure.value if figure else None,
        figure.std if figure else None,
        "yes" if figure and figure.misprint else None,
        cell.difference,
    ]


def _ends(lead: PairedDifference | None) -> list[float | None]:
    if lead is None:
        return [None] * 4
    return [100 * lead.difference, *(100 * end for end in lead.interval), lead.probability]


def head_cells(section: Section, style: Style) -> list[str]:
    return [style.plain(text) for text in (section.title, *section.columns)]


def row_cells(table: Table, section: Section, style: Style) -> list[list[str]]:
    return [
        [style.plain(label), *(_cell(cell, table.seeds, style) for cell in cells)]
        for label, cells in zip(table.labels, section.cells, strict=True)
    ]


def _cell(cell: Cell, usual_seeds: int, style: Style) -> str:
    ours, beside = NOTHING, ""
    if cell.measured:
        ours = f"{cell.mean:.2f}" + ("" if cell.std is None else f" ± {cell.std:.2f}")
        if cell.seeds != usual_seeds:
            beside += f" ({cell.seeds} {'seed' if cell.seeds == 1 else 'seeds'})"
    if cell.published is not None:
        printed = f"{cell.published.value:.2f}" + "†" * bool(cell.published.misprint)
        beside += f" [{printed}]" if cell.difference is None else f" [{printed}, {_signed(cell.difference)}]"
    return style.ranked(ours, cell.rank) + style.plain(beside)


def lead_cells(table: Table, section: Section, style: Style) -> list[list[str]]:
    """A line for each row that the first one was compared with."""
    return [
        [style.plain(f"{table.labels[0]} − {label}"), *(_lead(lead, style) for lead in leads)]
        for label, leads in zip(table.labels, section.leads, strict=True)
        if any(leads)
    ]


def _lead(lead: PairedDifference | None, style: Style) -> str:
    if lead is None:
        return ""
    low, high = lead.interval
    text = f"{_signed(100 * lead.difference)} [{_signed(100 * low)}, {_signed(100 * high)}]"
    return style.ranked(text, 1 if low > 0 or high < 0 else 0)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def footer_lines(table: Table) -> list[str]:
    """What the signs mean, as far as the table has them, then its footnotes."""
    cells = [cell for section in table.sections for row in section.cells for cell in row]
    lines = []
    if table.seeds:
        over = f"{table.seeds} seeds" if table.seeds > 1 else "one seed"
        lines.append(f"Accuracy in %: {f'mean ± {DEVIATION} over ' if table.seeds > 1 else ''}{over}.")
    if any(cell.rank for cell in cells):
        lines.append("Bold: the best of a column; underlined: the runner-up.")
    if any(cell.published for cell in cells):
        lines.append("In brackets: the published figure, and ours less it.")
    if any(lead for section in table.sections for row in section.leads for lead in row):
        lines.append(
            f"{table.labels[0]} − another: difference in points on the same test images, with its 95 % "
            "interval, images and draws resampled in pairs; bold where that leaves out 0."
        )
    return lines + list(table.footnotes)
