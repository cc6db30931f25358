"""A module imports only from its own layer and the layers above it."""

import ast
import re
from pathlib import Path

import pbprompt

ROOT = Path(pbprompt.__file__).parent
LAYERS = [
    (
        "errors",
        "config",
        "registry",
        "files",
        "distributed",
        "capture",
        "seeding",
        "markdown",
        "__init__",
    ),
    ("data",),
    ("clip",),
    ("core",),
    ("features",),
    ("methods",),
    ("train",),
    ("evaluate",),
    ("model",),
    ("runs",),
    ("recipes",),
    ("report",),
    ("findings",),
    ("explain",),
    ("sweep",),
    ("batch",),
    ("classifier",),
    ("export",),
    ("testing",),
    ("serve",),
    ("cli", "__main__"),
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


MODULE = re.compile(r"pbprompt(\.\w+)+\.?")  # also the head of f"pbprompt.methods.{name}"
MAY_NAME = {
    "__init__.py": set(RANK),
    "registry.py": {"methods"},
}  # the lazy table; where methods are looked for


def imported_parts(path: Path) -> set[str]:
    """First parts of the package's modules that a file imports, or names in a string to import or run."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the module in full"
            names = [node.module or ""]
            if node.module == "pbprompt":
                names = [f"pbprompt.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            names = [node.value]
        parts |= {name.split(".")[1] for name in names if name.startswith("pbprompt.")}
    return {part for part in parts if part in RANK or (ROOT / part).exists()}


def test_every_module_is_in_a_layer_and_imports_upwards_only():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        here = path.relative_to(ROOT)
        own = here.parts[0].removesuffix(".py")
        assert own in RANK, f"{path.name}: give {own!r} a place in LAYERS"
        below = {part for part in imported_parts(path) if RANK[part] > RANK[own]}
        wrong += [f"{here} imports {part}" for part in sorted(below - MAY_NAME.get(str(here), set()))]
    assert not wrong


def test_the_rule_can_be_broken(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from pbprompt.cli import main\nimport pbprompt.data.items\n"
        "import_module('pbprompt.serve.app')\nimport_module(f'pbprompt.methods.{name}')\n"
        "'pbprompt.report is a word of this sentence'\n"
    )
    assert imported_parts(bad) == {"cli", "data", "serve", "methods"}
