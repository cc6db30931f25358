"""A module imports only from its own layer and the layers above it."""

import ast
from pathlib import Path

import pbprompt

ROOT = Path(pbprompt.__file__).parent
LAYERS = [
    ("errors", "config", "registry", "paths", "files", "suggest", "distributed", "seeding", "__init__"),
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
    ("explain",),
    ("sweep",),
    ("classifier",),
    ("export",),
    ("testing",),
    ("serve",),
    ("bench",),
    ("cli", "__main__"),
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def imported_parts(path: Path) -> set[str]:
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
        parts |= {name.split(".")[1] for name in names if name.startswith("pbprompt.")}
    return {part for part in parts if part in RANK or (ROOT / part).exists()}


def test_every_module_is_in_a_layer_and_imports_upwards_only():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        assert own in RANK, f"{path.name}: give {own!r} a place in LAYERS"
        wrong += [
            f"{path.relative_to(ROOT)} imports {p}" for p in imported_parts(path) if RANK[p] > RANK[own]
        ]
    assert not wrong


def test_the_rule_can_be_broken(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from pbprompt.cli import main\nimport pbprompt.data.items\n")
    assert imported_parts(bad) == {"cli", "data"}
