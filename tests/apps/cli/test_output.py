import gc
import sys

import pytest

from pbprompt.apps.cli.output import importing, print_json, print_table
from pbprompt.errors import InputError


def test_json_says_no_nan(capsys):
    print_json({"é": 1.5})
    assert capsys.readouterr().out == '{"é": 1.5}\n'
    with pytest.raises(InputError, match="NaN or infinite"):
        print_json({"nll": float("nan")})
    assert not capsys.readouterr().out


def test_a_table_has_its_cells_as_they_are_and_whole(capsys, monkeypatch):
    rows = [("[red]a[/]:smile:", 1), ("b" * 90, 10)]
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(("image", "n"), rows, right=("n",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["[red]a[/]:smile:", "1"] and lines[2] == f"{'b' * 90}  10"
    monkeypatch.setenv("COLUMNS", "40")
    print_table(("image", "n"), rows)
    shown = capsys.readouterr().out
    assert shown.count("b") == 90 and max(map(len, shown.splitlines())) <= 40


def test_names_of_files_stand_whole_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    folders = "photos/of the summer/" + "deep/" * 9
    rows = [
        (f"{folders}a-rather-long-name-of-a-file-{n}.jpg", "a class of many words", "0.5") for n in (1, 2)
    ]
    print_table(("image", "answer", "n"), rows, right=("n",), paths=("image",))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= 80
    assert [line.split("  ")[0].split("/")[-1] for line in lines[1:]] == [
        row[0].split("/")[-1] for row in rows
    ]
    assert all(line.startswith("…/deep/") for line in lines[1:])
    print_table(("images", "what"), [("a/1.jpg\nb/2.jpg", "x " * 80)], paths=("images",))
    out = capsys.readouterr().out
    assert "\na/1.jpg " in out and "\nb/2.jpg " in out and max(map(len, out.splitlines())) <= 80
    longest = "n" * 90 + ".jpg"  # wider than the terminal: the terminal wraps it, we do not break it
    print_table(("image", "answer"), [(longest, "cat")], paths=("image",))
    assert longest in capsys.readouterr().out


def test_garbage_is_looked_for_again_after_imports(monkeypatch):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    with importing():  # torch is there already: nothing is to be gained
        assert gc.isenabled()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(ImportError), importing():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled() and frozen == [False]
