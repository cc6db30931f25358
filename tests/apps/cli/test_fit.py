"""`pbprompt fit`, `evaluate` and `methods`, as a user runs them: a few drawings, one or two epochs."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from calibrated import calibrated_by
from PIL import Image

import pbprompt
from pbprompt.apps.cli import main
from pbprompt.apps.cli.calibration_words import calibration_words, series_words
from pbprompt.apps.cli.figures import ahead_words
from pbprompt.apps.cli.fitting import stopped_words
from pbprompt.model.calibration import Calibration
from pbprompt.model.card import Provenance
from pbprompt.model.manifest import WEIGHTS
from pbprompt.model.series import by_path
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.features.progress import Progress
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.loading.load import load_backbone

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
CLASSES = ("clock", "heart", "mammal")
QUICK = ("--method", "pbprompt", "--shots", "2", "--set", "epochs=2", "--set", "batch_size=2")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """A folder of class folders, eight drawings each: 4 train, 2 val, 2 test."""
    root = tmp_path_factory.mktemp("photos")
    for name in CLASSES:
        (root / name).mkdir()
        for file in sorted((SAMPLE / name).iterdir())[:8]:
            shutil.copy(file, root / name)
    return root


@pytest.fixture(scope="module")
def whole(photos, tmp_path_factory) -> Path:
    """A model fitted once, by the plain command."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["pbprompt", "fit", str(photos), *QUICK, "--out", str(folder)])
        main()
    assert not stop.value.code
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_fit_then_evaluate(run, photos, tmp_path):
    model = tmp_path / "model"
    code, out, err = run("fit", photos, *QUICK, "--seed", "3", "--out", model)
    assert code == 0, err
    assert "learning from 6 of 24 images; the others are kept aside: 6 validation, 6 test, 6 not drawn" in err
    assert "3 classes" in err and "6 train" in err and "learnable parameters as the paper counts" in err
    names = ("zero-shot", "class mean", "nearest neighbours", "linear probe", "tuned")
    assert [line.split("  ")[0].strip() for line in out.splitlines()[1:6]] == list(names)
    assert "on the test split, 6 images" in out and "no linear probe" not in err
    assert set(contents(model)) == {
        "README.md",
        "calibration.json",
        "config.json",
        "draw.jsonl",
        "log.jsonl",
        "model.safetensors",
    }
    info = json.loads((model / "config.json").read_text())
    assert info["classes"] == list(CLASSES) and info["shots"] == 2 and info["seed"] == 3
    assert info["backbone"]["name"] == "lite"
    header = json.loads((model / "draw.jsonl").read_text().splitlines()[0])
    assert header["hash"] == info["data"]["draw_hash"]
    card = (model / "README.md").read_text()
    assert f"{info['metrics']['accuracy']:.2%}" in card and f"pbprompt evaluate {model}" in card

    code, out, _ = run("evaluate", model, photos, "--json")
    figures = json.loads(out)
    assert code == 0 and len(out.splitlines()) == 1
    assert {"accuracy", "nll", "ece", "zero_shot"} < set(figures)
    assert {"accuracy", "nll", "ece"} < set(figures["zero_shot"])
    assert set(info["metrics"].pop("rivals")) == {"nearest-mean", "nearest-neighbours", "linear-probe"}
    for key, value in info["metrics"].items():  # the same images, though the folder has no split of its own
        assert figures[key] == value

    code, out, _ = run("evaluate", model, photos, "--split", "train", "--samples", "3")
    assert code == 0 and "train split, 12 images" in out

    code, _, err = run("fit", photos, *QUICK, "--out", model)
    assert code == 2 and "holds a finished model" in err


def test_all_images_are_learned_from_and_each_is_judged_without_it(run, photos, tmp_path):
    model = tmp_path / "model"
    code, out, err = run("fit", photos, "--out", model)
    assert code == 0 and "learning from all 24 images" in err, err
    assert f"next: pbprompt evaluate {model} {photos}" in err
    assert "on the 24 training images, each fifth judged by a model fitted to the other four" in out
    assert [line.split("  ")[0].strip() for line in out.splitlines()[1:6]][-1] == "tuned"
    figures = json.loads((model / "config.json").read_text())["metrics"]
    assert figures["split"] == "left-out" and figures["images"] == 24

    code, out, err = run("evaluate", model, photos, "--json")
    again = json.loads(out)
    assert code == 0 and "the 24 images that it was fitted to, each judged by a model that did" in err
    assert {key: again[key] for key in ("accuracy", "nll", "ece")} == {
        key: figures[key] for key in ("accuracy", "nll", "ece")
    }
    code, out, err = run("evaluate", model, photos, "--split", "all")
    assert "on all 24 images" in out and "so that the figures flatter" in err
    code, _, err = run("evaluate", model, photos, "--split", "test")
    assert code == 2 and "has no test images: leave --split out" in err

    elsewhere = shutil.copytree(photos, tmp_path / "elsewhere")
    (elsewhere / "clock" / min(path.name for path in (elsewhere / "clock").iterdir())).unlink()
    code, out, err = run("evaluate", model, elsewhere)
    assert code == 0 and "elsewhere: all 23 images" in err and "on all 23 images" in out


