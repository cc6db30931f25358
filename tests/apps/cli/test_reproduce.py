"""`pbprompt research reproduce`, with a recipe that takes seconds."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import pbprompt
from pbprompt.apps.cli.reproduce import reproduce
from pbprompt.errors import InputError
from pbprompt.research.costs import MethodCost
from pbprompt.research.runs import RunStore

RECIPE = """
title: A small table
task: few-shot
backbone: lite
datasets: [photos]
shots: [1, 2]
seeds: [1, 2]
rows:
  - {label: ours, method: coop, overrides: {epochs: 3}}
  - {label: plain, method: zeroshot}
"""

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"

app = typer.Typer()
app.command()(reproduce)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the verb in a folder that holds `small.yaml`, and photos of three classes."""
    for name in ("bird", "clock", "mammal"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for image in sorted((SAMPLE / name).iterdir())[:8]:
            shutil.copy(image, tmp_path / "photos" / name)
    (tmp_path / "small.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call


def test_without_a_table_the_recipes_are_listed(run):
    result = run()
    assert result.exit_code == 0 and "sample-few-shot" in result.stdout and "few-shot-vit" in result.stdout


@pytest.mark.slow
def test_a_table_from_nothing_to_a_page_and_again_without_running(run, tmp_path, suite_cache):
    arguments = ("small.yaml", "--shots", "1", "--seeds", "2", "--set", "epochs=1", "--format", "csv")
    result = run(*arguments, "--jobs", "1", "--report", "page")
    assert result.exit_code == 0, result.output
    assert "2/2, 0:00:00 left" in result.stderr
    store = RunStore(tmp_path / "runs")
    records = {record.config.method: record for record in store.records()}
    assert set(records) == {"coop", "zeroshot"}
    assert records["coop"].config.overrides == ("epochs=3", "epochs=1")
    assert records["coop"].settings["epochs"] == 1
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    printed = {row["row"]: float(row["mean"]) for row in rows if row["mean"]}
    for label, method in (("ours", "coop"), ("plain", "zeroshot")):
        accuracy = 100 * records[method].accuracy("photos")
        assert printed[label] == pytest.approx(accuracy, abs=0.01)
    assert "A small table" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert len(list((suite_cache / "features").rglob("*.safetensors"))) > 0

    before = (tmp_path / "runs" / "records.jsonl").read_bytes()
    again = run(*arguments)
    assert again.exit_code == 0 and again.stdout == result.stdout and "left" not in again.stderr
    assert (tmp_path / "runs" / "records.jsonl").read_bytes() == before


def test_a_failed_run_is_named_and_the_exit_code_says_so(run, tmp_path, sweeps_here):
    recipe = RECIPE.replace("method: coop, overrides: {epochs: 3}", "method: nearest-mean")
    (tmp_path / "small.yaml").write_text(recipe)
    result = run("small.yaml", "--shots", "1", "--seeds", "1", "--set", "epochs=1", "--jobs", "1")
    assert result.exit_code == 1
    assert "failed: few-shot on photos: nearest-mean, epochs=1, 1 shot, seed 1: " in result.stderr
    assert "leave epochs and budget at 0" in result.stderr and "failures.jsonl" in result.stderr
    assert "plain" in result.stdout, "the table is printed with what there is"
    assert "here on" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("few-shot-vitt",), "did you mean 'few-shot-vit'"),
        (("heat-map",), "did you mean 'heat-maps'"),
        (("computation-costs",), "did you mean 'computation-cost'"),
        (("absent.yaml",), "absent.yaml: no such recipe file"),
        (("small.yaml", "--shots", "1,few"), "'few' is not a number"),
        (("small.yaml", "--ray-address", "host:1"), "--ray-address: is for --executor ray"),
        (("small.yaml", "--gpus-per-run", "0.5"), "--gpus-per-run: is for --executor ray or slurm"),
        (("small.yaml", "--set", "epocs=1"), "did you mean 'epochs'"),
        (("small.yaml", "--dataset", "sampel"), "did you mean"),
    ],
)
def test_what_cannot_be_meant_is_one_line(run, tmp_path, arguments, says):
    result = run(*arguments)
    assert isinstance(result.exception, InputError) and says in str(result.exception)
    assert "\n" not in str(result.exception) and not (tmp_path / "runs" / "records.jsonl").exists()


