"""Try-outs of every part run on a CPU, print tables or JSON, and fill one file."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.speed import parts
from benchmarks.speed.__main__ import app
from pbprompt.errors import InputError


def invoke(*words):
    result = CliRunner().invoke(app, [*map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.slow
def test_steps_agree_with_the_plain_way():
    report = json.loads(invoke("measure", "steps", "--quick", "--json").stdout)
    rows = report["parts"]["steps"]["rows"]
    assert [row["method"] for row in rows] == ["coop", "cocoop", "plot", "vpt", "pbprompt"]
    for row in rows:
        assert row["difference"] < 1e-4
        assert row["ours_ms"] > 0 and row["plain_ms"] > 0 and row["plain_gib"] > row["ours_gib"]
        assert row["floor_share"] == pytest.approx(row["floor_ms"] / row["ours_ms"])
        assert row["floor_ms"] == pytest.approx(row["floor_gflop"] / row["product_tflops"])


@pytest.mark.slow
def test_the_text_engine_on_a_few_classes():
    report = json.loads(invoke("text", "--classes", "3", "--repeats", "1", "--json").stdout)
    assert [row["context"] for row in report["rows"]] == ["per class", "per class", "shared", "shared"]
    assert all(row["speedup"] > 0 and row["plain_gib"] > 0 for row in report["rows"])


@pytest.mark.slow
def test_fits_end_at_the_same_loss():
    rows = json.loads(invoke("measure", "fit", "--quick", "--json").stdout)["parts"]["fit"]["rows"]
    compared = [row for row in rows if "plain_loss" in row]
    assert len(compared) == 5
    for row in compared:
        assert row["ours_loss"] == pytest.approx(row["plain_loss"], rel=1e-3)
    assert all(row["floor_s"] > 0 for row in rows if row.get("from") == "cached features")
    assert [row["steps_run"] for row in rows if row.get("from") == "cached features"] == [6] * 5


@pytest.mark.slow
def test_the_other_parts_fill_one_file(tmp_path):
    out = tmp_path / "results.json"
    names = ("predict", "imagenet", "classes", "growth", "stream", "conjugate", "stages")
    for name in names:
        shown = invoke("measure", name, "--quick", "--out", out).stdout
        assert "threads" in shown
    found = json.loads(out.read_text())["parts"]
    assert tuple(found) == names
    assert all(part["complete"] and part["quick"] for part in found.values())
    assert {row["what"] for row in found["predict"]["rows"]} == {
        "PBPrompt, 20 samples",
        "CoOp",
        "CoCoOp",
        "image tower",
    }
    assert found["imagenet"]["rows"][0]["images"] == 32 and found["imagenet"]["rows"][0]["seconds"] > 0
    assert 50 < found["imagenet"]["rows"][0]["kb_an_image"] < 200
    assert [row["classes"] for row in found["classes"]["rows"]] == [300, 300]
    assert {row["grows"] for row in found["growth"]["rows"]} == {
        "classes",
        "samples",
        "patches",
        "batch",
        "images",
    }
    assert found["stream"]["rows"][0]["images"] == 20_000 and found["stream"]["rows"][0]["to_copy"] > 0
    assert [row["value"] for row in found["conjugate"]["rows"]] == [64, 128, 4, 8]
    *staged, whole, _, _ = found["stages"]["rows"]
    assert whole["stage"] == "all" and whole["seconds"] == pytest.approx(
        sum(row["seconds"] for row in staged)
    )
    assert {"imports", "names read", "experts", "answers"} <= {row["stage"] for row in staged}
    invoke("report", out, "--out", tmp_path / "performance.md")
    text = (tmp_path / "performance.md").read_text()
    assert "(try-out sizes)" in text and "### Prediction" in text
    assert "images/performance-conjugate.svg" in text and "| images, one more | 64 → 128 |" in text
    assert (tmp_path / "images" / "performance-conjugate.svg").exists()


def test_a_part_that_fails_does_not_cost_the_others(tmp_path, monkeypatch):
    def breaking(options):
        raise RuntimeError("no more")
        yield

    monkeypatch.setattr(parts, "PARTS", {"steps": breaking, "growth": lambda options: iter([{"grows": "a"}])})
    out = tmp_path / "results.json"
    result = invoke("measure", "--quick", "--out", out)
    assert result.exit_code == 1 and "steps failed: RuntimeError: no more" in result.stderr
    assert json.loads(out.read_text())["parts"]["growth"]["rows"] == [{"grows": "a"}]
    monkeypatch.setattr(parts, "PARTS", {"growth": lambda options: iter([{"grows": "a"}])})
    assert list(json.loads(invoke("measure", "--quick", "--json").stdout)["parts"]) == ["growth"]


def test_a_device_that_is_not_there():
    with pytest.raises(InputError, match="device 'tpu'"):
        invoke("measure", "steps", "--device", "tpu")


def test_a_part_that_is_not_there():
    with pytest.raises(InputError, match="no part is named 'step': choose of steps, fit"):
        invoke("measure", "step")
