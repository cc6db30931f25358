"""`pbprompt research report`: the files it writes, from a real run."""

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from pbprompt.apps.cli.runs import report
from pbprompt.errors import InputError
from pbprompt.research.protocol import prepare_run, run_task
from pbprompt.research.runs import RunConfig, RunStore
from pbprompt.vision.features.cache import FeatureCache

app = typer.Typer()
app.command()(report)


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.output


def coloured_squares(root):
    for name, colour in (("red square", (220, 30, 30)), ("blue square", (30, 30, 220))):
        for number in range(10):
            path = root / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), tuple(min(value + number, 255) for value in colour)).save(path)


def test_report(tmp_path, lite, monkeypatch):
    monkeypatch.chdir(tmp_path)
    coloured_squares(tmp_path / "squares")
    store = RunStore(tmp_path / "runs")
    bank = FeatureCache(lite, progress=False)
    for method in ("zeroshot", "nearest-mean"):
        config = RunConfig(task="few-shot", dataset="./squares", method=method, shots=2)
        record, arrays = run_task(prepare_run(config), bank)
        store.add(record, arrays)
    out = tmp_path / "new" / "report"
    assert str(out / "index.html") in run(store.folder, "--out", out)
    text = (out / "index.html").read_text(encoding="utf-8")
    assert f"{100 * record.accuracy('./squares'):.2f}" in text and "lite is not CLIP" in text
    assert [path.name for path in sorted((out / "figures").iterdir())] == [
        "lite-few-shot-squares-nearest-mean-reliability.svg",
        "lite-few-shot-squares-risk-coverage.svg",
        "lite-few-shot-squares-zero-shot-reliability.svg",
    ]


def test_no_runs(tmp_path):
    with pytest.raises(InputError, match="nowhere: no such folder"):
        run(tmp_path / "nowhere", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
