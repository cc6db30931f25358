"""docs/architecture.md holds: every hop of its walks is in the code, and the drawing shows every layer."""

import ast
import re
from pathlib import Path

import pytest

import pbprompt

ROOT = Path(pbprompt.__file__).parent
TEXT = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^###|\Z)", TEXT, re.S | re.M))
HOP = re.compile(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", re.M)


def defined(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as Class.method."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = [node for node in body if isinstance(node, kinds)]
    inner = [(node, part) for node in top if isinstance(node, ast.ClassDef) for part in node.body]
    methods = {f"{node.name}.{part.name}" for node, part in inner if isinstance(part, kinds)}
    return {node.name for node in top} | methods


@pytest.mark.parametrize("walk", ["fit", "predict", "serve", "reproduce"])
def test_a_walk_is_that_of_the_code_and_short(walk):
    hops = HOP.findall(WALKS[walk])
    assert 1 < len(hops) <= 12
    lost = [(path, name) for path, name in hops if name not in defined(ROOT / path)]
    assert not lost


def test_the_drawing_shows_every_part_of_the_package():
    (drawing,) = re.findall(r"^```text\n(.*?)^```", TEXT, re.S | re.M)
    parts = {
        path.name.removesuffix(".py") for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()
    }
    hidden = {part for part in parts if part.startswith("__")}
    assert parts - hidden <= set(re.findall(r"\w+", drawing))
