"""The gallery runs, and shows what it says."""

import runpy
import sys
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[1] / "examples"


def run(name: str, **given):
    return runpy.run_path(str(GALLERY / f"{name}.py"))["main"](**given)


def test_defects_against_good_parts(capsys):
    assert run("defects", images=60) > 0.6
    told = capsys.readouterr().out
    assert "promised by 60 training images in 16 series, each series left out in turn" in told


def test_products_with_descriptions():
    codes, described = run("products")
    assert described > codes


def test_a_camera_trap(capsys):
    before, after = run("camera_trap", labelled=4)
    assert after > before - 0.05 and "marked as none of these" in capsys.readouterr().out


def test_several_labels():
    assert run("several_labels", images=40) > 0.6


def test_http(capsys):
    pytest.importorskip("fastapi")
    assert run("serve_http") == "mammal" and "a set of" in capsys.readouterr().out


def test_all_are_listed():
    listed = (GALLERY / "README.md").read_text(encoding="utf-8")
    assert all(f"[{file.name}]({file.name})" in listed for file in GALLERY.glob("*.py"))


def test_no_example_hides_a_module_of_python():
    """Python looks for modules beside a script first."""
    names = {path.stem for path in GALLERY.glob("*.py")}
    assert not names & sys.stdlib_module_names
