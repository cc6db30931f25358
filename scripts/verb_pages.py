"""Write the options of every verb into its page, docs/verbs/VERB.md.

    python scripts/verb_pages.py          rewrites the pages
    python scripts/verb_pages.py --check  says which are out of date, and exits with 1 if any is

What stands above the heading "Options" is written by hand; what follows it is made from the command line's
own declarations, so that it cannot tell of an option that is not there.
"""

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from pbprompt.apps.cli import app

PAGES = Path(__file__).parents[1] / "docs" / "verbs"
HEADING = "## Options\n"
NOTE = "<!-- made by scripts/verb_pages.py: change the help in src/pbprompt/apps/cli/ instead -->\n"


def main() -> int:
    stale = {path: text for path, text in pages().items() if read(path) != text}
    for path, text in stale.items():
        if "--check" in sys.argv[1:]:
            print(f"{path}: out of date: run python scripts/verb_pages.py")
        else:
            path.write_text(text, encoding="utf-8")
            print(path)
    return int("--check" in sys.argv[1:] and bool(stale))


def pages() -> dict[Path, str]:
    """Every page as it should be; that of a verb which has none yet holds its options alone."""
    found = {}
    for verb, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        if verb == "research":  # whose verbs have pages of their own
            continue
        name = f"pbprompt research {verb}" if command.hidden else f"pbprompt {verb}"
        path = PAGES / f"{verb}.md"
        written = (read(path) or f"# `{name}`\n\n").partition(HEADING)[0]
        found[path] = f"{written}{HEADING}{NOTE}\n{options(name, command)}"
    return found


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def options(name: str, command: Any) -> str:
    """The tables of a verb and of the verbs below it."""
    parts = [usage(name, command), *table(command)]
    for below, nested in getattr(command, "commands", {}).items():
        if nested.hidden:
            continue
        parts += [f"### `{name} {below}`", first_line(nested.help), options(f"{name} {below}", nested)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def usage(name: str, command: Any) -> str:
    arguments = [shown(parameter) for parameter in command.params if is_argument(parameter)]
    rest = ["[VERB]"] if getattr(command, "commands", None) else []
    return f"`{' '.join([name, '[OPTIONS]', *rest, *arguments])}`"


def table(command: Any) -> Iterator[str]:
    """A row a parameter, arguments first; nothing where there are none."""
    rows = sorted((row for row in command.params if row.name != "help"), key=lambda row: not is_argument(row))
    if not rows:
        return
    lines = ["| option | default | what it is |", "|---|---|---|"]
    for row in rows:
        cells = (f"`{shown(row)}`", default(row), (row.help or "").replace("|", "\\|"))
        lines.append(f"| {' | '.join(cells)} |")
    yield "\n".join(lines)


def is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def shown(parameter: Any) -> str:
    """How it is typed: `--out`, `-o`; of an argument its name, with dots where there may be several."""
    if not is_argument(parameter):
        return "`, `".join([*parameter.opts, *parameter.secondary_opts])
    name = parameter.metavar or parameter.name.upper()
    name += "…" if parameter.nargs == -1 else ""
    return name if parameter.required else f"[{name}]"


def default(parameter: Any) -> str:
    """The value without it, where that says anything."""
    if parameter.required:
        return "required"
    value = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    value = ", ".join(value) if isinstance(value, list) else value
    shown = "" if value is False or value in (None, "", []) else f"`{value}`"
    variable = f"`${parameter.envvar}`" if parameter.envvar else ""
    return " or ".join(filter(None, (shown, variable)))


def first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
