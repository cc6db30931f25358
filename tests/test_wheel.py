"""What is built can be used: the wheel in an environment of its own; the sdist builds and tests itself."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import pbprompt
from pbprompt.vision.towers.loading.hub import EMBEDDED

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


VERBS = """
import sys
from pbprompt.apps.cli import app
for words in {verbs}:
    app(words, standalone_mode=False)
"""


def run(*command: str | Path, cwd: Path) -> str:
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """dist/ with a wheel and an sdist; nothing is downloaded."""
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", dist, cwd=ROOT)
    return dist


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """bin/ of a fresh environment with the wheel; its dependencies are those of the running interpreter."""
    home = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    python = home / "bin" / "python"
    packages = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip()
    )
    offline = ("--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", "--quiet")
    run(sys.executable, "-m", "pip", "--python", python, "install", *offline, *built.glob("*.whl"), cwd=home)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # after its own packages
    return home / "bin"


def test_the_sdist_carries_what_builds_and_tests_it(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"Makefile", "constraints.txt", "CONTRIBUTING.md", "CITATION.cff", "LICENSE", "mkdocs.yml"}
    wanted |= {"pyproject.toml", "tests/conftest.py", "docs/README.md", "sbom/pbprompt.cdx.json"}
    assert wanted <= names


def test_the_wheel_carries_what_it_needs_as_an_sbom(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if "/sboms/" in name]
        assert name.endswith(".dist-info/sboms/pbprompt.cdx.json")
        assert json.loads(archive.read(name))["metadata"]["component"]["version"] == pbprompt.__version__


def test_the_wheel_carries_the_embedded_backbones(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for name in EMBEDDED:
        for file in ("config.json", "model.safetensors"):
            assert f"pbprompt/vision/towers/assets/{name}/{file}" in names


def test_the_wheel_carries_the_pages_templates(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    templates = [path for path in (ROOT / "src").rglob("templates/*") if path.is_file()]
    assert templates and {path.relative_to(ROOT / "src").as_posix() for path in templates} <= names


def test_the_commands_of_the_readme_run_there(installed, tmp_path):
    """Those for people with photographs, in order, on a folder of their own."""
    package = Path(
        run(installed / "python", "-c", "import pbprompt; print(pbprompt.__path__[0])", cwd=tmp_path).strip()
    )
    (tmp_path / "holiday").mkdir()
    for name in ("fruit", "tool"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for at, image in enumerate(sorted(package.glob(f"vision/images/sample/images/google/{name}/*"))[:10]):
            shutil.copy(image, tmp_path / "photos" / name)
            shutil.copy(image, tmp_path / "holiday" / f"{name}-{at}.webp")
    shutil.copy(image, tmp_path / "photo.jpg")
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    typed = [shlex.split(line) for block in blocks for line in block.splitlines()]
    verbs = [
        words[1:]
        for words in typed
        if words[0] == "pbprompt" and "research" not in words and "prompts/" not in words
    ]
    assert {"look", "fit", "predict", "evaluate", "model", "export"} <= {words[0] for words in verbs}
    run(installed / "python", "-c", VERBS.format(verbs=verbs), cwd=tmp_path)
    made = {"look.html", "report.html", "heat.png", "model.onnx", "answers.csv", "model"}
    assert made <= {path.name for path in tmp_path.iterdir()}


def test_the_wheel_works_away_from_the_checkout(installed, tmp_path):
    where = run(installed / "python", "-c", "import pbprompt; print(pbprompt.__file__)", cwd=tmp_path)
    package = Path(where.strip()).parent
    assert package.is_relative_to(installed.parent)
    assert (package / "py.typed").exists()
    assert pbprompt.__version__ in run(installed / "pbprompt", "--version", cwd=tmp_path)
    for name in ("bird", "building", "clock"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for image in sorted(package.glob(f"vision/images/sample/images/fluent/{name}/*.webp"))[:6]:
            shutil.copy(image, tmp_path / "photos" / name)
    photo = next(tmp_path.glob("photos/bird/*.webp"))
    verbs = (["doctor"], ["fit", "photos", "--shots", "1", "--out", "model"])
    verbs += (["predict", str(photo), "--classes", "bird,building,clock", "--backbone", "lite-vit"],)
    verbs += (["predict", str(photo), "--model", "model"],)
    said = run(installed / "python", "-c", VERBS.format(verbs=verbs), cwd=tmp_path)  # torch is imported once
    answers = [line for line in said.splitlines() if str(photo) in line]
    assert "embedded models" in said and len(answers) == 2 and all(" bird " in line for line in answers)