SCRIPT = """
import typer
from PIL import Image
from pbprompt.apps.cli.reproduce import reproduce

if __name__ == "__main__":
    app = typer.Typer()
    app.command()(reproduce)
    app()
"""


@pytest.mark.slow
def test_ctrl_c_is_exit_code_130_and_the_same_command_goes_on(run, child, tmp_path, sweeps_here):
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = ["small.yaml", "--shots", "1", "--seeds", "1", "--jobs", "1"]
    head, ours, plain = RECIPE.rstrip().rsplit("\n", 2)
    recipe = "\n".join([head, plain, ours])  # what is quick first
    (tmp_path / "small.yaml").write_text(recipe.replace("epochs: 3", "epochs: 1000000"))
    process = child(
        [sys.executable, "script.py", *arguments],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
    )
    store = RunStore(tmp_path / "runs")
    while not (store.finished() or store.failures()) and process.poll() is None:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "stopped with 1 of 2 runs: the same command goes on" in errors and "Traceback" not in errors
    (tmp_path / "small.yaml").write_text(recipe)
    result = run(*arguments)
    assert result.exit_code == 0 and "1/1" in result.stderr
    assert [record.config.method for record in store.records()] == ["zeroshot", "coop"]


def test_a_picture_is_one_command(run, tmp_path):
    (tmp_path / "lines.txt").write_text("a bird\na bird on a branch\nan apple\n")
    short = ("--set", "epochs=1", "--shots", "1", "--seeds", "2")
    result = run("sample-captions", "--captions", "lines.txt", *short)
    assert result.exit_code == 0, result.output
    assert "wrote runs/sample-captions.png" in result.stderr
    with Image.open(tmp_path / "runs" / "sample-captions.png") as picture:
        assert picture.width > 300
    told = json.loads((tmp_path / "runs" / "sample-captions.json").read_text())
    assert (told["seed"], told["shots"], told["settings"]["epochs"]) == (2, 1, 1)
    said = {caption["text"] for caption in told["panels"][0]["prompts"][0]["captions"]}
    assert said < {"a bird", "a bird on a branch", "an apple"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sample-few-shot", "--captions", "lines.txt"), "--captions: only with a picture"),
        (("sample-captions", "--shots", "1,2"), "--shots: a picture is of one model"),
        (("own.yaml",), "own: give --captions, a text file"),
    ],
)
def test_pictures_that_cannot_be_drawn(run, tmp_path, arguments, message):
    (tmp_path / "own.yaml").write_text("title: Own\npicture: captions\nbackbone: lite\ndatasets: sample\n")
    result = run(*arguments)
    assert isinstance(result.exception, InputError) and message in str(result.exception)


@pytest.mark.parametrize("style", ["terminal", "markdown"])
def test_the_table_of_costs(run, monkeypatch, style):
    rows = [
        MethodCost("CoCoOp", 35360, 35360, 12.34, 37.0),
        MethodCost("PBPrompt", 1577984, 1577984, 99.0, 541.0),
    ]
    monkeypatch.setattr("pbprompt.research.costs.computation_cost", lambda device: rows)
    result = run("computation-cost", "--format", style)
    assert result.exit_code == 0, result.output
    assert all(text in result.stdout for text in ("CoCoOp", "1,577,984", "12.3", "541", "images/s"))


STALE = """
from pbprompt import register
from pbprompt.prompts.rivals.coop import CoOp


@register("louder")
class Louder(CoOp):
    def prompt_vectors(self, samples, generator):
        return 1 * self.context[None, None]
"""


