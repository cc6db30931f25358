"""The document holds the figures of the results, tells goals met from goals missed, and has its plot."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.speed.goals import GOALS, judged
from benchmarks.speed.report import document, read_tried, write_report
from benchmarks.speed.tables import digits, table
from pbprompt.errors import InputError

CPU = {"kind": "cpu", "device": "Fast CPU", "cpu": "Fast CPU", "cores": 2, "threads": 2}
GPU = CPU | {"kind": "cuda", "device": "Big GPU"}


def part(rows, machine=GPU, **more):
    return {
        "machine": machine,
        "versions": {"python": "3.11", "torch": "2.11"},
        "commit": "abc123",
        "date": "2025-01-02T03:04:05+00:00",
        "command": "make bench",
        "quick": False,
        "complete": True,
        "seconds": 12.0,
        "rows": rows,
        **more,
    }


def step(method, classes, ours):
    return {
        "method": method,
        "backbone": "ViT-B/16",
        "precision": "float16",
        "classes": classes,
        "ours_ms": ours,
        "plain_ms": 101.0,
        "ratio": 101 / ours,
    }


def growing():
    sizes = {"classes": (50, 100), "images": (32, 64)}
    return [
        {"grows": size, "value": value, "backbone": "lite", "ms": 3.0 * value, "gib": 0.01 * value}
        for size, values in sizes.items()
        for value in values
    ]


def goals_of(kind, parts):
    return {goal.split(":")[0]: (measured, met) for goal, measured, met in judged(kind, parts)}


def test_goals_are_judged_by_the_rows():
    rows = [step("coop", 1000, 1.5), step("pbprompt", 1000, 7.5), step("coop", 101, 0.8)]
    found = goals_of("cuda", {"steps": part(rows)})
    assert found["CoOp step, 1,000 classes"] == ("1.5 ms", "yes")
    assert found["PBPrompt step, 1,000 classes"] == ("7.5 ms", "**no**")
    assert found["CoOp step, 101 classes"] == ("0.8 ms", "yes")
    assert found["CoCoOp step, 101 classes"] == ("not measured", "–")
    assert len(found) == len(GOALS["cuda"])


def test_goals_over_several_rows_take_the_worst_or_the_best():
    rows = [
        {"what": "PBPrompt, 20 samples", "backbone": "ViT-B/16", "classes": 101, "ratio": 0.99},
        {"what": "PBPrompt, 20 samples", "backbone": "ViT-B/16", "classes": 1000, "ratio": 0.95},
        {"what": "image tower", "backbone": "ViT-B/16", "way": "eager", "precision": "float16",
         "images_per_second": 6400.0},
        {"what": "image tower", "backbone": "ViT-B/16", "way": "compiled", "precision": "bfloat16",
         "images_per_second": 9100.0},
    ]  # fmt: skip
    many = [{"method": m, "backbone": "ViT-B/16", "classes": 21_000, "gib": g} for m, g in
            (("coop", 3.0), ("pbprompt", 7.0))]  # fmt: skip
    found = goals_of("cuda", {"predict": part(rows), "classes": part(many)})
    beside = found["prediction with 20 samples beside the bare image tower"]
    assert beside == ("0.95 × (1000)", "**no**")
    assert found["image tower"] == ("9,100 images/s (bfloat16, compiled)", "yes")
    assert found["a step over 21,000 classes"] == ("7 GiB (pbprompt)", "yes")


def test_the_cached_fit_says_how_much_of_it_was_run():
    row = {"from": "cached features", "backbone": "lite", "classes": 100, "steps": 2500}
    rows = [
        row | {"method": "coop", "ours_s": 50.0, "steps_run": 2500},
        row | {"method": "pbprompt", "ours_s": 170.0, "steps_run": 100},
    ]
    found = goals_of("cpu", {"fit": part(rows, CPU)})
    text = found["fit of 100 classes × 16 shots × 50 epochs from cached features"]
    assert text == ("170 s (pbprompt, from its first 100 of 2,500 steps)", "yes")
    faster = row | {"method": "pbprompt", "settings": "batch_size=0", "ours_s": 40.0, "steps_run": 100}
    text = goals_of("cpu", {"fit": part([*rows, faster], CPU)})[
        "fit of 100 classes × 16 shots × 50 epochs from cached features"
    ]
    beside = "; 40 s with batch_size=0"
    assert text == (f"170 s (pbprompt, from its first 100 of 2,500 steps{beside})", "yes")


def test_try_outs_meet_no_goal():
    found = goals_of("cuda", {"steps": part([step("coop", 1000, 1.0)], quick=True)})
    assert found["CoOp step, 1,000 classes"] == ("not measured", "–")


def test_a_table_has_the_filled_columns_alone():
    headings, rows = table("steps", [step("coop", 1000, 3.5), {"method": "vpt", "ours_ms": 20.0}])
    assert headings == ["method", "backbone", "precision", "classes", "plain, ms", "ours, ms", "ratio"]
    assert rows[0] == ["CoOp", "ViT-B/16", "float16", "1,000", "101", "3.5", "28.9×"]
    assert rows[1] == ["VPT", "–", "–", "–", "–", "20", "–"]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.01234, "0.0123"), (3.456, "3.46"), (12345.6, "12,346"), (1e-7, "1e-07")]
)
def test_digits(value, text):
    assert digits(value) == text


def test_the_document_says_where_each_figure_was_measured(tmp_path):
    gpu = {"steps": part([step("coop", 1000, 3.5)]), "growth": part(growing())}
    cpu = {"growth": part(growing(), CPU, complete=False, commit="")}
    results = {"gpu.json": {"format": 1, "parts": gpu}, "cpu.json": {"format": 1, "parts": cpu}}
    for name, content in results.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "tried.yaml").write_text("- A faster thing was not faster.\n")
    out = tmp_path / "docs" / "performance.md"
    write_report([tmp_path / name for name in results], out)
    text = out.read_text()
    first, second = text.index("## Big GPU"), text.index("## Fast CPU, 2 threads")
    assert text[first:second].count("| CoOp | ViT-B/16 | float16 | 1,000 | 101 | 3.5 | 28.9× |") == 1
    assert "| steps | `make bench` | abc123 | 2025-01-02 | 12 s | python 3.11, torch 2.11 |" in text
    assert "growth (broken off)" in text[second:]
    assert "| Big GPU | classes | 50 → 100 | 150 → 300 ms | 0.5 → 1 GiB | 1× |" in text
    assert text.rstrip().endswith("## Tried and left out\n\n- A faster thing was not faster.")
    drawn = ElementTree.parse(out.parent / "images" / "performance.svg").getroot()
    assert {"Big GPU", "Fast CPU, 2 threads", "classes C", "images per run"} <= set(drawn.itertext())


def test_a_busy_machine_is_told_of():
    quiet, busy = part([step("coop", 101, 2.0)], load=0.5), part([step("coop", 101, 2.0)], load=900.0)
    for measured, told in ((quiet, False), (busy, True)):
        text = document({Path("a.json"): {"format": 1, "parts": {"steps": measured}}}, [])
        assert ("machine busy: load 900" in text) is told


def test_without_growth_there_is_no_plot(tmp_path):
    text = document({Path("a.json"): {"format": 1, "parts": {"steps": part([step("coop", 101, 2.0)])}}}, [])
    assert "Growth" not in text and "Tried" not in text


def test_results_are_found_among_other_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    (folder / "other.json").write_text('{"title": "something else"}')
    with pytest.raises(InputError, match="holds no results"):
        write_report([], tmp_path / "out.md")
    results = {"format": 1, "parts": {"steps": part([step("coop", 101, 2.0)])}}
    (folder / "gpu.json").write_text(json.dumps(results))
    write_report([], tmp_path / "out.md")
    assert "`benchmarks/results/gpu.json`" in (tmp_path / "out.md").read_text()


@pytest.mark.parametrize("content", ["a: 1", "- [", "- 1\n- 2"])
def test_a_bad_list_of_what_was_tried(tmp_path, content):
    path = tmp_path / "tried.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=r"tried\.yaml"):
        read_tried(path)
