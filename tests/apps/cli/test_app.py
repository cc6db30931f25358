"""The command line as a whole: help, version, doctor."""

import pickle
import subprocess
import sys
import warnings
from itertools import pairwise

import pytest
import typer
from typer.testing import CliRunner

from pbprompt import __version__
from pbprompt.apps.cli import app
from pbprompt.errors import InputError, warn_in_sentences


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and result.output.strip() == f"pbprompt {__version__}"


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['pbprompt', '--help']\n"
        "from pbprompt.apps.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'PIL', 'huggingface_hub', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "predict" in run.stdout


def test_doctor_passes_on_a_whole_installation():
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "lite, lite-vit, checksums good" in result.output and "extra serve" in result.output


def test_doctor_fails_on_a_damaged_model(monkeypatch, tmp_path):
    monkeypatch.setattr("pbprompt.vision.towers.lite.ASSETS", tmp_path)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "broken" in result.output


def test_doctor_fails_on_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    blocker = tmp_path / "file"
    blocker.touch()
    monkeypatch.setenv("PBPROMPT_CACHE", str(blocker / "cache"))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1 and "PBPROMPT_CACHE" in result.output.replace("\n", "")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            OSError(28, "No space left on device", "/there/records.jsonl"),
            "/there/records.jsonl: No space left",
        ),
        (InputError("a" * 5000 + ": mend it"), "a … a"),
    ],
)
def test_what_the_system_refuses_is_one_short_line(monkeypatch, run, error, says):
    def refuse():
        raise error

    monkeypatch.setattr("pbprompt.apps.cli.app", refuse)
    code, out, err = run("doctor")
    assert code == 2 and not out and says in err and len(err) < 500 and err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [["x" * 5000], ["predict", "--" + "x" * 5000], ["export", "a", "--out", "b", "--precision", "x" * 5000]],
)
def test_a_long_wrong_option_is_not_repeated_in_full(run, words):
    code, _, err = run(*words)
    assert code == 2 and "xxx" in err and err.count("x") < 500


def test_warnings_of_libraries_are_one_line_that_says_whose(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", None)
    warn_in_sentences()
    for file in (
        "/a/site-packages/PIL/Tiff.py",
        "/a/site-packages/six.py",
        "/src/pbprompt/features/store.py",
    ):
        warnings.showwarning("Corrupt\n  data", UserWarning, file, 7)
    assert capsys.readouterr().err.splitlines() == [
        "pbprompt: PIL warns: Corrupt data",
        "pbprompt: six warns: Corrupt data",
        "pbprompt: Corrupt data",
    ]


def test_no_error_of_ours_is_long_or_in_lines():
    error = InputError("a.png:\n" + "b" * 5000 + ": mend it")
    assert str(error).startswith("a.png: b") and str(error).endswith(": mend it") and len(str(error)) <= 500
    assert str(InputError("two  spaces/x.png: gone")) == "two  spaces/x.png: gone"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("verb", ["predict", "doctor", "datasets"])
def test_every_verb_has_help(verb):
    result = CliRunner().invoke(app, [verb, "--help"])
    assert result.exit_code == 0 and len(result.output.splitlines()) > 5


def test_every_verb_takes_a_gpu_where_there_is_one():
    def options(command):
        for below in getattr(command, "commands", {}).values():
            yield from options(below)
        yield from (one for one in command.params if one.name == "device")

    found = list(options(typer.main.get_command(app)))
    assert len(found) > 8 and {one.default for one in found} == {"auto"}


def verbs(command, name=()):
    """Every verb and the verbs below it, as the words that call it."""
    yield name
    for below, nested in getattr(command, "commands", {}).items():
        yield from verbs(nested, (*name, below))


@pytest.mark.parametrize("words", list(verbs(typer.main.get_command(app))), ids=" ".join)
def test_help_is_wrapped_by_the_width_alone(words, monkeypatch):
    """A paragraph of a help text is on one line where the terminal is wide enough for all of it."""
    monkeypatch.setenv("COLUMNS", "1200")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", None)
    shown = CliRunner().invoke(app, [*words, "--help"]).output
    prose = shown.partition("Usage:")[2].partition("╭")[0].splitlines()[1:]
    filled = [bool(line.strip()) for line in prose]
    assert any(filled) and not any(one and below for one, below in pairwise(filled))


def test_help_teaches_the_first_command():
    assert "pbprompt predict IMAGE --classes cat,dog,car" in CliRunner().invoke(app, ["--help"]).output


def test_verbs_are_listed_in_the_order_of_their_use():
    shown = CliRunner().invoke(app, ["--help"]).output
    verbs = (
        "look",
        "fit",
        "evaluate",
        "predict",
        "next",
        "monitor",
        "model",
        "explain",
        "doctor",
        "research",
    )
    places = [shown.index(f"\n│ {verb} ") for verb in verbs]
    assert places == sorted(places)