def test_a_method_without_left_out_images_of_its_own_is_calibrated_by_folds(run, photos, tmp_path):
    code, _, err = run("fit", photos, "--method", "nearest-mean", "--out", tmp_path / "model")
    assert code == 0 and "rest on 24 training images, each left out in turn" in err


def test_images_are_held_out_where_a_test_is_wanted(run, photos, tmp_path):
    code, out, err = run("fit", photos, "--hold-out", "0.25", "--out", tmp_path / "model")
    assert code == 0 and "on the test split, 6 images" in out
    assert "learning from 18 of 24 images; the others are kept aside: 6 test" in err
    code, out, err = run("evaluate", tmp_path / "model", photos)
    assert code == 0 and "6 test images of 24 (--split all judges every one)" in err and "warning" not in err
    assert "on the test split, 6 images" in out

    split = tmp_path / "split"
    for part, at in (("train", slice(0, 6)), ("test", slice(6, 8))):
        for name in CLASSES:
            (split / part / name).mkdir(parents=True)
            for file in sorted((photos / name).iterdir())[at]:
                shutil.copy(file, split / part / name)
    code, _, err = run("fit", split, "--hold-out", "0.2", "--out", tmp_path / "other")
    assert code == 2 and "has a test split of its own" in err
    code, out, err = run("fit", split, "--hold-out", "0", "--out", tmp_path / "other")
    assert code == 0 and "learning from all 24 images" in err and "on the 24 training images" in out
    code, _, err = run("evaluate", tmp_path / "other", split)
    assert code == 0 and "each judged by a model that did not see it" in err


def test_train_alone_gets_figures(run, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "alone" / "train")
    code, out, err = run("fit", tmp_path / "alone", "--out", tmp_path / "model")
    assert code == 0 and "learning from all 24 images" in err and "on the 24 training images" in out


def test_the_validation_images_are_answered_and_kept(run, photos, tmp_path):
    """All of the val split, not the few that a draw takes; the same numbers as from the saved model."""
    from pbprompt.model.calibration import read_calibration
    from pbprompt.model.predictor import predictive
    from pbprompt.model.tuned import TunedModel
    from pbprompt.vision.features.cache import FeatureCache
    from pbprompt.vision.images.build_dataset import OF_A_DRAW
    from pbprompt.vision.images.sources import open_dataset

    model = tmp_path / "model"
    code, _, err = run("fit", photos, *QUICK, "--shots", "1", "--out", model)
    assert code == 0 and "rest on 6 validation images" in err
    kept = read_calibration(model)
    assert kept is not None and len(kept) == 6
    assert (kept.classes, kept.classes_seen, kept.samples, kept.seed) == (3, 3, 20, 0)
    dataset, method = open_dataset(str(photos), seed=1, held_out=OF_A_DRAW), TunedModel.load(model).method
    features = FeatureCache(method.backbone, progress=False).encode(dataset.root, dataset.val)
    assert calibrated_by(predictive(method), features) == kept
    assert "6 validation images, of 3 of 3 classes" in (model / "README.md").read_text()


def test_without_validation_images_it_says_what_is_lost(run, photos, tmp_path):
    """A folder of train/ and val/ tests on val/: none is left."""
    split = tmp_path / "split"
    for part, at in (("train", slice(0, 4)), ("val", slice(4, 8))):
        for name in CLASSES:
            (split / part / name).mkdir(parents=True)
            for file in sorted((photos / name).iterdir())[at]:
                shutil.copy(file, split / part / name)
    model = tmp_path / "model"
    code, out, err = run("fit", split, *QUICK, "--shots", "4", "--out", model)
    assert code == 0 and "test split, 12 images" in out and "sets for" not in out
    assert (
        "`predict` can mark none as unsure and give no sets for --coverage: fit `conjugate`" in err
        and "add a val/ folder" in err
    )
    assert (model / "config.json").exists() and not (model / "calibration.json").exists()
    assert "--reject-at" not in (model / "README.md").read_text()


