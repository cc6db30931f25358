"""The house: a floor imports only from those below it, and doors and jobs leave each other alone."""

import ast
import re
from pathlib import Path

import pytest

import pbprompt

ROOT = Path(pbprompt.__file__).parent
FLOORS = [  # from the ground up
    ("errors", "config", "registry", "files", "distributed", "seeding", "markdown", "__init__"),
    ("vision",),
    ("learners", "executors"),
    ("prompts", "evidence"),
    ("model",),
    ("apps/pages",),
    ("research", "apps/audit", "apps/labelling", "apps/explain", "apps/batch", "apps/export"),
    ("apps/classifier", "testing", "apps/serve"),
    ("apps/cli", "__main__"),
]
RANK = {name: rank for rank, names in enumerate(FLOORS) for name in names}
APART = {  # what stands on one floor and is to know nothing of the others there
    "research": set(),
    "apps/audit": set(),
    "apps/labelling": set(),
    "apps/explain": set(),
    "apps/batch": set(),
    "apps/export": set(),
    "apps/classifier": set(),
    "apps/serve": set(),
    "prompts": set(),
    "evidence": set(),
}
MODULE = re.compile(r"pbprompt(\.\w+)+\.?")  # also the head of f"pbprompt.evidence.{name}"
# the lazy table of public names; where methods are looked for
MAY_NAME = {"__init__.py", "registry.py"}
ABOVE = {"research": {"apps/explain"}}  # drawings of prompts and maps, as the paper has them


def part_of(module: str) -> str:
    """The part of the house that a module is of: its first word, of `apps` the first two."""
    words = module.removeprefix("pbprompt.").split(".")
    return "/".join(words[: 2 if words[0] == "apps" else 1])


def imported_parts(path: Path) -> set[str]:
    """Parts that a file imports, or names in a string to import or run."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the module in full"
            names = [node.module or ""]
            if node.module in ("pbprompt", "pbprompt.apps"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            names = [node.value]
        parts |= {part_of(name) for name in names if name.startswith("pbprompt.")}
    return {part for part in parts if part in RANK}


def test_every_module_has_a_floor_and_imports_from_below_only():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        here = path.relative_to(ROOT).as_posix()
        own = part_of(here.removesuffix(".py").replace("/", "."))
        if own == "apps/__init__" or here in MAY_NAME:
            continue
        assert own in RANK, f"{here}: give {own!r} a place in FLOORS"
        allowed = ABOVE.get(own, set()) | {own}
        for part in imported_parts(path) - allowed:
            aside = part in APART and own in APART and RANK[part] == RANK[own]
            if RANK[part] > RANK[own] or aside:
                wrong.append(f"{here} imports {part}")
    assert not wrong


@pytest.mark.parametrize("one, other", [("prompts", "evidence"), ("evidence", "prompts")])
def test_the_paper_and_the_default_do_not_know_each_other(one, other):
    assert not [path for path in (ROOT / one).rglob("*.py") if other in imported_parts(path)]


def test_research_is_opened_by_its_own_verbs_alone():
    verbs = {"reproduce", "runs", "methods", "prompts"}
    users = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if "research" in imported_parts(path) and ROOT / "research" not in path.parents
    }
    assert users <= {f"apps/cli/{verb}.py" for verb in verbs}


# below `model`, who reads and writes files: images, features, weights; and what training resumes from
READS = ("vision/images/", "vision/features/", "vision/towers/loading/", "prompts/loop/")
ASSETS = {"vision/towers/tokenizer.py", "vision/towers/lite.py"}  # that come with the package
FILES = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink", "iterdir", "glob"}
FILES |= {"safe_open", "load_file", "save_file", "write_files", "write_stream", "read_json", "append_records"}


def calls(path: Path) -> set[str]:
    """Names of the functions and methods that a file calls."""
    called = [
        n.func for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)
    ]
    return {getattr(function, "attr", getattr(function, "id", "")) for function in called}


def test_equations_leave_files_alone():
    below = [
        path.relative_to(ROOT).as_posix()
        for floor in ("learners", "prompts", "evidence", "vision")
        for path in (ROOT / floor).rglob("*.py")
    ]
    assert not {
        here: found
        for here in below
        if not here.startswith(READS) and here not in ASSETS and (found := calls(ROOT / here) & FILES)
    }


def test_no_two_files_have_a_class_of_one_name():
    homes: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(path.relative_to(ROOT).as_posix())
    shared = {name for name, files in homes.items() if len(files) > 1}
    assert shared == {"Prediction"}  # one image's answer, and the form in which HTTP sends that very thing


def test_the_rule_can_be_broken(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from pbprompt.apps.cli import main\nimport pbprompt.vision.images.items\n"
        "import_module('pbprompt.apps.serve.app')\nimport_module(f'pbprompt.evidence.{name}')\n"
        "'pbprompt.research is a word of this sentence'\n"
    )
    assert imported_parts(bad) == {"apps/cli", "vision", "apps/serve", "evidence"}
    bad.write_text("with Path('x').open() as file:\n    tensors = load_file(file)\n")
    assert calls(bad) & FILES == {"open", "load_file"}
