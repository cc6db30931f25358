"""`pbprompt explain`, as a user runs it."""

import base64
import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pbprompt
from pbprompt.apps.explain.cases import box, cases, told_apart
from pbprompt.errors import InputError
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.images import open_image

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
CAT = SAMPLE / "mammal" / "1f408.webp"
CLASSES = ("clock", "heart", "mammal")


def test_picture_and_arrays(run, model, tmp_path):
    heat, arrays = tmp_path / "heat.png", tmp_path / "heat.npz"
    code, out, err = run("explain", CAT, "--model", model, "--samples", 2, "--out", heat, "--arrays", arrays)
    assert code == 0, err
    with np.load(arrays) as maps, Image.open(heat) as picture:
        assert set(maps["classes"]) == set(CLASSES)
        assert maps["prompt_to_patch"].shape == maps["patch_to_prompt"].shape == (2, 3, 7, 7)
        assert (np.diff(maps["probabilities"]) <= 0).all()
        assert picture.size == (6 + 4 * 174, 28 + 3 * 212)
        shown = [f"{n} {p:.1%}" for n, p in zip(maps["classes"], maps["probabilities"], strict=True)]
        assert out.splitlines() == shown
    assert str(heat) in err and str(arrays) in err


def test_a_new_name_is_added_and_told(run, model, tmp_path):
    arrays = tmp_path / "a.npz"
    options = ("--class", "zebra", "--class", "Heart", "--reading", "contribution", "--arrays", arrays)
    code, out, err = run("explain", CAT, "--model", model, "--out", tmp_path / "a.png", *options)
    assert code == 0, err
    assert "new to the model, added by name: zebra" in err
    assert [line.split()[0] for line in out.splitlines()] == ["zebra", "heart"]
    with np.load(arrays) as maps:
        assert maps["contribution"].shape == (4, 2, 7, 7)


def test_the_seed_and_the_temperature_reach_the_maps(run, model, tmp_path):
    kept = []
    for name, options in (("a", ()), ("b", ()), ("c", ("--seed", 1)), ("d", ("--temperature", 0.01))):
        file = tmp_path / f"{name}.npz"
        assert not run(
            "explain", CAT, "--model", model, "-o", tmp_path / "x.png", "--arrays", file, *options
        )[0]
        with np.load(file) as maps:
            kept.append(maps["prompt_to_patch"])
    assert np.array_equal(kept[0], kept[1]) and not np.array_equal(kept[0], kept[2])
    assert kept[3].max() > 2 * kept[0].max()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--out", "heat.jpg"), "--out heat.jpg: give the name of a file that ends in .png"),
        (("--out", "h.png", "--arrays", "h.txt"), "h.txt: give the name of a file that ends in .npz"),
        (("--out", "h.png", "--reading", "heat"), "prompt-to-patch"),
        (("--out", "h.png", "--temperature", "-1"), "temperature"),
        (("--out", "h.png", "--class", "  "), "class name"),
    ],
)
def test_bad_options_are_one_line(run, model, options, says):
    code, out, err = run("explain", CAT, "--model", model, *options)
    assert code == 2 and says in err and not out
    assert "Traceback" not in err


def test_bad_files_are_one_line(run, tmp_path):
    code, _, err = run("explain", tmp_path / "absent.jpg", "--model", tmp_path, "--out", "h.png")
    assert code == 2 and "absent.jpg" in err and len(err.splitlines()) == 1
    code, _, err = run("explain", CAT, "--model", tmp_path, "--out", "h.png")
    assert code == 2 and "no model here" in err and len(err.splitlines()) == 1


def test_an_even_plan_is_told(run, model, tmp_path):
    options = ("explain", CAT, "--model", model, "--out", tmp_path / "a.png")
    assert "near even" not in run(*options)[2]
    code, _, err = run(*options, "--reading", "prompt-to-patch")
    assert code == 0 and "prompt-to-patch is near even for" in err and "--reading contribution" in err
    assert "near even" not in run(*options, "--reading", "prompt-to-patch", "--temperature", "0.005")[2]