def test_an_image_that_was_trained_on_is_no_validation_image(run, photos, tmp_path):
    """A split file may list an image twice."""
    files = {name: [f"{name}/{file.name}" for file in sorted((photos / name).iterdir())] for name in CLASSES}
    rows = [(path, label, name) for label, name in enumerate(CLASSES) for path in files[name]]
    parts = {"train": rows[::2], "val": rows[:8], "test": rows[1::2]}
    (photos / "split.json").write_text(json.dumps(parts))
    try:
        code, _, err = run("fit", photos / "split.json", *QUICK, "--shots", "0", "--out", tmp_path / "model")
    finally:
        (photos / "split.json").unlink()
    assert code == 0, err
    assert "8 val" in err and "rest on 4 validation images; classes without one: 2 (" in err


def test_the_config_is_still_written_last(run, photos, tmp_path, monkeypatch):
    rename = Path.replace

    def dies(self, target):
        if target.name == "config.json":
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dies)
        assert run("fit", photos, *QUICK, "--out", tmp_path / "model")[0] == 130
    assert not (tmp_path / "model" / "config.json").exists()
    assert run("fit", photos, *QUICK, "--out", tmp_path / "model")[0] == 0


@pytest.mark.parametrize(
    "name",
    ["README.md", "log.jsonl", "draw.jsonl", "calibration.json", "model.safetensors", "config.json", "x"],
)
def test_a_folder_with_files_of_others_is_refused_untouched(run, photos, tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("mine")
    code, _, err = run("fit", photos, *QUICK, "--out", tmp_path / "mine")
    assert code == 2 and f"holds {name}, which is of no training" in err and len(err.splitlines()) == 1
    assert contents(tmp_path / "mine") == {name: b"mine"}


def test_a_second_training_of_a_folder_is_refused(run, photos, tmp_path):
    from pbprompt.model.manifest import claim

    with claim(tmp_path / "model"):
        code, _, err = run("fit", photos, *QUICK, "--out", tmp_path / "model")
        assert code == 2 and "another training writes into it now" in err.splitlines()[-1]
        assert set(contents(tmp_path / "model")) == {".pbprompt-fit"}
    assert not (tmp_path / "model").exists()


def test_new_class_names_at_evaluation(run, photos, whole, tmp_path):
    names = tmp_path / "names.csv"
    names.write_text("clock,watch\nheart,love symbol\nmammal,animal\n")
    code, out, err = run("evaluate", whole, photos, "--classes-file", names, "--json")
    assert code == 0, err
    assert json.loads(out)["nll"] != json.loads((whole / "config.json").read_text())["metrics"]["nll"]


def test_equal_commands_give_equal_models(run, photos, whole, tmp_path):
    assert run("fit", photos, *QUICK, "--out", tmp_path / "two")[0] == 0
    assert run("fit", photos, *QUICK, "--seed", "2", "--out", tmp_path / "three")[0] == 0
    one, two, three = (contents(folder) for folder in (whole, tmp_path / "two", tmp_path / "three"))
    for name in ("model.safetensors", "log.jsonl", "draw.jsonl", "calibration.json", "config.json"):
        assert one[name] == two[name] and one[name] != three[name], name


@pytest.mark.parametrize(
    "options",
    [
        ("--preset", "paper"),
        ("--variant", "p-prompt"),
        ("--variant", "without-sampling", "--views", "2"),
        ("--variant", "ot", "--views", "fresh"),
        ("--shots", "0", "--max-steps", "2"),
    ],
)
def test_options(run, photos, tmp_path, options):
    model = tmp_path / "model"
    code, _, err = run("fit", photos, *QUICK, *options, "--out", model)
    assert code == 0, err
    if "--max-steps" in options:
        assert json.loads((model / "log.jsonl").read_text().splitlines()[-1])["step"] == 2
        assert not (model / "draw.jsonl").exists()


def test_a_draw_file_is_trained_on(run, photos, whole, tmp_path):
    code, _, err = run("fit", photos, *QUICK, "--draw", whole / "draw.jsonl", "--out", tmp_path / "again")
    assert code == 0, err
    assert contents(tmp_path / "again")["model.safetensors"] == contents(whole)["model.safetensors"]


def test_a_dry_run_writes_nothing(run, tmp_path):
    out = tmp_path / "model"
    code, _, err = run("fit", "sample", "--method", "pbprompt", "--shots", "1", "--out", out, "--dry-run")
    assert code == 0, err
    assert "28 train" in err and "dry run: one step taken, nothing written (total " in err
    assert "395,776 learnable parameters as the paper counts (397,056 in full)" in err
    code, _, err = run("fit", "sample", "--shots", "1", "--out", out, "--dry-run")
    assert code == 0 and "dry run: fitted, nothing written" in err
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--method", "pbpromt"), "did you mean 'pbprompt'"),
        (("--method", "zeroshot"), "has nothing to tune"),
        (("--preset", "papr"), "no preset 'papr': it has new-classes, literal, paper"),
        (("--variant", "x-prompt"), "no variant 'x-prompt': it has b-prompt"),
        (("--set", "ct_wieght=1"), "did you mean 'ct_weight'"),
        (("--set", "ct_weight"), "key=value"),
        (("--set", "batch_size=-1"), "'batch_size' is -1"),
        (("--set", "transport=xt"), "choose one of ct, ot"),
        (("--set", "train_samples=1000000000"), "'train_samples' is 1000000000: it takes 1 to 1000"),
    ],
)
def test_bad_settings_are_one_line_and_code_2(run, photos, tmp_path, options, says):
    code, out, err = run("fit", photos, *QUICK, *options, "--out", tmp_path / "model")
    assert code == 2 and says in err
    assert len(err.strip().splitlines()) == 1 and not out
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--views", "0"), "use centre, fresh or a number"),
        (("--views", "some"), "use centre, fresh or a number"),
        (("--views", "9" * 5000), "use centre, fresh or a number"),
        (("--views", "²"), "use centre, fresh or a number"),
        (("--device", "meta"), "device 'meta' cannot be used"),
        (("--seed", 2**64), "is too large: give one below 2⁶³"),
        (("--backbone", "lyte"), "did you mean 'lite'"),
        (("--draw", "absent.jsonl"), "absent.jsonl"),
        (("--set", "tokens=3"), "take 4 tokens"),
    ],
)
def test_what_shows_later_is_still_one_line_of_error(run, photos, tmp_path, options, says):
    code, _, err = run("fit", photos, *QUICK, *options, "--out", tmp_path / "model")
    assert code == 2 and says in err.splitlines()[-1] and "Traceback" not in err
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("options", [("--set", "keep=0.3"), ("--set", "epochs=20"), ("--max-steps", "3")])
def test_settings_of_training_that_would_change_nothing_are_refused(run, photos, tmp_path, options):
    code, _, err = run("fit", photos, *options, "--out", tmp_path / "model")
    said = " ".join(options).partition("=")[0].removesuffix(" 3")
    assert code == 2 and f"{said}: conjugate takes no training steps" in err
    assert not (tmp_path / "model").exists()


