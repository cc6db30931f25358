"""Every line of the threat model and of reliability names a test, and that test is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADS = ("| what is", "| file |", "| input |", "|---")


@pytest.mark.parametrize(("page", "count"), [("threat-model", 45), ("reliability", 13)])
def test_every_line_names_a_test_that_exists(page, count):
    text = (ROOT / "docs" / f"{page}.md").read_text().partition("## The attack")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [line for line in lines if not line.startswith(HEADS)]
    assert len(rows) >= count
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"names no test: {row[:60]}"
        for file, name in named:
            tree = ast.parse((ROOT / file).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (
                file,
                name,
            )


def test_rows_of_chaos_that_are_named_are_rows():
    text = (ROOT / "docs" / "threat-model.md").read_text()
    source = (ROOT / "benchmarks" / "chaos" / "server.py").read_text()
    named = re.findall(r"the row \*([^*]+)\*", text)
    assert named and all(f'"{name}"' in source for name in named)
