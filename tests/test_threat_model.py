"""Every line of the threat model names a test, and that test is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "threat-model.md"


def test_every_line_names_a_test_that_exists():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    rows = [line for line in lines if not line.startswith(("| what is", "|---"))]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"names no test: {row[:60]}"
        for file, name in named:
            tree = ast.parse((ROOT / file).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (
                file,
                name,
            )