def test_no_data_no_folder_no_model(run, photos, tmp_path):
    code, _, err = run("fit", tmp_path / "nowhere" / "at-all", *QUICK, "--out", tmp_path / "model")
    assert code == 2 and "does not exist" in err
    (tmp_path / "file").write_text("")
    code, _, err = run("fit", photos, *QUICK, "--out", tmp_path / "file")
    assert code == 2 and "choose a folder" in err
    code, _, err = run("evaluate", tmp_path / "nowhere", photos)
    assert code == 2 and "no model here" in err and len(err.splitlines()) == 1


def test_a_last_step_to_weights_that_answer_nothing_is_told(run, photos, tmp_path):
    """The loss of the steps was finite, and the weights are: only what they answer is not."""
    wild = ("--set", "learning_rate=1e30", "--set", "warmup_epochs=0", "--max-steps", "1")
    code, _, err = run("fit", photos, *QUICK, *wild, "--out", tmp_path / "model")
    assert code == 2 and "NaN" in err.splitlines()[-1] and "Traceback" not in err
    assert not (tmp_path / "model" / "config.json").exists()


def test_class_names_with_brackets_are_only_names(run, photos, tmp_path):
    """Nothing in a name is taken for the terminal's markup."""
    odd = tmp_path / "odd"
    shutil.copytree(photos, odd)
    (odd / "clock").rename(odd / "[bold]clock[")
    code, _, err = run("fit", odd, *QUICK, "--dry-run", "--out", tmp_path / "model")
    assert code == 0, err
    assert "[bold]clock[" in err


