"""Exported models say what torch says, wherever they run."""

import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from plain_tower import PlainTower

if find_spec("onnxscript") is None:  # it takes long to import
    pytest.skip("no onnxscript", allow_module_level=True)
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from pbprompt import __version__  # noqa: E402
from pbprompt.apps import export  # noqa: E402
from pbprompt.apps.export import export_onnx, thresholds  # noqa: E402
from pbprompt.errors import InputError  # noqa: E402
from pbprompt.learners.memory import Memory  # noqa: E402
from pbprompt.learners.method import Method, build_method  # noqa: E402
from pbprompt.learners.predictive import Predictive  # noqa: E402
from pbprompt.model.calibration import Calibration  # noqa: E402
from pbprompt.model.folder import describe_model  # noqa: E402
from pbprompt.model.predictor import predictive  # noqa: E402
from pbprompt.model.tuned import TunedModel  # noqa: E402
from pbprompt.registry import methods  # noqa: E402
from pbprompt.testing.fits import fitted, random_images  # noqa: E402
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, Encoded, random_backbone  # noqa: E402
from pbprompt.vision.towers.text import TextConfig  # noqa: E402
from pbprompt.vision.towers.vit import VitConfig  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_onnx_registry")
METHODS = methods()
CLASSES = ("crêpe", "ice cream", "red_car", "owl")
SAMPLES = 3
SINGLE = 1e-5  # between two float32 computations of a probability or an entropy
HALF = 0.03  # what a float16 tower may change


@pytest.fixture(scope="module")
def plain() -> Backbone:
    text = TextConfig(context_length=77, vocab_size=49408, width=64, heads=4, layers=1)
    config = BackboneConfig("plain", 32, VitConfig(32, 8, 64, 1, 4), text)
    backbone = random_backbone(config)
    backbone.visual = PlainTower(backbone)
    return backbone


@pytest.fixture(scope="module")
def traced(plain) -> tuple[TunedModel, torch.onnx.ONNXProgram]:
    model = tuned(made("coop", plain))
    return model, export._program(export.ImageClassifier(model.predictor, torch.float32))


@pytest.fixture
def coop(traced, monkeypatch) -> TunedModel:
    """A model that is traced once, for the tests of what becomes of the file."""
    model, program = traced
    monkeypatch.setattr(export, "_program", lambda classifier: program)
    return model


def made(name: str, backbone: Backbone, variant: str = "") -> Method:
    """A method at its start values, with two random training images per class where it keeps some."""
    kind = METHODS[name]
    if kind.tunes_towers:
        images = random_images(backbone, torch.arange(8) % 4)
        return fitted(kind, {"learning_rate": 0.1}, backbone, CLASSES, images, steps=1)
    method = build_method(kind, kind.Config(**dict(kind.variants.get(variant, {}))), backbone, seed=1)
    method.prepare(CLASSES, "a {}.")
    if issubclass(kind, Memory):
        draws, patches = torch.Generator().manual_seed(0), backbone.grid[0] * backbone.grid[1]
        shots = torch.randn(8, backbone.embed_dim, generator=draws)
        method.begin(Encoded(shots, shots.unsqueeze(1).expand(-1, patches, -1)), torch.arange(8) % 4)
    return method


def tuned(method: Method) -> TunedModel:
    return TunedModel(method, describe_model(method), samples=SAMPLES, seed=5)


def pixels(backbone: Backbone, count: int) -> np.ndarray:
    """Random images, from smooth to noisy."""
    size, random = backbone.preprocess.size, np.random.default_rng(count)
    images = []
    for at in range(count):
        side = 2 + at % size
        small = Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8))
        images.append(np.asarray(small.resize((size, size), Image.Resampling.BILINEAR)))
    return np.stack(images)


def by_torch(method: Method, images: np.ndarray) -> Predictive:
    """What `predict` computes."""
    preprocessed = [method.backbone.preprocess(Image.fromarray(image)) for image in images]
    with torch.inference_mode():
        return predictive(method, SAMPLES, seed=5)(method.backbone.image(torch.stack(preprocessed)))


def by_onnx(path: Path, images: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"image": images}), strict=True))


def facts(path: Path) -> dict:
    return json.loads(onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map["pbprompt"])


@pytest.fixture(scope="module")
def exported(request, tmp_path_factory):
    """(method, file) of pbprompt on a tower; each is exported once."""
    done: dict[tuple[str, str], tuple[Method, Path]] = {}

    def make(tower: str, precision: str) -> tuple[Method, Path]:
        if (tower, precision) not in done:
            method = made("pbprompt", request.getfixturevalue(tower))
            path = tmp_path_factory.mktemp("onnx") / "model.onnx"
            export_onnx(tuned(method), path, precision=precision)
            done[tower, precision] = method, path
        return done[tower, precision]

    return make


TOWERS = ["tiny_vit", "tiny_resnet"]  # lite in float32: `tests/apps/cli/test_export.py`, beside `predict`


