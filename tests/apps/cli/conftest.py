"""What the tests of the command line share."""

import shutil
import sys
from pathlib import Path

import pytest

import pbprompt
from pbprompt.apps.cli import main

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
CLASSES = ("clock", "heart", "mammal")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pbprompt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A model fitted once, which tests only read; beside it lies the folder of its photos."""
    home = tmp_path_factory.mktemp("home")
    for name in CLASSES:
        (home / "photos" / name).mkdir(parents=True)
        for file in sorted((SAMPLE / name).iterdir())[:6]:
            shutil.copy(file, home / "photos" / name)
    quick = ("--method", "pbprompt", "--shots", "2", "--set", "epochs=1", "--out", str(home / "model"))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["pbprompt", "fit", str(home / "photos"), *quick])
        main()
    assert not stop.value.code
    return home / "model"
