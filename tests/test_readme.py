"""The README's commands and code run as written."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import pbprompt
from pbprompt.apps.cli import main
from pbprompt.research import protocol, recipes

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.S | re.M)
COMMANDS = [line for kind, body in BLOCKS if kind == "sh" for line in body.splitlines()]
PBPROMPT = [command for command in COMMANDS if command.startswith("pbprompt ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the README assumes: photo.jpg, holiday/, names.txt and photos/ with a folder for each class."""
    place = tmp_path_factory.mktemp("readme")
    images = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
    (place / "holiday").mkdir()
    for name in ("mammal", "musical-instrument"):
        shutil.copytree(images / name, place / "photos" / name)
    for at, source in enumerate(sorted((images / "mammal").iterdir())[:2]):
        shutil.copy(source, place / "holiday" / f"{at}.jpg")
        shutil.copy(source, place / "photo.jpg")
    (place / "names.txt").write_text("cat\ndog\n")
    return place


@pytest.fixture
def short_recipes(monkeypatch):
    """The recipes with one epoch for the many that their tables are made with, tested on fewer images."""
    parsed = recipes.parsed

    def shortened(*given):
        return yaml.safe_load(re.sub(r"epochs: \d+", "epochs: 1", yaml.safe_dump(parsed(*given))))

    monkeypatch.setattr(recipes, "parsed", shortened)
    whole = protocol.open_dataset

    def some(*of, **how):
        dataset = whole(*of, **how)
        return replace(dataset, test=dataset.test[::10], val=dataset.val[::10])

    monkeypatch.setattr(protocol, "open_dataset", some)


@pytest.fixture(scope="module")
def done() -> dict[str, tuple[object, str, str]]:
    """Exit code, output and errors of the commands that have run: each runs once."""
    return {}


def needed_by(command: str) -> list[str]:
    """The README's commands that make what this one takes."""
    makers = []
    for model in ("model/", "prompts/"):
        if f" {model}" in command and not command.startswith("pbprompt fit "):
            makers += [other for other in PBPROMPT if other.endswith(f"--out {model}")]
    if command == "pbprompt research runs":
        makers += [other for other in PBPROMPT if other.startswith("pbprompt research reproduce sample-")]
    return makers


@pytest.mark.usefixtures("plain_exports", "short_recipes", "sweeps_here")
@pytest.mark.parametrize("command", PBPROMPT)
def test_command(command: str, folder: Path, done, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for one in (*needed_by(command), command):
        if one not in done:
            monkeypatch.setattr(sys, "argv", shlex.split(one))
            with pytest.raises(SystemExit) as stop:
                main()
            done[one] = (stop.value.code, *capsys.readouterr())
    code, out, err = done[command]
    assert not code, err
    assert out.strip() or (folder / shlex.split(command)[-1]).read_text().strip()  # of `predict --out FILE`


def test_a_command_in_a_process_of_its_own(folder: Path):
    words = ["-m", "pbprompt", "predict", "photo.jpg", "--classes", "cat,dog,car"]
    run = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def test_the_package_is_installed_with_extras_that_it_has():
    others = [command for command in COMMANDS if command not in PBPROMPT]
    install, one_file = others
    assert one_file == "python examples/pbprompt_in_one_file.py"  # which test_one_file.py runs
    (extras,) = re.fullmatch(r"pip install -c constraints.txt '\.\[([\w,]+)\]'", install).groups()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert (ROOT / "constraints.txt").exists()


def test_what_make_is_said_to_make_is_a_target():
    targets = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert {"demo", "test"} <= set(re.findall(r"`make (\w+)`", TEXT)) <= set(targets)


def test_it_is_short_and_has_two_doors_of_equal_size():
    assert len(TEXT.splitlines()) < 150
    doors = [
        TEXT.split(f"## {title}\n")[1].split("\n## ")[0]
        for title in ("I have photographs", "I have the paper")
    ]
    assert 2 / 3 < len(doors[0]) / len(doors[1]) < 3 / 2


@pytest.mark.parametrize("code", [body for kind, body in BLOCKS if kind == "python"])
def test_code(code: str):
    exec(compile(code, "README.md", "exec"), {})


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    assert not [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