def test_ctrl_c_and_the_same_command_again(run, photos, whole, tmp_path, monkeypatch):
    from pbprompt.prompts.pbprompt.model import PBPrompt

    loss, calls = PBPrompt.loss, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return loss(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PBPrompt, "loss", interrupted)
        code, _, err = run("fit", photos, *QUICK, "--out", tmp_path / "stopped")
    assert code == 130 and "Traceback" not in err
    assert "stopped: the same command continues from step 4" in err
    assert (tmp_path / "stopped" / "checkpoint.safetensors").exists()
    code, _, err = run("fit", photos, *QUICK, "--set", "ct_weight=0.5", "--out", tmp_path / "stopped")
    assert code == 2 and "another run" in err
    code, _, err = run("fit", photos, *QUICK, "--out", tmp_path / "stopped")
    assert code == 0 and "continuing from step 4 of 6" in err
    stopped = contents(tmp_path / "stopped")
    assert set(stopped) == set(contents(whole))
    for name in ("model.safetensors", "log.jsonl", "config.json"):
        assert stopped[name] == contents(whole)[name], name


@pytest.mark.parametrize("step", [None, 0])
def test_ctrl_c_before_the_first_step_promises_no_more_than_there_is(step):
    assert stopped_words(step).startswith("stopped before the first step: the same command starts again")


