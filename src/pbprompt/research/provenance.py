"""Where a figure comes from: the machine, the commit of the sources, and the code that a run rests on.

The code is a hash: of a method's file, the loop, the figures, and all that these import.

    hash = SHA-256 over the lines of the files in the import closure, and of the protocol

Comments, blank lines and docstrings are left out of it. Imports inside functions are followed, those
for type checkers are not; nor is what comes from outside this package, the package of the method's own file
and the folder that it is in. What is imported by a name made at run time is not seen.
"""

import ast
import hashlib
import io
import os
import platform
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

import pbprompt
from pbprompt.learners.method import Method
from pbprompt.prompts.loop.loop import LOOP_REVISION
from pbprompt.registry import methods
from pbprompt.research.runs import RunRecord
from pbprompt.vision.images.workers import available_cpus

COMMIT_VARIABLE = "PBPROMPT_COMMIT"  # for a copy of the sources without their history
PACKAGE = Path(pbprompt.__file__).resolve().parent
ALWAYS = tuple(
    PACKAGE / path
    for path in (
        "model/learn.py", "model/predictor.py", "model/scoring.py",
        "evidence/temperature.py", "evidence/series.py", "vision/images/fewshot.py",
    )
)  # fmt: skip
# What these import besides changes no figure: saving, and reading data, which have a hash of their own.
ALONE = (PACKAGE / "research/protocol.py", PACKAGE / "model/tuned.py")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def machine(device: torch.device | str) -> dict[str, str | int]:
    """The device by name, and the processors beside it."""
    cpu = cpuinfo("model name") or platform.processor() or platform.machine()
    kind = torch.device(device).type
    return {
        "kind": kind,
        "device": torch.cuda.get_device_name(device) if kind == "cuda" else cpu,
        "cpu": cpu,
        "cores": available_cpus(),
        "threads": torch.get_num_threads(),
    }


def cpuinfo(field: str) -> str:
    """A line of Linux's description of the processor; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field)), "")


def commit() -> str:
    """The sources' commit, with a + where they were changed since; empty where nothing tells it."""
    return os.environ.get(COMMIT_VARIABLE) or _checkout()


@cache
def _checkout() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=PACKAGE, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
        return git("rev-parse", "--short=10", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return ""


def code_revision(kind: type[Method]) -> str:
    """What of the code a method's results depend on; its authors raise a revision when they change.

    "pbprompt 1, loop 1": runs of other revisions are other runs.
    """
    return f"{kind.name} {kind.revision}, loop {LOOP_REVISION}"


def code_of(kind: type[Method]) -> str:
    """A method's revision, the loop's, and the hash of the code: runs of other code are other runs.

    "pbprompt 2, loop 1, code 0f3a…"
    """
    homes = [getattr(sys.modules[base.__module__], "__file__", None) for base in kind.__mro__]
    folder = Path(homes[0] or PACKAGE).resolve().parent
    files = {Path(home).resolve() for home in homes if home}
    own = sorted(file for file in files if file.is_relative_to(PACKAGE) or file.parent == folder)
    return f"{code_revision(kind)}, code {_hash((*own, *ALWAYS))}"


def is_current(record: RunRecord) -> bool:
    """Whether a run was made by the code that is here now."""
    kind = methods().get(record.config.method)
    return kind is not None and record.code == code_of(kind)


@cache
def _hash(files: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for file in sorted({*closure(files), *ALONE}):
        place = file.relative_to(PACKAGE) if file.is_relative_to(PACKAGE) else Path(file.name)
        digest.update(f"{place.as_posix()}\n{_parsed(file)[0]}\n".encode())
    return digest.hexdigest()[:12]


def closure(files: tuple[Path, ...]) -> set[Path]:
    """The files, and all that they import of the package, of their own, and of their own folder."""
    found: set[Path] = set()
    waiting = list(files)
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += _parsed(file)[1]
    return found


@cache
def _parsed(file: Path) -> tuple[str, tuple[Path, ...]]:
    """A file's lines of code, the same under every version of Python, and the files that it imports."""
    text = file.read_text(encoding="utf-8")
    tree, lines = ast.parse(text, str(file)), text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(tree):
        if isinstance(node, Documented) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            for row in range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1):
                lines[row - 1] = ""
    code = "\n".join(filter(None, map(str.rstrip, lines)))
    return code, tuple(path for name in _names(tree) if (path := _file(name, file)))


def _names(tree: ast.AST) -> Iterator[str]:
    """Every module imported, and every name that may be one: `a.b` and `a.b.c` of `from a.b import c`.

    Those of relative imports begin with their dots.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots, module = "." * node.level, node.module or ""
            public = pbprompt._PUBLIC if module == "pbprompt" else {}
            for alias in node.names:
                yield public.get(alias.name) or f"{dots}{f'{module}.{alias.name}'.strip('.')}"
            yield dots + module
        else:
            yield from _names(node)


def _file(name: str, importer: Path) -> Path | None:
    """Where a module of this package, of the importer's own or of its folder is; None for any other."""
    parts = name.lstrip(".").split(".") if name.strip(".") else []
    if dots := len(name) - len(name.lstrip(".")):
        homes = [importer.parents[dots - 1]]
    elif parts[0] == "pbprompt":
        homes = [PACKAGE.parent]
    else:
        homes = [importer.parent, *(folder.parent for folder in importer.parents if folder.name == parts[0])]
    for base in (home.joinpath(*parts) for home in homes):
        if (found := base.with_suffix(".py")).is_file() or (found := base / "__init__.py").is_file():
            return found
    return None