@pytest.mark.parametrize(
    ("tower", "count"),
    [(tower, count) for tower in TOWERS for count in (1, 3, 7, 70)],
)
def test_float32_equals_torch(tower, count, exported):
    method, path = exported(tower, "fp32")
    images = pixels(method.backbone, count)
    said, wanted = by_onnx(path, images), by_torch(method, images)
    assert list(said) == ["probabilities", "entropy", "epistemic"]
    assert said["probabilities"].shape == (count, len(CLASSES))
    np.testing.assert_allclose(said["probabilities"], wanted.probabilities, rtol=0, atol=SINGLE)
    np.testing.assert_allclose(said["entropy"], wanted.entropy, rtol=0, atol=SINGLE)
    np.testing.assert_allclose(said["epistemic"], wanted.mutual_information, rtol=0, atol=SINGLE)
    assert {value.dtype for value in said.values()} == {np.dtype(np.float32)}
    assert wanted.mutual_information.max() > 100 * SINGLE  # the samples do differ


@pytest.mark.parametrize("tower", [*TOWERS, "lite"])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_float16_is_near_torch(tower, count, exported):
    method, path = exported(tower, "fp16")
    images = pixels(method.backbone, count)
    said, wanted = by_onnx(path, images), by_torch(method, images)
    np.testing.assert_allclose(said["probabilities"], wanted.probabilities, rtol=0, atol=HALF)
    np.testing.assert_allclose(said["entropy"], wanted.entropy, rtol=0, atol=HALF)
    np.testing.assert_allclose(said["epistemic"], wanted.mutual_information, rtol=0, atol=HALF)
    assert {value.dtype for value in said.values()} == {np.dtype(np.float32)}
    first, second = wanted.probabilities.topk(2).values.unbind(-1)
    clear = (first - second > 2 * HALF).numpy()
    predicted = wanted.probabilities.argmax(-1).numpy()
    np.testing.assert_array_equal(said["probabilities"].argmax(-1)[clear], predicted[clear])


def test_float16_holds_the_tower_in_half_the_bytes_and_leaves_the_backbone_alone(exported):
    (method, whole), (_, half) = exported("tiny_resnet", "fp32"), exported("tiny_resnet", "fp16")
    assert half.stat().st_size < 0.6 * whole.stat().st_size
    kernels = [w for w in onnx.load(half).graph.initializer if len(w.dims) == 4]
    assert kernels and {weight.data_type for weight in kernels} == {onnx.TensorProto.FLOAT16}
    assert method.backbone.dtype == torch.float32


def test_the_graph_is_valid_and_takes_any_batch(exported):
    method, path = exported("tiny_resnet", "fp32")
    onnx.checker.check_model(onnx.load(path), full_check=True)
    (image,) = onnxruntime.InferenceSession(path).get_inputs()
    size = method.backbone.preprocess.size
    assert (image.name, image.type, image.shape) == ("image", "tensor(uint8)", ["batch", size, size, 3])


def test_metadata_say_what_a_deployer_needs(exported):
    method, path = exported("tiny_resnet", "fp32")
    said = facts(path)
    assert said["classes"] == list(CLASSES) and said["template"] == "a {}."
    assert (said["method"], said["library"], said["precision"]) == ("pbprompt", __version__, "fp32")
    assert (said["samples"], said["seed"]) == (SAMPLES, 5)
    assert said["backbone"] == {
        "name": "tiny-resnet",
        "activation": "quick_gelu",
        "fingerprint": method.backbone.fingerprint,
    }
    assert said["preprocessing"]["size"] == 64
    assert said["preprocessing"]["mean"] == list(method.backbone.preprocess.mean)
    assert set(said["outputs"]) == {"probabilities", "entropy", "epistemic"}
    assert "calibration" not in said


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if not kind.exportable])
def test_what_cannot_be_exported_is_refused_and_leaves_what_was_there(name, plain, tmp_path, capfd):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"earlier")
    with pytest.raises(InputError, match=rf"'{name}' cannot be exported.* fit --method conjugate") as said:
        export_onnx(tuned(made(name, plain)), path)
    assert "\n" not in str(said.value)
    assert path.read_bytes() == b"earlier" and list(tmp_path.iterdir()) == [path]
    out, err = capfd.readouterr()
    assert not out and not err


def test_a_variant_that_looks_at_each_image_is_refused(plain, tmp_path):
    with pytest.raises(InputError, match="'vpt' cannot be exported"):
        export_onnx(tuned(made("vpt", plain, "conditional")), tmp_path / "model.onnx")


def test_a_prediction_that_cannot_be_traced_is_refused_in_words(plain, tmp_path):
    method = made("plot", plain)
    method.exportable = True  # as its author may believe
    with pytest.raises(InputError, match="'plot' cannot be exported, since its prediction is not one fixed"):
        export_onnx(tuned(method), tmp_path / "model.onnx")


def test_a_model_that_differs_from_torch_is_not_written(coop, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"earlier")
    broken = Predictive.of_logits(torch.full((1, 3, 4), torch.nan))
    program = _program_that_says(broken)
    monkeypatch.setattr(export, "_program", lambda classifier: program)
    with pytest.raises(InputError, match=r"fp16 the probabilities are nan away.* use precision fp32"):
        export_onnx(coop, path, precision="fp16")
    assert path.read_bytes() == b"earlier" and list(tmp_path.iterdir()) == [path]


