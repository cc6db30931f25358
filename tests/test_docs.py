"""The documents hold: links lead somewhere, commands exist, the quickstart runs, verb pages are current."""

import dataclasses
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import typer

import pbprompt
from pbprompt.apps.cli import _plugins_first, app
from pbprompt.apps.cli.methods import _tags
from pbprompt.learners.method import make_config
from pbprompt.registry import find_method, methods
from pbprompt.research.recipes import load_recipe
from pbprompt.vision.images.sources import open_dataset

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("verbs/*.md"))]
VERBS = typer.main.get_command(app).commands
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)


def blocks(page: Path, kind: str) -> list[str]:
    return blocks_of(page.read_text(encoding="utf-8"), kind)


def blocks_of(text: str, kind: str) -> list[str]:
    return [body for found, body in FENCED.findall(text) if found == kind]


def shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Links


def anchors(page: Path) -> set[str]:
    """What a heading is called in an address: lower case, no signs, dashes for blanks."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_lead_somewhere(page: Path):
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


# Commands


def typed(page: Path) -> list[str]:
    """Commands of pbprompt in blocks of shell lines, and in blocks that are indented."""
    text = page.read_text(encoding="utf-8")
    shell = [block for kind in ("sh", "bash") for block in blocks(page, kind)]
    lines = [line for block in shell for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"^    (pbprompt .*)$", FENCED.sub("", text), re.M)
    found = (re.search(r"(?:^|\s)(pbprompt .*)", line) for line in lines)
    return [match.group(1) for match in found if match]


def mentioned(page: Path) -> list[str]:
    """Commands inside sentences; those with dots in place of words, and 0.1.0's `bench`, are left out."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found = re.findall(r"`(pbprompt [^`]*)`", text)
    return [command for command in found if not re.search(r"…|\[|^pbprompt bench\b", command)]


def parse(command: str) -> None:
    """Let the command line read it, without running anything."""
    words = _plugins_first(shlex.split(command, comments=True)[1:])  # which every verb takes
    while words[0] == "--plugin":
        words = words[2:]
    if words[0].startswith("-"):
        assert words in (["--help"], ["--version"]), command
        return
    verb, nested = words.pop(0), VERBS
    while True:
        assert verb in nested, f"{command}: there is no {verb}"
        chosen = nested[verb]
        nested = getattr(chosen, "commands", {})
        if not words or words[0] not in nested:
            break
        verb = words.pop(0)
    if nested and not words:
        return  # a verb with verbs below it, alone: it lists
    given = chosen.make_context(verb, words).params
    if verb == "fit" and given["method"] not in OWN:
        # refuses a preset, variant or setting that the method does not have
        make_config(find_method(given["method"]), given["preset"], given["variant"], given["overrides"])


OWN = ("task-residual", "block-adapter")  # those of the page on methods of one's own


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_commands_exist(page: Path):
    for command in typed(page):
        parse(command)
    for command in mentioned(page):
        try:
            parse(command)
        except Exception as error:  # a sentence may leave out what is required, but may not invent
            if type(error).__name__ != "MissingParameter":
                raise


WRONG = ["predikt a.jpg", "fit photos/ --out m --shot 4", "fit photos/ --out m --preset paper"]


@pytest.mark.parametrize("command", WRONG)
def test_a_command_that_does_not_exist_is_found(command: str):
    with pytest.raises(Exception, match=r"no predikt|[Nn]o such option|no preset"):
        parse(f"pbprompt {command}")


