"""benchmarks/README.md names every script, and the page that has its figures names it too."""

import re
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
INDEX = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`\w.*?) \| .* \| (.*?) \|$", INDEX.split("|---|")[-1], re.M)


def test_every_script_is_listed():
    scripts = {path.stem for path in BENCHMARKS.glob("*.py")} - {"__init__"}
    scripts |= {path.parent.name for path in BENCHMARKS.glob("*/*.py")}
    named = {name for scripts, _ in ROWS for name in re.findall(r"`(\w+)`", scripts)}
    assert scripts <= named
    assert all(list(BENCHMARKS.rglob(f"{name}.py")) or (BENCHMARKS / name).is_dir() for name in named)


def test_the_page_of_a_script_names_it():
    for scripts, pages in ROWS:
        name = re.search(r"`(\w+)`", scripts)[1]
        for page in re.findall(r"\(\.\./(docs/.*?)\)", pages):
            text = (BENCHMARKS.parent / page).read_text(encoding="utf-8")
            assert re.search(rf"benchmarks[./]{name}\b|make {name}", text), f"{page} does not name {name}"
