"""How large the house is, and how much of it a job walks through.

    python -m benchmarks.house                      files and lines of each floor
    python -m benchmarks.house fit sample --out m   files and functions that a command of ours calls

Lines are all there are, blank ones and docstrings too. A function counts once, however often it is called;
what is made by a class's body, a lambda or a comprehension does not.
"""

import inspect
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import pbprompt
from pbprompt import markdown

ROOT = Path(pbprompt.__file__).parent


def floors(root: Path = ROOT) -> str:
    """A table: each floor's files and lines, and those of all."""
    files, lines = Counter[str](), Counter[str]()
    for path in root.rglob("*.py"):
        floor = path.relative_to(root).parts[0] if path.parent != root else "(the root)"
        for name in (floor, "all"):
            files[name] += 1
            lines[name] += len(path.read_text(encoding="utf-8").splitlines())
    order = [*sorted(files.keys() - {"all"}), "all"]
    return markdown.table(
        ["floor", "files", "lines"], [[name, f"{files[name]:,}", f"{lines[name]:,}"] for name in order]
    )


class Walk:
    """Files and functions of the package that are called while it is installed."""

    def __init__(self) -> None:
        self.called: dict[str, set[tuple[str, int]]] = defaultdict(set)

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        plain = not code.co_name.startswith("<") and code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and plain and code.co_filename.startswith(str(ROOT)):
            self.called[code.co_filename].add((code.co_qualname, code.co_firstlineno))

    def __enter__(self) -> "Walk":
        threading.setprofile(self.see)
        sys.setprofile(self.see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def __str__(self) -> str:
        counts = Counter(Path(name).relative_to(ROOT).parts[0] for name in self.called)
        told = ", ".join(f"{count} of {floor}" for floor, count in counts.most_common())
        return f"{len(self.called)} files ({told}), {sum(map(len, self.called.values()))} functions"


def main() -> None:
    if len(sys.argv) == 1:
        print(floors())
        return
    if sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    from pbprompt.apps.cli import main as command

    walk = Walk()
    try:
        with walk:
            command()
    finally:
        print(walk, file=sys.stderr)


if __name__ == "__main__":
    main()
