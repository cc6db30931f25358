"""Run the code of docs/example.md and write what it prints and draws back into the page.

    python scripts/render_example.py

The page is its own source. Each block of Python or of shell commands is run, in order and in one folder that
is empty at first; the block of text that follows it is replaced by its output. Pictures that the code saves
as images/example-* are put into docs/images. Needs the extras `onnx` and `plots`.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "example.md"
# a block of code, and the output that an earlier run left behind it
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n.*?^```\n)?", re.S | re.M)
BARS = re.compile(r"^.*\r", re.M)


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}

    def rendered(block: re.Match[str]) -> str:
        kind, code = block.groups()
        output = run_python(code, namespace) if kind == "python" else run_commands(code)
        shown = f"\n```text\n{output}\n```\n" if output else ""
        return f"```{kind}\n{code}```\n{shown}"

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("images").mkdir()
        text = BLOCK.sub(rendered, page)
        for old in (DOCS / "images").glob("example-*"):
            old.unlink()
        for picture in sorted(Path("images").iterdir()):
            shutil.copy(picture, DOCS / "images")
            print(f"docs/images/{picture.name}: {picture.stat().st_size / 1024:.0f} KiB")
    PAGE.write_text(text, encoding="utf-8")


def run_python(code: str, namespace: dict[str, Any]) -> str:
    """What the code prints, in a namespace that all blocks share."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, str(PAGE), "exec"), namespace)
    return tidy(printed.getvalue())


def run_commands(code: str) -> str:
    """What the commands print, notes among it; `pbprompt` and `python` are those that run this script."""
    here = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-ec", code], env=here, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise SystemExit(f"{code}\n{done.stdout}")
    return tidy(done.stdout)


def tidy(output: str) -> str:
    """Without trailing blanks."""
    return "\n".join(line.rstrip() for line in BARS.sub("", output).splitlines()).strip("\n")


if __name__ == "__main__":
    main()
