"""`pbprompt research datasets`: what is printed and the exit code."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from pbprompt.apps.cli.datasets import app
from pbprompt.errors import InputError
from pbprompt.vision.images.build_dataset import OF_A_DRAW
from pbprompt.vision.images.fewshot import read_draw
from pbprompt.vision.images.sources import open_dataset


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def photos(tmp_path):
    for name in ("red_fox", "tram"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for place in range(10):
            Image.new("RGB", (2, 2)).save(tmp_path / "photos" / name / f"{place}.png")
    return tmp_path / "photos"


def test_list():
    result = run()
    assert result.exit_code == 0
    for word in ("caltech101", "imagenet_sketch", "4,128", "MIT", "https://image-net.org"):
        assert word in result.output


def test_check_fails_with_what_is_missing(tmp_path):
    result = run("check", "dtd", "--root", tmp_path)
    assert result.exit_code == 1 and "split_zhou_DescribableTextures.json" in result.output


def test_check_passes(tmp_path, monkeypatch):
    folder = tmp_path / "eurosat"
    (folder / "2750").mkdir(parents=True)
    Image.new("RGB", (2, 2)).save(folder / "2750" / "x.jpg")
    rows = [["x.jpg", label, f"c{label}"] for label in range(10)]
    split = {"train": rows * 1_350, "val": rows * 540, "test": rows * 810}
    (folder / "split_zhou_EuroSAT.json").write_text(json.dumps(split))
    monkeypatch.setenv("PBPROMPT_DATA", str(tmp_path))
    result = run("check", "EuroSAT")
    assert result.exit_code == 0 and "13,500" in result.output and "complete" in result.output


def test_unknown_names_propagate():
    with pytest.raises(InputError, match="did you mean"):
        run("check", "caltech")


def test_show(photos):
    (photos / "tram" / "note.txt").write_text("x")
    result = run("show", photos)
    assert result.exit_code == 0
    for word in ("2 classes (red_fox, tram); 20 images", "skipped tram/note.txt: not an image"):
        assert word in result.output
    assert open_dataset(photos).content_hash in result.output


def test_show_names_files_without_their_control_characters(photos):
    (photos / "\x1b[31mnote.txt").write_text("hello")
    shown = run("show", photos).output
    assert r"skipped \u001b[31mnote.txt" in shown and "\x1b" not in shown


def test_show_decodes_where_asked(photos):
    broken = photos / "tram" / "3.png"
    broken.write_bytes(broken.read_bytes()[:40])
    assert run("show", photos).exit_code == 0
    result = run("show", photos, "--decode")
    assert result.exit_code == 1 and f"cannot read image {broken}" in result.output


def test_draw(photos, tmp_path):
    out = tmp_path / "draw.jsonl"
    result = run("draw", photos, "--shots", 2, "--seed", 3, "--out", out)
    drawn = read_draw(out, open_dataset(photos, seed=3, held_out=OF_A_DRAW))
    assert result.exit_code == 0 and drawn.hash in result.output and len(drawn.train) == 4


@pytest.mark.parametrize("width", [60, 80])
def test_the_list_cuts_nothing(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    output = run().output
    assert "…" not in output
    if width == 80:
        assert "imagenet-adversarial" in output and "20,200" in output and "1,281,167" in output
        assert all(len(line) <= 80 for line in output.partition("Licences")[0].splitlines())
