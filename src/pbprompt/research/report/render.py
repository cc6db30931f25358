"""A table as text: for the terminal, HTML, Markdown, CSV and LaTeX.

A cell reads "ours ± deviation [published, difference]"; the best of a column is bold, the runner-up
underlined. Below stands the lead of the first row over each other: "+1.20 [+0.40, +2.00]" is its accuracy
less the other's in points, with the 95 % interval; bold where that leaves out 0.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from markupsafe import escape as html_escape
from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table as RichTable

from pbprompt.files import as_csv
from pbprompt.markdown import escaped as markdown_escaped
from pbprompt.markdown import table as markdown_table
from pbprompt.model.metrics.resampling import PairedDifference
from pbprompt.research.report.tables import Cell, Table

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
    "\n": " ",
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
        plain = self.plain(text)
        return (self.best, self.second)[rank - 1].format(plain) if rank else plain


def latex_escaped(text: str) -> str:
    """The words with everything that LaTeX would take as a command written out."""
    return "".join(LATEX.get(char, char) for char in text)


TERMINAL = Style(escape, "[bold]{}[/]", "[underline]{}[/]")
HTML = Style(html_escape, Markup("<strong>{}</strong>"), Markup("<u>{}</u>"))
MARKDOWN = Style(markdown_escaped, "**{}**", "<u>{}</u>")
TEX = Style(latex_escaped, r"\textbf{{{}}}", r"\underline{{{}}}")


def terminal(table: Table) -> Group:
    """For `rich.console.Console.print`."""
    parts: list[RichTable | str] = [f"[bold]{escape(table.title)}[/]"]
    for heads, rows, leads in _grids(table, TERMINAL):
        grid = RichTable(*heads, box=box.SIMPLE)
        for column in grid.columns[1:]:
            column.justify = "right"
        for row in rows:
            grid.add_row(*row)
        grid.add_section()
        for row in leads:
            grid.add_row(*row, style="dim")
        parts.append(grid)
    return Group(*parts, *(f"[dim]{escape(line)}[/]" for line in footer_lines(table)))


def markdown(table: Table) -> str:
    """GitHub's tables, one per section."""
    lines = [f"**{markdown_escaped(table.title)}**", ""]
    for heads, rows, leads in _grids(table, MARKDOWN):
        lines += [markdown_table(heads, rows + leads, figures=True), ""]
    lines += [f"- {markdown_escaped(note)}" for note in footer_lines(table)]
    return "\n".join(lines).rstrip() + "\n"


def html(table: Table) -> dict[str, Any]:
    """What the page shows: a table for each section with something measured, and the notes."""
    tables = [
        {"title": section.title, "heads": ["Method", *heads[1:]], "rows": rows + leads}
        for section, (heads, rows, leads) in zip(table.sections, _grids(table, HTML), strict=True)
        if any(cell.measured for row in section.cells for cell in row)
    ]
    return {"name": table.title, "tables": tables, "notes": footer_lines(table)}


def latex(table: Table) -> str:
    """One `tabular` per section, for the package booktabs."""

    def line(cells: list[str]) -> str:
        return " & ".join(cells) + r" \\"

    lines = [f"% {' '.join(table.title.split())}"]
    for heads, rows, leads in _grids(table, TEX):
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
        lines += [line(heads), r"\midrule", *map(line, rows)]
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
                rows.append([table.name, section.title, label, heading, *_values(cell, lead)])
    return as_csv(rows)


def _values(cell: Cell, lead: PairedDifference | None) -> list[float | str | None]:
    figure = cell.published
    printed = [figure.value, figure.std, "yes" if figure.misprint else None] if figure else [None] * 3
    ours = [cell.mean if cell.measured else None, cell.std, cell.seeds, cell.rank or None]
    ends: list[float | None] = [None] * 4
    if lead:
        ends = [*(100 * end for end in (lead.difference, *lead.interval)), lead.probability]
    return [*ours, *printed, cell.difference, *ends]


def _grids(table: Table, style: Style) -> Iterator[tuple[list[str], list[list[str]], list[list[str]]]]:
    """The cells of every section: its heads, its rows, and a line for each row the first is compared with."""
    for section in table.sections:
        heads = [style.plain(text) for text in (section.title, *section.columns)]
        rows = [
            [style.plain(label), *(cell_text(cell, style, table.seeds) for cell in cells)]
            for label, cells in zip(table.labels, section.cells, strict=True)
        ]
        leads = [
            [style.plain(f"{table.labels[0]} − {label}"), *(_lead(lead, style) for lead in leads)]
            for label, leads in zip(table.labels, section.leads, strict=True)
            if any(leads)
        ]
        yield heads, rows, leads


def cell_text(cell: Cell, style: Style, usual_seeds: int) -> str:
    """How many seeds it rests on is said where they are not the usual number."""
    ours, more = NOTHING, ""
    if cell.measured:
        spread = "" if cell.std is None else f" ± {cell.std:.{cell.digits}f}"
        ours = f"{cell.mean:.{cell.digits}f}{spread}"
        if cell.seeds != usual_seeds:
            more += f" ({cell.seeds} {'seed' if cell.seeds == 1 else 'seeds'})"
    if cell.published is not None:
        printed = f"{cell.published.value:.2f}" + "†" * bool(cell.published.misprint)
        more += f" [{printed}]" if cell.difference is None else f" [{printed}, {_signed(cell.difference)}]"
    return style.ranked(ours, cell.rank) + style.plain(more)


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
