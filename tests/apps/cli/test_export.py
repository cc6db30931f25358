"""`pbprompt export` and the loader that needs neither torch nor this package."""

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pbprompt
from pbprompt.apps.export import preprocessing
from pbprompt.learners.method import build_method
from pbprompt.model.calibration import Calibration
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.images.transforms import Preprocess

if find_spec("onnxscript") is None:  # it takes long to import
    pytest.skip("no onnxscript", allow_module_level=True)
onnxruntime = pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[3]
LOADER = ROOT / "examples" / "onnx_predict.py"
SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
CLASSES = ("mammal", "musical instrument", "château")
WITHOUT_TORCH = """
import runpy, sys
sys.modules.update(torch=None, pbprompt=None, jaxtyping=None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def saved(folder: Path, backbone, name: str = "pbprompt") -> Path:
    """A model folder as `fit` leaves it, at the method's start values."""
    kind = find_method(name)
    method = build_method(kind, kind.Config(), backbone, seed=1)
    method.prepare(CLASSES, "a drawing of a {}.")
    calibration = Calibration((0.9, 0.5), (True, False), (0.9, 0.4), len(CLASSES), 2, 20, 0, CLASSES[:2])
    TunedModel(method, describe_model(method, seed=1, shots=1), calibration).save(folder)
    return folder


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    """A square drawing, a wide one, one that EXIF turns, a transparent palette, and plain grey."""
    with Image.open(SAMPLE / "mammal" / "1f408.webp") as drawing:
        see_through, plain = drawing.convert("RGBA"), drawing.convert("RGB")
    turned = Image.Exif()
    turned[0x0112] = 6
    makers = {
        "see-through.png": lambda path: see_through.save(path),
        "wide.png": lambda path: plain.resize((501, 233)).save(path),
        "turned.jpg": lambda path: plain.crop((0, 0, 60, 90)).save(path, exif=turned),
        "palette.gif": lambda path: see_through.convert("P").save(path, transparency=0),
        "grey.bmp": lambda path: plain.convert("L").save(path),
    }
    for name, make in makers.items():
        make(tmp_path / name)
    return [str(tmp_path / name) for name in makers]


@pytest.mark.usefixtures("one_onnx_registry")
def test_the_loader_alone_says_what_predict_says(run, lite, images, tmp_path):
    model, out = saved(tmp_path / "model", lite), tmp_path / "deployed" / "model.onnx"
    code, said, err = run("export", str(model), "--out", str(out))
    assert code == 0 and not err
    assert f"saved: {out}" in said and "3 classes, fp32" in said and "without thresholds" not in said
    loader = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(LOADER), str(out), *images], capture_output=True, text=True
    )
    assert loader.returncode == 0, loader.stderr
    records = [json.loads(line) for line in loader.stdout.splitlines()]
    code, said, _ = run("predict", *images, "--model", str(model), "--json")
    wanted = [json.loads(line) for line in said.splitlines()]
    assert code == 0 and len(records) == len(wanted) == len(images)
    for record, other in zip(records, wanted, strict=True):
        alone = {"spread", "spreads", "prediction_set", "familiarity", "unknown", "nothing"}
        assert set(record) == set(other) - alone  # what the graph does not carry
        for key in ("image", "label", "unsure"):
            assert record[key] == other[key]
        for key in ("score", "entropy", "epistemic"):
            assert record[key] == pytest.approx(other[key], abs=1e-5)
        assert record["scores"] == pytest.approx(other["scores"], abs=1e-5)
    assert len({record["score"] for record in records}) == len(images)


@pytest.mark.parametrize(
    "see", [{}, {"resize": 36}, {"fit": "squash"}, {"interpolation": "bilinear", "resize": 40}], ids=str
)
@pytest.mark.parametrize("size", [(501, 233), (61, 90), (36, 36)])
def test_the_loader_sees_the_square_that_the_model_sees(see, size):
    transform = Preprocess(32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), **see)
    with Image.open(SAMPLE / "mammal" / "1f408.webp") as drawing:
        image = drawing.convert("RGB").resize(size)
    seen = runpy.run_path(str(LOADER))["preprocess"](image, preprocessing(transform))
    assert np.array_equal(seen, np.asarray(transform.cropper(image)))


@pytest.mark.usefixtures("plain_exports")
def test_names_are_added_and_precision_is_halved(run, lite, tmp_path):
    model, out = saved(tmp_path / "model", lite), tmp_path / "model.onnx"
    code, said, _ = run(
        "export",
        str(model),
        "-o",
        str(out),
        "--precision",
        "fp16",
        "--classes",
        "okapi, zebra",
        "--samples",
        "2",
    )
    assert code == 0 and "5 classes, fp16" in said and "without thresholds" in said
    facts = json.loads(onnxruntime.InferenceSession(out).get_modelmeta().custom_metadata_map["pbprompt"])
    assert facts["classes"] == [*CLASSES, "okapi", "zebra"] and facts["template"] == "a drawing of a {}."
    assert facts["samples"] == 2 and facts["precision"] == "fp16" and "calibration" not in facts


def test_bad_input_is_one_line_and_code_2(run, lite, tmp_path):
    model, prompts_of_each_image = saved(tmp_path / "a", lite), saved(tmp_path / "b", lite, "cocoop")
    out = tmp_path / "model.onnx"
    for arguments, says in (
        ([str(tmp_path), "--out", str(out)], "no model here"),
        ([str(model), "--out", str(tmp_path)], "give the name of a file"),
        (
            [str(model), "--out", str(tmp_path / "new" / "")],
            "give the name of a file that ends in .onnx or .safetensors",
        ),
        (
            [str(model), "--out", str(tmp_path / "x.txt")],
            "give the name of a file that ends in .onnx or .safetensors",
        ),
        ([str(model), "--out", str(out), "--classes", "Mammal"], "the same"),
        ([str(prompts_of_each_image), "--out", str(out)], "cocoop"),
    ):
        code, said, err = run("export", *arguments)
        assert code == 2 and says in err
        assert len(err.strip().splitlines()) == 1 and not said
    assert run("export", str(model), "--out", str(out), "--precision", "fp8")[0] == 2
    assert not out.exists()


@pytest.mark.usefixtures("plain_exports")
def test_the_page_runs_as_written(run, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    shell, code = (re.findall(rf"^```{kind}\n(.*?)^```", page, re.S | re.M) for kind in ("sh", "python"))
    monkeypatch.chdir(tmp_path)
    for name in ("mammal", "musical-instrument"):
        shutil.copytree(SAMPLE / name, tmp_path / "photos" / name)
    shutil.copy(SAMPLE / "mammal" / "1f408.webp", tmp_path / "photo.jpg")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = [shlex.split(line) for line in "".join(shell).splitlines() if not line.startswith("pip ")]
    assert {command[0] for command in commands} == {"pbprompt", "python"}
    for program, *arguments in commands:
        if program == "pbprompt":
            assert run(*arguments)[0] == 0
        else:
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    assert code
    for block in code:
        exec(compile(block, "export.md", "exec"), {})
