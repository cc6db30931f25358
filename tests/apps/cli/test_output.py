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
    print_table(("image", "n"), rows, right=("n",), pad_edge=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["[red]a[/]:smile:", "1"] and lines[2] == f"{'b' * 90}  10"
    monkeypatch.setenv("COLUMNS", "40")
    print_table(("image", "n"), rows)
    shown = capsys.readouterr().out
    assert shown.count("b") == 90 and max(map(len, shown.splitlines())) <= 40


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