DIES = """
import os, signal
from pbprompt.apps.cli import main
from pbprompt.prompts.loop import loop

write, loop.SAVE_EVERY = loop.write_checkpoint, -1.0

def write_or_die(path, method, optimiser, step, *rest):
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, method, optimiser, step, *rest)

loop.write_checkpoint = write_or_die
main()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_sigkill_and_the_same_command_again(run, photos, whole, tmp_path):
    """A process of its own dies in the middle of an epoch; the checkpoint before it is continued."""
    command = ["fit", str(photos), *QUICK, "--out"]
    threads = str(torch.get_num_threads())
    killed = subprocess.run(
        [sys.executable, "-c", DIES, *command, str(tmp_path / "killed")],
        env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert set(contents(tmp_path / "killed")) == {".pbprompt-fit", "checkpoint.safetensors", "log.jsonl"}
    assert run(*command, tmp_path / "killed")[0] == 0
    for name in ("model.safetensors", "log.jsonl", "config.json"):
        assert contents(tmp_path / "killed")[name] == contents(whole)[name], name


def test_methods_lists_and_explains(run):
    code, out, _ = run("methods")
    assert code == 0
    line = next(line for line in out.splitlines() if line.strip().startswith("pbprompt"))
    assert "1,577,984" in line
    code, out, _ = run("methods", "pbprompt")
    assert code == 0
    words = " ".join(out.split())
    assert "1,577,984 as the paper counts, 1,580,544 in full; those that come with each class" in words
    assert "ct_weight" in words and "preset paper:" in words and "variant b-prompt: ct_weight=0.0" in words
    code, _, err = run("methods", "pbpromt")
    assert code == 2 and "did you mean 'pbprompt'" in err and len(err.splitlines()) == 1


def test_calibrate_scales_the_probabilities_of_any_method(run, photos, tmp_path):
    code, _, err = run("fit", photos, *QUICK, "--calibrate", "--out", tmp_path / "model")
    info = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (
        code == 0
        and f"temperature {info['temperature']:.3f}, by 6 validation images: probabilities are" in err
    )
    code, out, _ = run("evaluate", tmp_path / "model", photos, "--json")
    assert code == 0 and json.loads(out)["nll"] == info["metrics"]["nll"]


def test_descriptions_are_the_prior(run, photos, tmp_path):
    named = tmp_path / "classes.csv"
    named.write_text("clock,SKU 1\nheart,SKU 2\nmammal,SKU 3\n")
    told = tmp_path / "told.yaml"
    told.write_text("SKU 1: a clock\nSKU 2: [a heart, a red heart]\nsku 3: an animal\n")
    common = ("fit", photos, "--shots", "1", "--classes-file", named)
    code, _, err = run(*common, "--descriptions", told, "--out", tmp_path / "model")
    assert code == 0, err
    info = json.loads((tmp_path / "model" / "config.json").read_text())
    assert info["config"]["descriptions"][1] == ["heart", "a heart", "a red heart"]
    assert run(*common, "--out", tmp_path / "plain")[0] == 0
    plain = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert plain["metrics"]["nll"] != info["metrics"]["nll"]
    image = next((photos / "heart").iterdir())
    code, out, _ = run("explain", image, "--model", tmp_path / "model", "--out", tmp_path / "heat.png")
    assert code == 0 and "described as: a heart; a red heart" in out
    code, _, err = run(*common, "--descriptions", told, "--method", "coop", "--out", tmp_path / "coop")
    assert code == 2 and "--descriptions: coop reads none: use --method conjugate" in err
    again = pbprompt.PromptClassifier(settings={"descriptions": {"SKU 2": "a heart"}})
    assert again.fit([image, image], ["SKU 1", "SKU 2"]).method_.config.descriptions == (
        ("SKU 2", "a heart"),
    )


def test_descriptions_in_the_table_itself(run, photos, tmp_path):
    rows = ["image,label,description"]
    for code, name in (("SKU 1", "clock"), ("SKU 2", "heart"), ("SKU 3", "mammal")):
        images = sorted((photos / name).iterdir())
        rows += [f"{path},{code},{'a ' + name if name != 'mammal' else ''}" for path in images]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(rows))
    code, _, err = run("fit", table, "--out", tmp_path / "model")
    assert code == 0, err
    told = "sentences in the column `description`: 2, of 2 of 3 classes"
    assert f"{told}; read in place of their names" in err
    info = json.loads((tmp_path / "model" / "config.json").read_text())
    assert info["config"]["descriptions"] == [["SKU 1", "a clock"], ["SKU 2", "a heart"]]
    again = pbprompt.PromptClassifier().fit(table)
    assert again.method_.config.descriptions == (("SKU 1", "a clock"), ("SKU 2", "a heart"))
    code, _, err = run("fit", table, "--method", "coop", "--dry-run", "--out", tmp_path / "coop")
    assert code == 0 and f"{told}; not used, since coop reads none" in err
    (tmp_path / "told.yaml").write_text("SKU 3: an animal\n")
    code, _, err = run("fit", table, "--descriptions", tmp_path / "told.yaml", "--out", tmp_path / "file")
    info = json.loads((tmp_path / "file" / "config.json").read_text())
    assert info["config"]["descriptions"] == [["SKU 3", "an animal"]] and "column" not in err


def test_auto_takes_the_best_by_left_out_images(run, photos, tmp_path):
    code, _, err = run("fit", photos, "--method", "auto", "--out", tmp_path / "model")
    assert code == 0, err
    rows = [
        line.split()[0] for line in err.splitlines() if ("%" in line and " 0." in line) or "linear" in line
    ]
    assert len(rows) >= 4 and "has the best likelihood on training images that were left out" in err
    chosen = json.loads((tmp_path / "model" / "config.json").read_text())["method"]
    assert f"auto: {chosen} has" in err
    code, _, err = run("fit", photos, "--method", "auto", "--set", "epochs=2", "--out", tmp_path / "other")
    assert code == 2 and "--set: --method auto takes each method as it is: leave it out" in err


@pytest.fixture(scope="module")
def train_and_test(photos, tmp_path_factory) -> Path:
    """train/ and test/ alone: five and three drawings a class."""
    split = tmp_path_factory.mktemp("split")
    for part, at in (("train", slice(0, 5)), ("test", slice(5, 8))):
        for name in CLASSES:
            (split / part / name).mkdir(parents=True)
            for file in sorted((photos / name).iterdir())[at]:
                shutil.copy(file, split / part / name)
    return split


def test_training_images_that_were_not_drawn_are_validation_images(run, train_and_test, tmp_path):
    model = tmp_path / "model"
    code, out, err = run("fit", train_and_test, *QUICK, "--calibrate", "--verbose", "--out", model)
    assert code == 0 and "rest on 9 validation images" in err and "temperature" in err
    kept = json.loads((model / "calibration.json").read_text())
    assert sorted(kept["labels"]) == sorted(CLASSES * 3) and kept["left_out"] == 0
    assert "worst class: " in out and "sets for --coverage 0.9 hold the true class of" in out
    figures = json.loads(run("evaluate", model, train_and_test, "--json")[1])["sets"]
    assert (
        figures["asked"] == 0.9 and figures["worst_class"] in CLASSES and figures["worst_class_images"] == 3
    )
    assert 0 <= figures["worst_class_coverage"] <= figures["coverage"] <= 1
    assert "sets" not in json.loads(run("evaluate", model, train_and_test, "--split", "train", "--json")[1])


def test_with_none_left_conjugate_leaves_its_own_images_out(run, train_and_test, tmp_path):
    model = tmp_path / "model"
    code, _, err = run("fit", train_and_test, "--calibrate", "--out", model)
    assert code == 0 and "rest on 15 training images, each left out in turn" in err
    assert "conjugate's probabilities are calibrated already" in err
    image = next((train_and_test / "test" / "heart").iterdir())
    code, out, err = run(
        "predict", image, "--model", model, "--coverage", "0.8", "--reject-at", "0.5", "--json"
    )
    said = json.loads(out)
    assert code == 0 and said["prediction_set"] and said["unsure"] is not None
    assert "15 training images, each left out in turn" in err


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Parquet files of images: with labels, without, and one that has no image."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("tables")
    files = [file for name in CLASSES for file in sorted((SAMPLE / name).iterdir())[:4]]
    rows = [{"image": file.read_bytes(), "label": file.parent.name} for file in files]
    for name, content in (
        ("good", rows),
        ("unlabelled", [{"image": row["image"]} for row in rows[:2]]),
        ("imageless", [{"label": "clock"}]),
    ):
        parquet.write_table(pa.Table.from_pylist(content), folder / f"{name}.parquet")
    return folder


def test_a_stream_is_fitted_in_one_pass_and_goes_on_after_a_stop(run, tables, tmp_path, monkeypatch):
    command, out, whole = ("fit", tables / "good.parquet", "--out"), tmp_path / "model", tmp_path / "whole"
    code, _, told = run(*command, whole)
    assert code == 0 and "3 classes; 12 images, in one pass" in told
    assert "12 training images, each left out in turn" in told
    config = json.loads((whole / "config.json").read_text())
    assert config["classes"] == list(CLASSES) and config["data"]["images"] == 12
    kept, advance = tmp_path / ".model.gathered", Progress.advance

    def interrupted(self, count):
        advance(self, count)
        if self._done == 8:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", interrupted)
        code, _, told = run(*command, out)
    assert code == 130 and "stopped: what was gathered is kept" in told
    assert kept.is_dir() and not out.exists()
    code, _, told = run("fit", tables / "unlabelled.parquet", "--out", out)
    assert code == 2 and ".model.gathered: holds what another fit has gathered (other images)" in told
    assert len(told.strip().splitlines()) == 1 and not out.exists()
    (tmp_path / "bad.txt").write_text("clock: heart\n")  # a mistake after the pass costs no second pass
    code, _, told = run(*command, out, "--classes-file", tmp_path / "bad.txt")
    assert code == 2 and "both named 'heart'" in told and kept.is_dir()
    code, _, told = run(*command, out)
    assert code == 0 and "going on after the 12 images that are gathered already" in told
    assert "12 images, in one pass" in told and not kept.exists()
    assert (out / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("unlabelled.parquet", (), "unlabelled.parquet#0 has no label"),
        ("imageless.parquet", (), "no image column among label"),
        ("good.parquet", ("--shots", 4), "--shots: "),
        ("good.parquet", ("--method", "coop"), "coop needs all its training images at once"),
    ],
)
def test_a_stream_that_cannot_be_fitted_is_told_and_nothing_overwritten(
    run, tables, tmp_path, name, options, says
):
    code, out, told = run("fit", tables / name, "--out", tmp_path / "model", *options)
    assert code == 2 and says in told and len(told.strip().splitlines()) == 1 and not out
    assert not (tmp_path / "model").exists()


def test_an_address_is_fetched_only_when_allowed(run, tables, tmp_path):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.put(str(tables / "good.parquet"), "/bucket/a.parquet")
    memory.pipe("/bucket/cut.tar", b"\0" * 100)
    out = ("--out", tmp_path / "model")
    for arguments, says in (
        (("memory://bucket/",), "an address: add --allow-urls to fetch images from elsewhere"),
        (("memory://none/", "--allow-urls"), "memory://none/: not there: check the name"),
    ):
        code, _, told = run("fit", *arguments, *out)
        assert code == 2 and told.rstrip().endswith(says) and len(told.strip().splitlines()) == 1
    code, _, told = run("fit", "memory://bucket/", "--allow-urls", *out)
    assert code == 0 and "3 classes; 12 images, in one pass" in told
    assert "unreadable: 1 image (" in told and "cut.tar: cut off after 0 images" in told
    memory.rm("/bucket", recursive=True)


def test_a_model_of_half_precision_stays_one(run, photos, tmp_path, monkeypatch):
    """Its towers come again as they were, and say what `fit` saw."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    assert run("fit", photos, *QUICK, "--precision", "bfloat16", "--out", tmp_path / "model")[0] == 0
    model = TunedModel.load(tmp_path / "model")
    assert model.backbone.dtype == torch.bfloat16
    assert model.info.backbone["precision"] == "bfloat16" == model.info.data.options["precision"]
    assert "bfloat16" in (tmp_path / "model" / "README.md").read_text()
    code, out, err = run("evaluate", tmp_path / "model", photos, "--json")
    assert code == 0, err
    assert json.loads(out)["accuracy"] == model.info.metrics["accuracy"]


