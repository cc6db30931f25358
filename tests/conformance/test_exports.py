"""Every method that says it exports does so from a model as `fit` leaves it, and onnxruntime agrees alone."""

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image
from plain_tower import PlainTower

if find_spec("onnxscript") is None:  # it takes long to import
    pytest.skip("no onnxscript", allow_module_level=True)
pytest.importorskip("onnxruntime")

from pbprompt.apps.export import export_onnx
from pbprompt.errors import InputError
from pbprompt.evidence.novelty import FEWEST
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import make_config
from pbprompt.model.fitting import fit_into
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import methods
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, random_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

pytestmark = pytest.mark.usefixtures("one_onnx_registry")
METHODS = methods()
NEAR = 1e-4  # between torch's probabilities and onnxruntime's
SHOTS = 12  # so that enough photographs are left out, of three classes, to tell what is familiar
# of a method's settings those that make a quick fit; of towers that are tuned, the last is enough
QUICK = {"proda": ["prompts=8", "tokens=4"]}
# In a process that has neither torch nor this package, as where a model is deployed.
ALONE = """
import sys
sys.modules["torch"] = sys.modules["pbprompt"] = None
import numpy as np, onnxruntime
images, out = np.load(sys.argv[1]), sys.argv[2]
said = [onnxruntime.InferenceSession(path).run(None, {"image": images}) for path in sys.argv[3:]]
np.savez(out, *[np.concatenate([outputs[0].ravel(), *outputs[1:]]) for outputs in said])
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images of three colours, more than a tower of random weights can confuse."""
    root, draws = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for colour, name in enumerate(("red car", "green_tea", "SKU-17")):
        for split, count in (("train", SHOTS), ("val", 4), ("test", 1)):
            (root / split / name).mkdir(parents=True)
            for at in range(count):
                pixels = draws.integers(0, 150, (32, 32, 3), dtype=np.uint8)
                pixels[..., colour] += 100
                Image.fromarray(pixels).save(root / split / name / f"{at}.png")
    return root


@pytest.fixture(scope="module")
def plain() -> Backbone:
    text = TextConfig(context_length=77, vocab_size=49408, width=64, heads=4, layers=1)
    backbone = random_backbone(BackboneConfig("plain", 32, VitConfig(32, 8, 64, 1, 4), text))
    backbone.visual = PlainTower(backbone)
    return backbone


def as_fit_leaves_it(name, photos, backbone, tmp_path, variant=""):
    """Fitted, calibrated, saved and read again."""
    kind, dataset = METHODS[name], open_dataset(photos)
    config = make_config(kind, "default", variant, QUICK.get(name, []))
    bank = FeatureCache(backbone, cache=tmp_path / "cache", progress=False)
    fit_into(tmp_path / "model", dataset, bank, kind, config, FitOptions(max_steps=1, progress=False))
    return TunedModel.load(tmp_path / "model", backbone)


@pytest.mark.parametrize(
    ("name", "variant"), [*((name, "") for name in METHODS if METHODS[name].trains), ("tip-adapter", "f")]
)
def test_onnxruntime_says_what_torch_says(name, variant, photos, plain, tiny_vit, tmp_path):
    backbone = tiny_vit if METHODS[name].tunes_towers else plain
    model = as_fit_leaves_it(name, photos, backbone, tmp_path, variant)
    assert model.calibrated
    if not model.method.exportable:
        with pytest.raises(InputError, match=f"'{name}' cannot be exported"):
            export_onnx(model, tmp_path / "model.onnx")
        return
    variants = {"as it is": model}
    if name == "conjugate":  # whose graph is another with names alone, and with one class
        assert len(model.method.fitted.posterior.novelty.familiar) >= FEWEST
        variants["a name beside them"] = model.with_classes(["zebra"])
        variants["names alone"] = model.for_classes(["zebra", "owl"])
        variants["one class"] = model.for_classes(model.classes[:1])
    agree(variants, tmp_path)


def test_names_alone_export(plain, tmp_path):
    agree({"zero-shot": TunedModel.zero_shot(plain, ["cat", "dog"])}, tmp_path)


def agree(variants, tmp_path):
    """Each of the models, exported, says in a fresh process what torch says here."""
    first = next(iter(variants.values()))
    size = first.backbone.preprocess.size
    images = np.random.default_rng(1).integers(0, 256, (5, size, size, 3), dtype=np.uint8)
    images[1:3] //= 3  # of none of the colours, and of one
    images[2, ..., 0] += 100
    np.save(tmp_path / "images.npy", images)
    files = []
    for at, model in enumerate(variants.values()):
        written = export_onnx(model, tmp_path / f"{at}.onnx")
        assert written.calibrated == model.calibrated
        files.append(str(written.files[0]))
    call = [sys.executable, "-c", ALONE, str(tmp_path / "images.npy"), str(tmp_path / "said.npz"), *files]
    alone = subprocess.run(call, capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    with np.load(tmp_path / "said.npz") as said:
        for (what, model), key in zip(variants.items(), said, strict=True):
            pixels = [model.backbone.preprocess(Image.fromarray(image)) for image in images]
            with torch.inference_mode():
                wanted = model.predictor(model.encode(pixels))
            parts = (wanted.probabilities.ravel(), wanted.entropy, wanted.mutual_information)
            np.testing.assert_allclose(said[key], torch.cat(parts).numpy(), rtol=0, atol=NEAR, err_msg=what)
