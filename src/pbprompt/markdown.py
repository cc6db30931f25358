"""Tables of Markdown documents, and text in them."""

import re
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], figures: bool = False) -> str:
    """Cells of Markdown as a table; with `figures`, all columns but the first are set to the right."""
    rule = ["---", *["---:" if figures else "---"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in (head, rule, *rows))


def escaped(text: str) -> str:
    """Text as it is, whatever it means in Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]<>|#~$&])", r"\\\1", " ".join(text.split()))


def _cell(text: str) -> str:
    """A bare | would end the cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", text)