def test_float16_is_for_a_gpu(run, photos, tmp_path):
    code, _, err = run("fit", photos, *QUICK, "--precision", "float16", "--out", tmp_path / "model")
    assert code == 2 and "--precision float16: that is for a GPU" in err and not (tmp_path / "model").exists()


def test_a_float16_model_is_read_in_float32_on_a_cpu(whole, tmp_path):
    given = load_backbone("lite", dtype=torch.float16)
    TunedModel.load(whole, given).save(tmp_path / "half")
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    config["backbone"]["precision"] = "float16"
    (tmp_path / "half" / "config.json").write_text(json.dumps(config))
    assert TunedModel.load(tmp_path / "half").backbone.dtype == torch.float32


def test_a_plain_classifier_that_is_clearly_ahead_is_named():
    rivals = {"linear-probe": {"accuracy": 0.9}, "nearest-mean": {"accuracy": 0.7}}
    metrics = {"accuracy": 0.8, "images": 400, "rivals": rivals}
    assert ahead_words(metrics, "conjugate") == (
        "the linear probe is clearly ahead of conjugate on these images (90.0% right against 80.0%): "
        "--method linear-probe fits it"
    )
    assert ahead_words(metrics | {"images": 40}, "conjugate") == ""  # by chance, perhaps
    assert ahead_words(metrics | {"series": 40}, "conjugate") == ""  # as many as they count for
    assert (
        ahead_words(metrics | {"accuracy": 0.9}, "conjugate") == ahead_words({"map": 0.5}, "conjugate") == ""
    )