def test_changed_code_prints_new_figures(run, tmp_path, monkeypatch):
    """Of a plugin: what was run before is run again, and the old figures are listed, not shown."""
    from pbprompt import registry
    from pbprompt.research import provenance

    def forget():
        monkeypatch.setattr(registry, "_methods", dict(known))
        sys.modules.pop("pbprompt_plugin_louder", None)
        provenance._parsed.cache_clear()
        provenance._hash.cache_clear()

    known, plugin = registry.methods(), tmp_path / "louder.py"
    monkeypatch.setenv(registry.PLUGINS, str(plugin))
    small = RECIPE.replace("method: coop", "method: louder").replace("[1, 2]", "[1]")
    (tmp_path / "small.yaml").write_text(small, encoding="utf-8")
    tables = []
    for text in (STALE, "# the same\n" + STALE, STALE.replace("1 * self", "-300 * self")):
        plugin.write_text(text, encoding="utf-8")
        forget()
        result = run("small.yaml", "--device", "cpu", "--jobs", 1, "--format", "csv")
        assert result.exit_code == 0, result.output
        tables.append((result.stdout, result.stderr))
    forget()
    (first, said), (again, reused), (changed, mixed) = tables
    assert "0 runs reused, 2 new" in said and "2 runs reused, 0 new" in reused and again == first
    assert "1 runs reused, 1 new" in mixed and "1 runs of other code are left out" in mixed
    ours, plain = ([line for line in first.splitlines() if word in line] for word in ("ours", "plain"))
    assert ours and plain and not set(ours) & set(changed.splitlines())
    assert ",".join(plain[0].split(",")[:5]) in changed  # what did not change is as it was
    assert len(RunStore(tmp_path / "runs").records()) == 3


def test_precision_is_part_of_a_runs_name_and_half_rows_run_in_float32_on_a_cpu(run, monkeypatch):
    recipe = Path("small.yaml")
    recipe.write_text(RECIPE.replace("method: coop,", "method: coop, precision: float16,"))
    part = ("small.yaml", "--runs", "runs", "--shots", "1", "--seeds", "1", "--jobs", "1", "--device", "cpu")
    result = run(*part)
    assert result.exit_code == 0, result.output
    assert "small: on a CPU 1 rows of half precision run in float32" in result.stderr
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    result = run(*part, "--precision", "bfloat16")
    assert result.exit_code == 0 and "0 runs reused, 2 new" in result.stderr
    made = {(record.config.method, record.config.precision) for record in RunStore("runs").records()}
    assert made == {(method, bits) for method in ("coop", "zeroshot") for bits in ("float32", "bfloat16")}
    assert run(*part, "--precision", "float16").exit_code == 1


@pytest.fixture
def timed(monkeypatch):
    """No step is taken: each lasts a second and a class of it a hundredth."""
    from pbprompt.research.costs import DryRun, Rate

    monkeypatch.setattr(DryRun, "_timed", lambda self, run: Rate(1, 0.01, 0.04))
    monkeypatch.setattr("pbprompt.research.costs._seconds_an_image", lambda *towers: 0.1)


def test_a_dry_run_says_what_tables_and_pictures_cost(run, timed):
    result = run("small.yaml", "sample-heat-maps", "computation-cost", "--dry-run", "--device", "cpu")
    assert result.exit_code == 0, result.output
    small, heat_maps, cost = (result.stdout.index(text) for text in ("small:", "sample-heat-maps:", "comput"))
    assert small < heat_maps < cost and "trains nothing" in result.stdout[cost:]
    ours = next(line for line in result.stdout.splitlines() if line.split()[:1] == ["ours"])
    assert ours.split()[1:3] == ["4", "12"] and "4 %" in ours  # 2 shots x 2 seeds, 3 epochs of a batch
    assert "pbprompt" in result.stdout[heat_maps:cost] and not Path("runs").exists()


def test_without_a_table_a_dry_run_is_a_line_for_every_recipe(run, timed):
    from pbprompt.research.recipes import recipe_names

    result = run("--dry-run", "--format", "markdown", "--device", "cpu")
    assert result.exit_code == 0, result.output
    lines = [line.split("|")[1:-1] for line in result.stdout.splitlines()[2:]]
    assert [line[0].strip() for line in lines] == recipe_names()
    steps = {name.strip(): int(count.replace(",", "")) for name, _, count, _ in lines}
    assert steps["eta"] == steps["samples"] == 8_340_120