# The quickstart


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the pages assume: photos/ with a folder for each class, new/ and photo.jpg."""
    place = tmp_path_factory.mktemp("docs")
    images = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
    for name in ("mammal", "musical-instrument"):
        shutil.copytree(images / name, place / "photos" / name)
    (place / "new").mkdir()
    for source in sorted((images / "mammal").iterdir())[:2]:
        shutil.copy(source, place / "new")
        shutil.copy(source, place / "photo.jpg")
    return place


def masked(text: str) -> list[str]:
    """Lines without figures, widths, and which images were chosen."""
    lines = (re.sub(r"new/\S+ +(clock|fruit|heart|mammal)", "IMAGE", line) for line in text.splitlines())
    return [" ".join(re.sub(r"-?\d[\d.,]*%?", "0", line).split()) for line in lines]


def test_quickstart_is_a_transcript(monkeypatch):
    """Its commands print what the page shows, but for figures."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    quickstart = script("render_quickstart")
    page = quickstart.PAGE.read_text(encoding="utf-8")
    shown, printed = (blocks_of(text, "text") for text in (page, quickstart.rendered(page)))
    assert len(shown) == len(printed) == 5
    for one, other in zip(shown, printed, strict=True):
        assert masked(one) == masked(other)


def test_the_loop_is_a_transcript(monkeypatch):
    """Each command leads to the next, on images that are not those of the quickstart."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    loop = script("render_loop")
    page = loop.PAGE.read_text(encoding="utf-8")
    shown, printed = (blocks_of(text, "text") for text in (page, loop.rendered(page)))
    assert len(shown) == len(printed) == 6
    names = re.compile("|".join(sorted(open_dataset("sample").classes, key=len, reverse=True)))
    for one, other in zip(shown, printed, strict=True):
        lines = [masked(names.sub("CLASS", re.sub(r"\S+/.*?\.webp", "IMAGE", text))) for text in (one, other)]
        assert lines[0] == lines[1]


def test_the_quickstart_is_installed_and_served(folder: Path, child: Callable[..., subprocess.Popen[str]]):
    pytest.importorskip("fastapi")
    install, fit, *_, serve = (block.strip() for block in blocks(DOCS / "quickstart.md", "sh"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert install == "pip install -c constraints.txt '.[serve]'"
    assert "serve" in extras["optional-dependencies"] and (ROOT / "constraints.txt").exists()
    words = [sys.executable, "-m", *shlex.split(fit.replace("model/", "model2/"))]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    words = shlex.split(serve.replace("--port 8000", "--port 0"))
    assert "0" in words
    server = child(
        [sys.executable, "-m", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert server.stderr
    lines = iter(server.stderr.readline, "")
    address = next(found.group() for line in lines if (found := re.search(r"http://[\d.]+:\d+", line)))
    with urllib.request.urlopen(f"{address}/healthz") as answer:
        assert answer.status == 200 and json.load(answer)
    server.terminate()
    server.communicate()


# Code


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_code_compiles(page: Path):
    for code in blocks(page, "python"):
        compile(code, str(page), "exec")


@pytest.mark.parametrize("name", ["classifier.md", "faq.md", "look.md", "label-next.md"])
def test_code_runs(name: str, folder: Path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(folder)
    namespace: dict[str, object] = {}
    for code in blocks(DOCS / name, "python"):
        exec(compile(code, name, "exec"), namespace)


# Files that are named

NAMED = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.py|(?:src|tests|scripts|benchmarks|docs|examples)/[\w./-]*)`")


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_files_that_are_named_are_there(page: Path):
    """In the repository or the package, or somewhere by their name alone; N stands for any number."""
    for line in page.read_text(encoding="utf-8").splitlines():
        for name in NAMED.findall(line) if "commit" not in line else ():  # what was there once
            here = name.rstrip("/").replace("-N.", "-*.")
            places = [ROOT.glob(here), ROOT.glob(f"src/pbprompt/{here}"), page.parent.glob(here)]
            places += [] if "/" in here else [ROOT.glob(f"*/**/{here}")]
            assert any(next(found, None) for found in places), f"{shown(page)} names {name}"


# Pages that scripts make


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_verb_pages_are_current():
    for path, text in script("verb_pages").pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python scripts/verb_pages.py"


@pytest.mark.parametrize("verb", ["captions", "prompts"])
def test_outputs_that_a_verb_page_has_from_the_example_are_there(verb: str):
    example = (DOCS / "example.md").read_text(encoding="utf-8").splitlines()
    page = DOCS / "verbs" / f"{verb}.md"
    assert "[the example](../example.md)" in page.read_text(encoding="utf-8")
    assert not set(blocks(page, "text")[0].splitlines()) - set(example)


def test_every_field_of_an_answer_is_explained():
    table = (DOCS / "verbs" / "predict.md").read_text(encoding="utf-8").split("| field |")[1].split("\n\n")[0]
    explained = {name for row in table.splitlines() for name in re.findall("`(.*?)`", row.split(" | ")[0])}
    assert explained == {field.name for field in dataclasses.fields(pbprompt.Prediction)} | {
        "score",
        "spread",
        "answer_score",
    }


def test_every_tag_of_a_method_is_explained():
    table = (DOCS / "verbs" / "methods.md").read_text(encoding="utf-8").split("| tag |")[1].split("\n\n")[0]
    used = {tag for kind in methods().values() for tag in _tags(kind)}
    assert set(re.findall(r"^\| `(.*?)`", table, re.M)) == used


def test_the_recipe_of_ones_own_is_one(tmp_path):
    (text,) = blocks(DOCS / "reproduce.md", "yaml")
    (tmp_path / "mine.yaml").write_text(text)
    runs = load_recipe(str(tmp_path / "mine.yaml")).expand()
    assert len(runs) == 18 and {run.method for _, run in runs} <= set(methods())


def test_methods_that_can_be_exported_are_listed():
    text = (DOCS / "export.md").read_text(encoding="utf-8")
    listed = re.search(r"These methods can be exported: (.*?)\.", text).group(1).split(", ")
    assert listed == sorted(name for name, kind in methods().items() if kind.exportable)


def test_every_verb_has_a_page_in_the_index():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert {page.stem for page in DOCS.glob("verbs/*.md")} == set(VERBS) - {"research"}
    for verb in set(VERBS) - {"research"}:
        assert f"[`{verb}`](verbs/{verb}.md)" in index
        text = (DOCS / "verbs" / f"{verb}.md").read_text(encoding="utf-8")
        assert all(f"## {part}\n" in text for part in ("What comes out", "When it goes wrong", "Options"))


READERS = {  # of the index's parts, as the first line of a page calls them
    "With photographs": "For people with photographs",
    "With the paper": "For readers of the paper",
    "Deploying": "For those who deploy a model",
    "Contributing": "For contributors",
}


@pytest.mark.parametrize("page", [page for page in DOCS.glob("*.md") if page.name != "README.md"], ids=shown)
def test_a_page_says_first_whom_it_is_for_and_is_listed_there(page: Path):
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", index, re.S | re.M))
    (part,) = [part for part in READERS if f"({page.name})" in parts[part]]
    title, blank, first, *_ = page.read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ") and not blank and first.startswith(READERS[part]), first


def test_outputs_of_the_example_are_replaced_not_added():
    """Rendering a rendered page finds the same blocks, so that the page does not grow."""
    example = script("render_example")
    page = example.PAGE.read_text(encoding="utf-8")
    once = example.BLOCK.sub("```\\1\n\\2```\n\n```text\nnew\n```\n", page)
    assert set(blocks_of(once, "text")) == {"new\n"}
    assert example.BLOCK.sub("```\\1\n\\2```\n\n```text\nnew\n```\n", once) == once


@pytest.mark.parametrize("name", ["example", "loop"])
def test_pictures_are_small_and_used(name):
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    pictures = list((DOCS / "images").glob(f"{name}-*"))
    assert pictures and all(f"(images/{picture.name})" in page for picture in pictures)
    sizes = [picture.stat().st_size for picture in pictures]
    assert max(sizes) < 60_000 and sum(sizes) < 400_000