@pytest.fixture(scope="module")
def bursts(tmp_path_factory) -> Path:
    """Five drawings of each of three classes, four crops of each."""
    root = tmp_path_factory.mktemp("bursts")
    for name in CLASSES:
        (root / name).mkdir()
        for scene, file in enumerate(sorted((SAMPLE / name).iterdir())[:5]):
            with Image.open(file) as drawing:
                width, height = drawing.size
                for shift in range(4):
                    view = drawing.convert("RGB").crop((shift, 0, width - 4 + shift, height))
                    view.save(root / name / f"{scene}-{shift}.png")
    return root


@pytest.mark.parametrize("group", [(), ("--group", "near-duplicates")])
def test_what_is_held_out_has_no_twin_in_training(run, bursts, tmp_path, group):
    model = tmp_path / "model"
    code, _, err = run("fit", bursts, "--hold-out", "0.3", *group, "--out", model)
    assert code == 0 and "52 of 52 training photographs have a twin in their class" in err, err
    data = TunedModel.load(model).info.data
    found = by_path(open_dataset(bursts), FeatureCache(load_backbone("lite")), data.group)
    split = open_dataset(bursts, held_out=data.held_out, series=found)
    assert split.content_hash == data.content_hash
    scenes = [{(item.label, item.path[-7]) for item in items} for items in (split.train, split.test)]
    assert scenes[1] and not scenes[0] & scenes[1]
    code, out, err = run("evaluate", model, bursts)
    assert code == 0 and "on the test split" in out and "is not as it was" not in err


def test_series_that_are_not_looked_for_are_said():
    assert "not looked for among more than 8,192" in next(series_words(Provenance(images=8193)))
    assert not [*series_words(Provenance(images=8192)), *series_words(Provenance(images=8193, group="none"))]
    found = [*series_words(Provenance(images=90, in_series=8, series=80, perhaps_in_series=40))]
    assert found[0].startswith("8 of 90")
    assert found[1].startswith("warning: 40 of 90 training photographs look much like")


def test_a_fit_says_what_to_ask_for_where_nearly_all_would_be_unsure():
    sure, right = (0.8,) * 100, (True,) * 80 + (False,) * 20
    told = Calibration(sure, right, sure, 3, 3, 1, 0, ("cat",) * 100)
    assert calibration_words(SimpleNamespace(calibration=told)).endswith(
        "; 100% of such images will be unsure with --reject-at 0.9; --reject-at 0.73 would answer half of "
        "them or more"
    )
    all_right = Calibration(sure, (True,) * 100, sure, 3, 3, 1, 0, ("cat",) * 100)
    assert calibration_words(SimpleNamespace(calibration=all_right)).endswith("rest on 100 validation images")
