"""What is installed is what was tested, and it is known what that is and under which licences."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pbprompt

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
OWN_BUILDS = ("torch", "triton")


def script(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def required(*extras):
    """What pyproject.toml itself names: for the package, and for these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    found = [Requirement(text) for texts in lists for text in texts]
    return {canonicalize_name(one.name): one for one in found if one.name != "pbprompt"}


ALL = ("serve", "onnx", "plots", "ray", "slurm", "docs", "dev")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_has_a_hash_for_every_package_and_fits_what_is_asked_for(lock):
    pinned = {}
    for line in lock.read_text(encoding="utf-8").splitlines()[1:]:
        name, version = re.fullmatch(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line).groups()
        pinned[canonicalize_name(name)] = version
    asked = {name: one for name, one in required(*ALL).items() if name not in OWN_BUILDS}
    assert set(asked) <= set(pinned), "run make lock"
    for name, requirement in asked.items():
        assert requirement.specifier.contains(pinned[name], prereleases=True), f"{name}: run make lock"
    assert not set(OWN_BUILDS) & set(pinned)


def test_a_lock_leaves_each_machines_own_builds_out(monkeypatch):
    def part(name, version, digest):
        archive = {"archive_info": {"hashes": {"sha256": digest}}} if digest else {}
        return {"metadata": {"name": name, "version": version}, "download_info": archive}

    report = {
        "install": [part("torch", "2.13.0+cpu", "a"), part("Jinja2", "3", "b"), part("pbprompt", "1", "")]
    }
    assert script("lock", monkeypatch).lines(report) == ["jinja2==3 --hash=sha256:b"]


def test_the_name_of_a_lock_is_told_without_writing_one():
    command = [sys.executable, ROOT / "scripts" / "lock.py", "--name"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert re.fullmatch(r"locks/\w+-\w+-py3\d+\.txt", said)


def test_what_is_locked_is_installed_before_anything_that_is_not():
    """Whatever is built without a hash could run code: nothing is, but with what the lock has brought."""
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    recipe = lines[next(n for n, line in enumerate(lines) if line.startswith("$(VENV)/.dev:")) + 1 :]
    installs = [line for line in recipe[:8] if "$(PIP)" in line or "$(INSTALL)" in line]
    assert "--no-deps --require-hashes" in installs[0] and "hatchling editables" in installs[1]
    assert "--no-build-isolation" in installs[2]


def test_workflows_name_actions_by_their_hash_and_test_the_oldest_versions():
    (flow,) = (ROOT / ".github" / "workflows").glob("*.yml")
    text = flow.read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)", text)
    assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in used)
    assert "--resolution lowest-direct" in text
    assert not required()["pillow"].specifier.contains("11.2.1")  # of which overlapping EXIF took 10 GiB


def test_the_page_of_licences_has_every_dependency(monkeypatch):
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| ([\w.-]+) \| ([^|]+) \|", page, re.M))
    assert set(required(*ALL)) <= set(listed), "run make lock"
    licences = script("licences", monkeypatch)
    assert licences.UNKNOWN not in listed.values()
    here = {row[0]: row[1] for row in licences.rows()}
    assert {"torch", "numpy"} <= set(here) and here["numpy"] == listed["numpy"]


def test_the_sbom_has_all_that_the_package_needs():
    sbom = json.loads((ROOT / "sbom" / "pbprompt.cdx.json").read_text(encoding="utf-8"))
    assert (
        sbom["bomFormat"] == "CycloneDX" and sbom["metadata"]["component"]["version"] == pbprompt.__version__
    )
    parts = {part["name"]: part for part in sbom["components"]}
    for name, requirement in required().items():
        assert requirement.specifier.contains(parts[name]["version"]), f"{name}: run make lock"
    known = {part["bom-ref"] for part in parts.values()} | {sbom["metadata"]["component"]["bom-ref"]}
    for line in sbom["dependencies"]:
        assert line["ref"] in known and set(line["dependsOn"]) <= known
    text = json.dumps(sbom)
    assert "+cpu" not in text and "file:" not in text


KNOWN = {"name": "good", "version": "1", "vulns": []}
BAD = {"name": "bad", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}
SKIPPED = {"name": "own", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("codes", "found", "code", "says"),
    [
        ([1], None, 3, "NOT AUDITED: pip-audit is not installed"),
        ([0, 1], None, 3, "NOT AUDITED: its data cannot be reached (no route)"),
        ([0, 0], [SKIPPED, SKIPPED], 3, "NOT AUDITED: no data of any package can be reached (Dependency"),
        ([0, 0], [KNOWN, SKIPPED], 0, "nothing is known of them: own\n1 packages audited, 0 known"),
        ([0, 1], [KNOWN, BAD], 1, "bad 2: CVE-1, mended in 2.1\n2 packages audited, 1 known"),
    ],
)
def test_an_audit_that_could_not_be_made_says_so(monkeypatch, capsys, codes, found, code, says):
    audit, left = script("audit", monkeypatch), list(codes)
    out = "" if found is None else json.dumps({"dependencies": found})

    def run(command, **_):
        return subprocess.CompletedProcess(command, left.pop(0), out, "log\nno route\n")

    monkeypatch.setattr(audit.subprocess, "run", run)
    assert audit.main() == code and not left
    said = capsys.readouterr()
    assert says in said.out + said.err
