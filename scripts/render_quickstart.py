"""Run the commands of docs/quickstart.md on drawings of the sample set, and write what they print into it.

    python scripts/render_quickstart.py

The page is its own source, as in render_example.py. A person fills in the table of `pbprompt next`; here the
names of the images tell their classes.
"""

import contextlib
import csv
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from render_example import BLOCK, DOCS, run_commands

import pbprompt

PAGE = DOCS / "quickstart.md"
SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
CLASSES = ("clock", "fruit", "heart", "mammal")
LABELLED, MORE = 10, 4  # drawings of each class
BY_HAND = ("pip ", "pbprompt serve", "pbprompt explain")  # not run: an installation, a server, a picture


def main() -> None:
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def rendered(page: str) -> str:
    """The page with the outputs of its commands, run in a folder of their own."""

    def block(found: re.Match[str]) -> str:
        kind, code = found.groups()
        output = (
            ""
            if code.startswith(BY_HAND)
            else run_commands(re.sub("^pbprompt", f"{shlex.quote(sys.executable)} -m pbprompt", code))
        )
        if "pbprompt next" in code:
            fill_in(Path("next.csv"))
        output = re.sub(r"^encoding images.*\n", "", output, flags=re.M)  # progress, on a slow machine
        shown = f"\n```text\n{output}\n```\n" if output else ""
        return f"```{kind}\n{code}```\n{shown}"

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        lay_out()
        return BLOCK.sub(block, page)


def lay_out() -> None:
    """photos/ with class folders, and new/ with images whose names tell their classes."""
    Path("new").mkdir()
    for name in CLASSES:
        (Path("photos") / name).mkdir(parents=True)
        for at, file in enumerate(sorted((SAMPLE / name).iterdir())[: LABELLED + MORE]):
            shutil.copy(file, Path("photos") / name if at < LABELLED else Path("new") / f"{name}-{at}.webp")


def fill_in(table: Path) -> None:
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        row["label"] = Path(row["image"]).name.split("-")[0]
    with table.open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
