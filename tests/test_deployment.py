"""The Dockerfile and the unit of systemd: what they run is there, by a user who may do little."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from packaging.specifiers import SpecifierSet

from pbprompt.apps.cli import app

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "serve.md"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.M)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines) if word]


def all_of(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


def unit() -> configparser.ConfigParser:
    (text,) = re.findall(r"```ini\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(text)
    return parser


def served(command: list[str]) -> dict:
    """What the command line makes of it."""
    assert Path(command[0]).name == "pbprompt" and command[1] == "serve"
    return typer.main.get_command(app).commands["serve"].make_context("serve", command[2:]).params


def test_the_image_is_of_the_python_that_was_locked():
    (base,) = all_of("FROM")
    version = re.fullmatch(r"python:(3\.\d+)-slim", base)[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"{version}.0" in SpecifierSet(project["requires-python"])
    (lock,) = re.findall(r"locks/\S+\.txt", "\n".join(all_of("RUN")))
    assert (ROOT / lock).is_file() and lock.endswith(f"py{version.replace('.', '')}.txt")


def test_nothing_is_named_on_another_host():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"\w+://[^/'\"\s]*", text) == ["http://127.0.0.1:8000"]
    assert all(rest.startswith(("python -m pip install ", "sed ", "useradd ")) for rest in all_of("RUN"))
    assert not all_of("ADD")


def test_what_is_copied_is_there_and_reaches_the_build():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    copied = {name for rest in all_of("COPY") for name in rest.split()[:-1]}
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {
        Path(name).parts[0] for name in project["tool"]["hatch"]["build"]["targets"]["wheel"]["sbom-files"]
    }
    assert needed <= copied


def test_what_changes_most_is_copied_last_and_root_ends_before_it_runs():
    order = [word for word, _ in instructions()]
    words = [f"{word} {rest}" for word, rest in instructions()]
    place = {
        name: next(i for i, one in enumerate(words) if name in one) for name in ("torch", "src", "'.[serve]'")
    }
    assert place["torch"] < words.index("COPY src src") < place["'.[serve]'"] < order.index("USER")
    assert order.index("USER") < order.index("HEALTHCHECK") < order.index("ENTRYPOINT") == len(order) - 1
    (user,) = all_of("USER")
    assert user not in ("root", "0") and any(rest.endswith(f" {user}") for rest in all_of("RUN"))


def test_the_container_serves_where_its_health_is_asked_for():
    (entry,), (health,), (port,) = all_of("ENTRYPOINT"), all_of("HEALTHCHECK"), all_of("EXPOSE")
    asked = served(json.loads(entry))
    assert (str(asked["model"]), asked["host"], asked["port"]) == ("/model", "0.0.0.0", int(port))
    command = json.loads(health.partition("CMD ")[2])
    assert command[:2] == ["python", "-c"] and f"http://127.0.0.1:{port}/healthz" in command[2]
    free = command[2].replace(f":{port}", ":1")  # where nothing listens
    assert subprocess.run([sys.executable, "-c", free], capture_output=True).returncode == 1
    page = PAGE.read_text(encoding="utf-8")
    assert f"-p 127.0.0.1:{port}:{port} " in page and '-v "$PWD/model:/model:ro"' in page


def test_the_service_runs_a_command_that_exists_as_nobody_in_particular():
    service = unit()["Service"]
    assert str(served(shlex.split(service["ExecStart"]))["model"]) == "/srv/pbprompt/model"
    assert service["DynamicUser"] == service["NoNewPrivileges"] == service["ProtectHome"] == "yes"
    assert service["ProtectSystem"] == "strict" and service["Restart"] == "on-failure"
    cache = service["Environment"].removeprefix("PBPROMPT_CACHE=")
    assert cache == f"/var/cache/{service['CacheDirectory']}"  # which systemd makes for it
    assert int(service["TimeoutStopSec"]) > 30  # so long it answers what waits
    assert unit()["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_takes_the_unit(tmp_path):
    parser = unit()
    parser["Service"]["ExecStart"] = "/bin/true"  # it has to be there
    path = tmp_path / "pbprompt.service"
    with path.open("w") as file:
        parser.write(file, space_around_delimiters=False)
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True)
    assert done.returncode == 0 and "pbprompt" not in done.stderr, done.stderr