def test_cases_are_parts_beside_training_photographs(run, model, tmp_path):
    photos, fitted, drawn = model.parent / "photos", tmp_path / "fitted", tmp_path / "cases.png"
    code, _, err = run("fit", photos, "--set", "patches=true", "--out", fitted)
    assert code == 0, err
    code, out, err = run("explain", CAT, "--model", fitted, "--reading", "cases", "--out", drawn)
    assert code == 0, err
    assert "logit by patches" in out and ".webp" in out and "are not there" not in err
    with Image.open(drawn) as picture:
        rows = [float(line.split()[1].removesuffix("%")) for line in out.splitlines()]
        assert picture.size == (4 * 354 + 6, len(rows) * 222 + 6) and all(row >= 5 for row in rows[1:])
        there = np.asarray(picture)
    code, _, err = run(
        "explain", CAT, "--model", fitted, "--reading", "cases", "--photographs", tmp_path, "--out", drawn
    )
    assert code == 0 and "give --photographs FOLDER" in err
    with Image.open(drawn) as picture:
        assert (np.asarray(picture) != there).any()
    code, _, err = run("explain", CAT, "--model", model, "--reading", "cases", "--out", drawn)
    assert code == 2 and "--set patches=true" in err


def test_served_parts_are_those_and_never_of_a_file_elsewhere(run, model, tmp_path):
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    from starlette.testclient import TestClient

    from pbprompt.apps.serve.app import create_app

    photos, folder = model.parent / "photos", tmp_path / "fitted"
    code, _, err = run("fit", photos, "--set", "patches=true", "--out", folder)
    assert code == 0, err
    fitted = TunedModel.load(folder)

    def told(served: TunedModel, **given) -> list:
        with TestClient(create_app(served, **given), "http://localhost") as client:
            said = client.post("/explain", files=[("file", CAT.read_bytes())], data={"class": "mammal"})
        assert said.status_code == 200, said.text
        return said.json()["parts"]

    assert told(fitted) == []  # nobody has said that the photographs may be shown
    [of_class] = cases(fitted, open_image(CAT), ["mammal"])
    shown = told(fitted, photographs=photos)
    assert [(one["logit"], tuple(one["box"]), one["photograph"]) for one in shown] == [
        (pytest.approx(part.logit, abs=1e-5), part.box, part.photograph.name) for part in of_class.parts
    ]
    assert Image.open(io.BytesIO(base64.b64decode(shown[0]["picture"]))).size == (342, 168)
    elsewhere = replace(fitted.info.data, photographs=("../" * 9 + "etc/passwd",) * 99)
    odd = replace(fitted, info=replace(fitted.info, data=elsewhere))
    with pytest.raises(InputError, match="names a training photograph that is not in"):
        cases(odd, open_image(CAT), ["mammal"], photos)


def test_a_report_shows_what_spoke_for_a_mistake(run, model, tmp_path):
    data, folder, page = tmp_path / "data", tmp_path / "fitted", tmp_path / "report.html"
    for name in CLASSES:
        for part, at in (("train", slice(0, 3)), ("test", slice(3, 5))):
            shutil.copytree(model.parent / "photos" / name, data / part / name)
            kept = sorted((data / part / name).iterdir())
            for file in {*kept} - {*kept[at]}:
                file.unlink()
    wrong = next((data / "test" / "clock").iterdir())
    wrong.rename(data / "test" / "heart" / wrong.name)  # so that there is a mistake
    code, _, err = run("fit", data, "--set", "patches=true", "--out", folder)
    assert code == 0, err
    code, _, err = run("evaluate", folder, data, "--html", page)
    assert code == 0 and page.read_text().count("What looked alike") == 1, err
    code, _, err = run("evaluate", model, data, "--html", page)
    assert code == 0 and "What looked alike" not in page.read_text(), err


def test_parts_are_of_different_photographs_and_places():
    # 3 × 3 patches: 0 is best; 1 is beside it; 8 is of the same photograph; 2 is next; 6 speaks against
    adds, photographs = [0.9, 0.8, 0.5, 0.1, 0.1, 0.1, -0.3, 0.2, 0.7], [0, 1, 2, 3, 3, 3, 4, 5, 0]
    assert told_apart(adds, photographs, 3) == [0, 2, 7]
    assert told_apart([0.1] * 100, list(range(100)), 10) == [0, 2, 4, 6]
    assert told_apart([0.5, 0.4], [-1, 0], 2) == [1]


@pytest.mark.parametrize(
    ("place", "side", "where"),
    [
        (8, 7, (1 / 7, 1 / 7, 2 / 7, 2 / 7)),
        (8, 14, (1 / 7, 1 / 7, 2 / 7, 2 / 7)),
        (24, 9, (8 / 9, 8 / 9, 1, 1)),
    ],
)
def test_where_a_patch_is(place, side, where):
    assert box(place, side) == pytest.approx(where)