def _program_that_says(said: Predictive) -> torch.onnx.ONNXProgram:
    """A graph of the right shape whose probabilities are always these."""

    class Fixed(torch.nn.Module):
        def forward(self, image):
            return said.probabilities + 0 * image.float().mean()

    image = torch.zeros(3, 32, 32, 3, dtype=torch.uint8)
    with export._quiet():
        return torch.onnx.export(
            Fixed(), (image,), dynamo=True, input_names=["image"], output_names=["probabilities"]
        )


def test_weights_beyond_one_file_go_beside_it(coop, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "ONE_FILE", 100)
    written = export_onnx(coop, tmp_path / "here" / "model.onnx")
    assert [file.name for file in written.files] == ["model.onnx", "model.onnx.data"]
    assert sorted((tmp_path / "here").iterdir()) == sorted(written.files)
    moved = (tmp_path / "here").rename(tmp_path / "there")
    images = pixels(coop.method.backbone, 2)
    said = by_onnx(moved / "model.onnx", images)
    np.testing.assert_allclose(
        said["probabilities"], by_torch(coop.method, images).probabilities, rtol=0, atol=SINGLE
    )


def test_a_missing_extra_and_a_folder_as_file_are_told(coop, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="is a folder"):
        export_onnx(coop, tmp_path)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r"needs .* onnxscript: pip install -e '.*\[onnx\]'"):
        export_onnx(coop, tmp_path / "model.onnx")


def test_thresholds_of_validation_images():
    # 50 right images, then a wrong one: 45 promise 0.95, 22 promise 0.9
    right = (True,) * 50 + (False,)
    confidence = tuple(round(0.9 - at / 1000, 3) for at in range(51))
    true = tuple(best if hit else 0.1 for best, hit in zip(confidence, right, strict=True))
    calibration = Calibration(
        confidence,
        right,
        true,
        classes=4,
        classes_seen=3,
        samples=SAMPLES,
        seed=5,
        labels=("cat",) * len(true),
    )
    said = thresholds(calibration)
    assert said["images"] == 51 and said["certainty"] == 0.9
    assert said["unsure_below"] == {"0.8": 0.85, "0.9": 0.85, "0.95": 0.851, "0.99": None}
    found = calibration.quantile(0.9)
    assert said["set_quantile"]["0.9"] == {"edges": list(found.edges), "quantiles": list(found.quantiles)}
    assert said["set_quantile"]["0.99"] == {"edges": [], "quantiles": [None]}  # it needs more images


def test_thresholds_found_with_another_seed_are_left_out(coop, tmp_path):
    calibration = Calibration((0.9,), (True,), (0.9,), len(CLASSES), 1, 1, seed=5, labels=CLASSES[:1])
    model = replace(coop, calibration=calibration, seed=6)
    written = export_onnx(model, tmp_path / "m.onnx")
    assert not written.calibrated and "calibration" not in facts(tmp_path / "m.onnx")


def test_what_killed_exports_left_is_removed_by_the_next_and_nothing_else(coop, tmp_path):
    for name in (".m.onnx.folder", ".n.onnx.folder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.onnx").write_bytes(b"half")
    (tmp_path / ".m.onnx.file").write_bytes(b"half")
    export_onnx(coop, tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".n.onnx.folder", "m.onnx"]


@pytest.mark.parametrize("one_file", [True, False])
def test_an_export_that_is_killed_while_it_is_checked_leaves_no_folder(coop, tmp_path, monkeypatch, one_file):
    """One file is checked before it is written anywhere; larger models need a folder while they are."""
    found = []
    monkeypatch.setattr(export, "ONE_FILE", export.ONE_FILE if one_file else 100)
    monkeypatch.setattr(export, "_checked", lambda *_: found.extend(tmp_path.iterdir()) or 0.0)
    export_onnx(coop, tmp_path / "m.onnx")
    assert bool(found) is not one_file


def test_a_models_temperature_is_exported(plain, tmp_path):
    cold = tuned(made("pbprompt", plain))
    scaled = replace(cold, info=replace(cold.info, temperature=2.5))
    export_onnx(scaled, tmp_path / "model.onnx")
    images = pixels(plain, 4)
    said, untempered = by_onnx(tmp_path / "model.onnx", images), by_torch(cold.method, images)
    wanted = untempered.tempered(2.5)
    np.testing.assert_allclose(said["probabilities"], wanted.probabilities, rtol=0, atol=SINGLE)
    np.testing.assert_allclose(said["entropy"], wanted.entropy, rtol=0, atol=SINGLE)
    np.testing.assert_allclose(said["epistemic"], wanted.mutual_information, rtol=0, atol=SINGLE)
    assert (wanted.probabilities - untempered.probabilities).abs().max() > 100 * SINGLE
    assert facts(tmp_path / "model.onnx")["temperature"] == 2.5
