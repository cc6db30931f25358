"""Tables of Markdown documents."""

import re
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], figures: bool = False) -> str:
    """Cells of Markdown as a table; with `figures`, all columns but the first are set to the right."""
    rule = ["---", *["---:" if figures else "---"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in (head, rule, *rows))


def _cell(text: str) -> str:
    """A bare | would end the cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", text)
