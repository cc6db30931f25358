"""`pbprompt predict`, as a user runs it."""

import hashlib
import json
import math
import shutil
import sys
from pathlib import Path

import pytest
from siglip_folder import siglip_model, write_siglip

import pbprompt
from pbprompt.apps.cli import main

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    shutil.copy(SAMPLE / "mammal" / "1f408.webp", folder / "felix.jpg")
    shutil.copy(SAMPLE / "musical-instrument" / "1f3b8.webp", folder / "strat.jpg")
    return folder


def test_json_lines_name_what_is_there(run, images):
    code, out, _ = run("predict", str(images), "--classes", "guitar,cat", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [Path(record["image"]).name for record in records] == ["felix.jpg", "strat.jpg"]
    assert [record["label"] for record in records] == ["cat", "guitar"]
    for record in records:
        assert list(record["scores"]) == ["guitar", "cat"]
        assert sum(record["scores"].values()) == pytest.approx(1, abs=1e-4)
        assert record["score"] == max(record["scores"].values())


def test_table_globs_and_classes_file(run, images, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("guitar\n\ncat\ncar\n")
    code, out, _ = run("predict", str(images / "*.jpg"), "--classes-file", str(names), "--top-k", "2")
    assert code == 0
    assert "strat.jpg" in out and "guitar" in out and " 3. " not in out


def test_each_name_by_itself(run, images, tmp_path):
    folder = write_siglip(tmp_path / "siglip", siglip_model())
    asked = ("predict", images / "felix.jpg", "--backbone", folder, "--json", "--classes")
    code, out, err = run(*asked, "dog,cat", "--independent")
    assert code == 0, err
    both = json.loads(out)["scores"]
    assert sum(both.values()) != pytest.approx(1, abs=1e-3) and all(0 < p < 1 for p in both.values())
    assert json.loads(run(*asked, "cat", "--independent")[1])["scores"]["cat"] == both["cat"]
    logit = {name: math.log(p / (1 - p)) for name, p in both.items()}
    softmax = json.loads(run(*asked, "dog,cat")[1])["scores"]
    between = math.log(softmax["cat"] / softmax["dog"])  # the bias and the others cancel
    assert logit["cat"] - logit["dog"] == pytest.approx(between, abs=1e-3)


def test_an_unreadable_image_does_not_stop_the_others(run, images):
    (images / "broken.jpg").write_bytes(b"not an image")
    code, out, err = run("predict", str(images), "--classes", "guitar,cat", "--json")
    assert code == 1
    assert len(out.splitlines()) == 2
    assert "broken.jpg" in err and "1 of 3" in err


def test_an_image_from_standard_input(run, images, monkeypatch):
    with (images / "felix.jpg").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        code, out, err = run("predict", "-", "--classes", "guitar,cat", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert (record["image"], record["label"]) == ("-", "cat")


def test_answers_as_a_file(run, images, tmp_path):
    (images / "broken.jpg").write_bytes(b"not an image")
    out = tmp_path / "answers.jsonl"
    code, printed, err = run("predict", images, "--classes", "guitar,cat", "--out", out)
    assert (code, printed) == (1, "") and "with 2 answers" in err and "1 of 3 images" in err
    _, printed, _ = run("predict", images, "--classes", "guitar,cat", "--json")
    assert out.read_text(encoding="utf-8") == printed
    code, _, err = run("predict", images, "--classes", "guitar,cat", "--out", tmp_path / "answers.xls")
    assert code == 2 and "ends in .csv" in err


def test_images_of_before_are_not_encoded_again(run, images, own_cache, monkeypatch):
    first = run("predict", images, "--classes", "guitar,cat", "--json")

    def encoded_again(*_):
        raise AssertionError

    monkeypatch.setattr("pbprompt.vision.towers.backbone.Backbone.image", encoded_again)
    assert run("predict", images, "--classes", "guitar,cat", "--json") == first
    assert first[0] == 0


def test_addresses_only_if_asked_for(run):
    code, _, err = run("predict", "https://example.invalid/a.jpg", "--classes", "guitar,cat")
    assert code == 2 and "--allow-urls" in err and len(err.splitlines()) == 1


def test_class_names_with_brackets_are_only_names(run, images):
    code, out, err = run("predict", str(images), "--classes", "[/bold]cat[/],[red]dog", "--top-k", "2")
    assert code == 0, err
    assert "[/bold]cat[/]" in out and "[red]dog" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--classes", " , "], "no class names"),
        (["--classes", "Red car,red_car"], "the same"),
        (["--classes", "a," + "word " * 60], "shorten it"),
        (["--classes", "a,b", "--backbone", "lyte"], "did you mean 'lite'"),
        (["--classes", "a,b", "--template", "no hole"], "{}"),
        (["--classes", "a,b", "--classes-file", "x"], "choose one"),
        (["--classes-file", "absent.txt"], "absent.txt"),
        (["--classes", "a,b", "--device", "cuda:99"], "cuda:99"),
        (["--classes", "a,b", "--independent"], "lite has no logit bias"),
    ],
)
def test_bad_input_is_one_line_and_code_2(run, images, arguments, says):
    code, out, err = run("predict", str(images), *arguments)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1 and not out


def test_missing_files_and_empty_folders(run, tmp_path):
    (tmp_path / "empty").mkdir()
    for path, says in (("absent.jpg", "does not exist"), ("empty", "no images")):
        code, _, err = run("predict", str(tmp_path / path), "--classes", "a,b")
        assert code == 2 and says in err and "Traceback" not in err


def test_debug_shows_the_traceback(monkeypatch, tmp_path):
    from pbprompt.errors import InputError

    monkeypatch.setenv("PBPROMPT_DEBUG", "")
    monkeypatch.setattr(sys, "argv", ["pbprompt", "--debug", "predict", "absent.jpg", "--classes", "a"])
    with pytest.raises(InputError):
        main()


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Three classes of 10 drawings: 5 train, 2 val and 3 test each."""
    root = tmp_path_factory.mktemp("photos")
    for name in ("bird", "heart", "mammal"):
        (root / name).mkdir()
        files = [
            file for style in sorted(SAMPLE.parent.iterdir()) for file in sorted((style / name).iterdir())
        ]
        for at, file in enumerate(files[:10]):
            shutil.copy(file, root / name / f"{at:02}.webp")
    return root


@pytest.fixture(scope="module")
def fitted(photos, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fitted") / "model"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(
            sys,
            "argv",
            [
                "pbprompt",
                "fit",
                str(photos),
                "--method",
                "pbprompt",
                "--set",
                "epochs=2",
                "--out",
                str(folder),
                "--shots",
                "4",
            ],
        )
        main()
    assert not stop.value.code
    return folder


@pytest.fixture
def model(fitted, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(fitted, tmp_path / "model"))


def records(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def change_calibration(model: Path, **values) -> None:
    path, config = model / "calibration.json", model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    about = json.loads(config.read_text())
    about["files"]["calibration.json"] = hashlib.sha256(path.read_bytes()).hexdigest()
    config.write_text(json.dumps(about))


def calibrated(model: Path, answers: list[tuple[float, bool]]) -> None:
    """Give the model other validation answers: (confidence, right)."""
    confidence, right = zip(*answers, strict=True)
    true = [best if hit else 0.0 for best, hit in answers]
    change_calibration(
        model,
        images=len(answers),
        confidence=confidence,
        right=right,
        true=true,
        labels=["mammal"] * len(true),
        predicted=[],
        familiarity=[],
    )


def test_a_model_marks_what_it_is_unsure_of(run, photos, model):
    calibrated(model, [(0.8, True)] * 38 + [(0.8, False)] + [(0.5, False)] * 5)
    code, out, err = run("predict", str(photos), "--model", str(model), "--json")
    assert code == 0
    assert err == (
        "pbprompt: unsure: top probability below 0.800; the others are right 90% of the time, with 90% "
        "certainty, by 44 validation images (39 above, 97.4% right)\n"
    )
    said = records(out)
    assert {record["unsure"] for record in said} == {True, False}
    for record in said:
        assert record["unsure"] == (record["score"] < 0.8)
        assert {"entropy", "epistemic", "spread"} < set(record) and record["prediction_set"] is None


def test_reject_at_asks_for_another_accuracy(run, photos, model):
    calibrated(model, [(0.95, True)] * 45 + [(0.9, False)] * 3 + [(0.4, True)] * 9)
    marked = {}
    for accuracy, threshold in (("0.8", 0.4), ("0.95", 0.95)):
        _, out, err = run("predict", str(photos), "--model", str(model), "--reject-at", accuracy, "--json")
        assert f"below {threshold:.3f}" in err
        marked[accuracy] = [record["unsure"] for record in records(out)]
        assert marked[accuracy] == [record["score"] < threshold for record in records(out)]
    assert sum(marked["0.8"]) < sum(marked["0.95"])


def test_an_accuracy_that_cannot_be_promised(run, photos, model):
    """Asked for, it marks all; by itself it marks none: either is said, with how many images it rests on."""
    calibrated(model, [(0.95, True), (0.9, True), (0.8, True)])
    says = (
        "--reject-at 0.9 cannot be promised with 90% certainty by 3 validation images "
        "(it takes 22 images, and there are 3): "
    )
    code, out, err = run("predict", str(photos), "--model", str(model), "--json")
    assert code == 0 and {record["unsure"] for record in records(out)} == {None}
    assert says + "no image is marked unsure" in err
    code, out, err = run("predict", str(photos), "--model", str(model), "--reject-at", "0.9", "--json")
    assert code == 0 and all(record["unsure"] for record in records(out))
    assert says + "every image is marked unsure" in err


def test_the_best_that_can_be_promised_instead(run, photos, model):
    calibrated(model, [(0.6, True)] * 30)
    code, out, err = run("predict", str(photos), "--model", str(model), "--reject-at", "0.95", "--json")
    assert code == 0 and "(it takes 45 images, and there are 30): 92% is promised instead" in err
    assert "the others are right 92% of the time" in err
    assert [record["unsure"] for record in records(out)] == [record["score"] < 0.6 for record in records(out)]


def test_mistakes_that_it_is_sure_of_are_told_where_they_break_the_promise(run, photos, model):
    calibrated(model, [(0.99, False)] + [(0.9 - place / 100, True) for place in range(30)])
    code, _, err = run("predict", str(photos), "--model", str(model))
    assert code == 0 and "31 validation images" in err
    assert "(of the 22 it is surest of, 1 is wrong)" in err


def test_coverage_for_each_class(run, photos, model):
    names = ["bird"] * 9 + ["heart"] * 9
    calibrated(model, [(0.9, True)] * 9 + [(0.6, True)] * 9)
    change_calibration(model, labels=names)
    options = ("predict", str(photos), "--model", str(model), "--coverage", "0.9", "--per-class", "--json")
    code, out, err = run(*options)
    assert code == 0, err
    limits = {"bird": 1 - 0.9, "heart": 1 - 0.6}
    others = set(records(out)[0]["scores"]) - set(limits)
    assert (
        f"1 of 3 classes have too few validation images of their own and are in every set: {others.pop()}"
        in err
    )
    for record in records(out):
        likely = {name for name, score in record["scores"].items() if 1 - score <= limits.get(name, 1)}
        assert set(record["prediction_set"]) == likely
    code, _, err = run("predict", str(photos), "--model", str(model), "--per-class")
    assert code == 2 and "--coverage" in err


def test_coverage_gives_sets(run, photos, model):
    calibrated(model, [(0.9, True)] * 10 + [(0.7, True)] * 9)  # ⌈20 · 0.9⌉: the second largest score, 1 − 0.7
    code, out, _ = run("predict", str(photos), "--model", str(model), "--coverage", "0.9", "--json")
    assert code == 0
    for record in records(out):
        ordered = sorted(record["scores"], key=record["scores"].__getitem__, reverse=True)
        likely = [name for name in ordered if 1 - record["scores"][name] <= 1 - 0.7]
        assert record["prediction_set"] == (likely or [record["label"]])


def test_too_few_validation_images_for_a_coverage(run, photos, model):
    code, out, err = run("predict", str(photos), "--model", str(model), "--coverage", "0.99", "--json")
    assert code == 0
    assert "warning: --coverage 0.99 takes 99 images and there are 6" in err
    assert all(len(record["prediction_set"]) == 3 for record in records(out))


def test_the_table_shows_marks_and_sets(run, photos, model):
    calibrated(model, [(0.95, False), (0.2, True)])
    options = ("--coverage", "0.5", "--top-k", "1", "--reject-at", "0.9")
    code, out, _ = run("predict", str(photos / "bird"), "--model", str(model), *options)
    lines = out.splitlines()
    assert code == 0 and lines[0].split() == ["image", "1.", "doubt", "set"]
    assert sum("unsure" in line for line in lines) == 10
    plain = run("predict", str(photos / "bird"), "--classes", "bird,heart")[1]
    assert "unsure" not in plain and "entropy" not in plain


def test_added_classes_are_not_vouched_for(run, photos, model):
    code, out, err = run(
        "predict", str(photos / "bird"), "--model", str(model), "--classes", "otter", "--json"
    )
    assert code == 0 and "no validation image is of an added class" in err
    assert "otter" in records(out)[0]["scores"]


@pytest.mark.parametrize("option", [("--samples", "3"), ("--seed", "5"), ("--template", "a {}.")])
def test_other_samples_than_the_validation_images_had_are_told(run, photos, model, option):
    _, _, err = run("predict", str(photos / "bird"), "--model", str(model), *option, "--json")
    assert "made with --samples 20, --seed 0 and the model's template; with others" in err


def test_a_model_without_validation_images(run, photos, model):
    about = json.loads((model / "config.json").read_text())
    del about["files"]["calibration.json"]
    (model / "config.json").write_text(json.dumps(about))
    code, out, err = run("predict", str(photos / "bird"), "--model", str(model), "--json")
    assert code == 0 and {record["unsure"] for record in records(out)} == {None}
    assert "no calibration.json in it, so no image is marked unsure: fit it again" in err
    for option in ("--reject-at", "--coverage"):
        code, out, err = run("predict", str(photos / "bird"), "--model", str(model), option, "0.9")
        assert code == 2 and not out and len(err.splitlines()) == 1
        assert f"{option}: {model}: no calibration.json in it" in err and "on data with a val/ folder" in err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--reject-at", "90"], "--reject-at 90: give a share between 0 and 1"),
        (["--coverage", "1"], "--coverage 1: give a share between 0 and 1"),
    ],
)
def test_shares_out_of_range(run, photos, model, options, says):
    code, _, err = run("predict", str(photos / "bird"), "--model", str(model), *options)
    assert code == 2 and says in err and len(err.splitlines()) == 1


def test_none_at_needs_photographs_to_be_left_out(run, photos, model, tmp_path):
    """Nineteen that are not their class's only one."""
    bird = str(photos / "bird")
    code, _, err = run("predict", bird, "--model", model, "--none-at", "0.05")
    assert code == 2 and "pbprompt cannot tell: fit with --method conjugate" in err
    more = tmp_path / "photos"
    for name in ("bird", "heart", "mammal"):
        files = sorted(SAMPLE.parent.glob(f"*/{name}/*"))[:14]
        (more / name).mkdir(parents=True)
        for at, file in enumerate(files):
            shutil.copy(file, more / name / f"{at:02}{file.suffix}")
    few, enough = tmp_path / "few", tmp_path / "enough"
    for folder, shots in ((few, "6"), (enough, "7")):
        assert run("fit", more, "--shots", shots, "--out", folder)[0] == 0
    code, out, err = run("predict", bird, "--model", few, "--none-at", "0.05")
    assert code == 2 and not out and len(err.splitlines()) == 1
    assert "too few photographs to tell: it needs at least 19 that are not their class's only one" in err
    code, out, _ = run("predict", bird, "--model", few, "--json")
    assert code == 0 and {record["familiarity"] for record in records(out)} == {None}
    code, out, _ = run("predict", bird, "--model", enough, "--none-at", "0.2", "--json")
    assert code == 0
    for record in records(out):
        assert record["unknown"] == (record["familiarity"] <= 0.2)


def test_a_mix_of_classes_and_groups_of_them(run, photos, model, tmp_path):
    data, bird, kinds = tmp_path / "photos", str(photos / "bird"), tmp_path / "kinds.txt"
    kinds.write_text("bird: animal\nmammal: animal\n")
    for name, count in (("bird", 16), ("heart", 4), ("mammal", 8)):
        (data / name).mkdir(parents=True)
        for at, file in enumerate(sorted(SAMPLE.parent.glob(f"*/{name}/*"))[:count]):
            shutil.copy(file, data / name / f"{at:02}{file.suffix}")
    folder = tmp_path / "counts"
    fitting, _, told = run("fit", data, "--out", folder, "--hierarchy", kinds)
    assert fitting == 0, told
    judged = json.loads((folder / "calibration.json").read_text())["images"]
    change_calibration(
        folder,
        right=[False] * judged,
        group_right=[[True]] * judged,
        group_confidence=[[0.5]] * judged,
    )  # no class is ever right, and its group always
    code, out, err = run("predict", data, "--model", folder, "--back-off", "0.6", "--json")
    assert code == 0 and "back-off: answers are right 60% of the time" in err
    found = {record["answer"] for record in records(out)}
    assert found == {"animal", None}
    code, out, _ = run("predict", data, "--model", folder, "--back-off", "0.6", "--class-mix", "balanced")
    assert code == 0 and "answer" in out
    code, out, err = run("evaluate", folder, data, "--split", "all", "--json", "--class-mix", "balanced")
    groups = json.loads(out)["groups"]
    assert code == 0 and [row["promised"] for row in groups] == [0.8, 0.9, 0.95]
    assert all(0 <= row["by_class"] + row["by_group"] <= 1 for row in groups)
    costs = tmp_path / "costs.csv"
    costs.write_text("*,unsure,0\n")
    code, out, err = run("predict", data, "--model", folder, "--costs", costs, "--json")
    assert code == 0 and {record["answer"] for record in records(out)} == {None}, err
    code, _, err = run("predict", data, "--model", folder, "--costs", costs, "--back-off", "0.6")
    assert code == 2 and "--back-off: --costs chooses the answers: leave it out" in err
    code, _, err = run("predict", data, "--classes", "a,b", "--costs", costs)
    assert code == 2 and "names alone" in err
    kinds.write_text("bird: bird\n")
    code, _, err = run("fit", data, "--out", tmp_path / "no", "--hierarchy", kinds)
    assert code == 2 and "encoding" not in err and "is a class" in err
    code, _, err = run("predict", data, "--model", model, "--back-off", "0.6")
    assert code == 2 and "fit it with --hierarchy FILE" in err
    assert "16 training images of bird, 4 of heart" in told
    mix = tmp_path / "mix.csv"
    mix.write_text("")
    code, _, err = run("predict", bird, "--model", folder, "--class-mix", mix)
    assert code == 2 and "no numbers in it: write one 'key: number' per line" in err
    mix.write_text("bird,0\nheart,1\nmammal,1\n")
    said = {}
    for how in ("as-trained", "balanced", "estimate", mix):
        code, out, err = run("predict", bird, "--model", folder, "--class-mix", how, "--json")
        assert code == 0, err
        said[how] = [record["scores"]["bird"] for record in records(out)]
        assert ("class mix, estimated from 10 images: bird" in err) == (how == "estimate")
    assert all(even < trained for even, trained in zip(said["balanced"], said["as-trained"], strict=True))
    assert set(said[mix]) == {0.0}
    for where, how, says in (
        (["--model", folder], "often", "choose as-trained, balanced, estimate, or give a file"),
        (["--model", model], "balanced", "pbprompt does not tell how frequent its classes were"),
        (["--classes", "bird"], "balanced", "give --model DIR"),
    ):
        code, _, err = run("predict", bird, *where, "--class-mix", how)
        assert code == 2 and says in err


def test_a_fitted_model_tells_its_classes_from_each_other(run, photos, model):
    code, _, err = run("predict", photos, "--model", model, "--independent")
    assert code == 2 and "leave out --model" in err


def test_decisions_need_a_model(run, images):
    code, _, err = run("predict", str(images), "--classes", "guitar,cat", "--coverage", "0.9")
    assert code == 2 and "give --model DIR" in err


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--samples", "1000000000"], "give 1 to 10,000"), (["--seed", str(2**64)], "below 2⁶³")],
)
def test_absurd_samples_and_seeds(run, photos, model, options, says):
    code, out, err = run("predict", str(photos / "bird"), "--model", str(model), *options)
    assert code == 2 and says in err and not out and "Traceback" not in err


def test_a_damaged_calibration_is_named(run, photos, model):
    change_calibration(model, images=3)
    code, _, err = run("predict", str(photos / "bird"), "--model", str(model))
    assert code == 2 and "calibration.json: not a calibration" in err and "fit the model again" in err
