"""The package's public names: all there, typed, documented, and imported only when they are asked for."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pbprompt

DOCUMENT = Path(__file__).parents[1] / "docs" / "api.md"


@pytest.mark.parametrize("name", pbprompt.__all__)
def test_each_is_there_and_documented(name):
    assert getattr(pbprompt, name)
    assert f"`{name}`" in DOCUMENT.read_text(encoding="utf-8")


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(pbprompt.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname: line.module for line in block.body for alias in line.names}
    assert seen == pbprompt._PUBLIC


def test_the_package_itself_imports_nothing_heavy():
    code = "import sys, pbprompt; dir(pbprompt); print({'torch', 'numpy', 'typer'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_other_names_are_missing_as_in_any_module():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pbprompt.nothing
