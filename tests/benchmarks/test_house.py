"""Lines by floor, and what a call walks through."""

from benchmarks.house import Walk, floors
from pbprompt import markdown
from pbprompt.config import to_dict


def test_floors_add_up(tmp_path):
    (tmp_path / "apps" / "cli").mkdir(parents=True)
    (tmp_path / "errors.py").write_text("a\n\nb\n")
    (tmp_path / "apps" / "x.py").write_text("a\n")
    (tmp_path / "apps" / "cli" / "y.py").write_text("a\nb\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in floors(tmp_path).splitlines()[2:]]
    assert rows == [["(the root)", "1", "3"], ["apps", "2", "3"], ["all", "3", "6"]]


def test_a_walk_counts_what_is_called():
    with Walk() as walk:
        markdown.table(["a"], [["b"]])
    names = {name for functions in walk.called.values() for name, _ in functions}
    assert "table" in names and to_dict.__qualname__ not in names
    assert str(walk).startswith("1 files (1 of markdown.py), ")
