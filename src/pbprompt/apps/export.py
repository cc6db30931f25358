"""A tuned classifier as one ONNX file that needs neither torch nor this package.

    image: uint8 [batch, R, R, 3]  →  probabilities [batch, C], entropy [batch], epistemic [batch]

The graph is normalisation, image tower, the sampled classifiers (folded in as a constant bank [S, C, d]) and
their mean and disagreement. Pillow's bicubic resize and the crop stay outside; the metadata say how they go.
"""

import copy
import glob
import json
import logging
import math
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Float, UInt8
from safetensors.torch import save
from torch import Tensor, nn

from pbprompt import __version__
from pbprompt.config import to_dict
from pbprompt.errors import InputError, needing
from pbprompt.files import held, write_bytes
from pbprompt.learners.method import Method
from pbprompt.learners.predictive import Predictive
from pbprompt.model.calibration import CERTAINTY, Calibration
from pbprompt.model.predictor import Predictor
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.crops import BORDER
from pbprompt.vision.images.transforms import Preprocess
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.taps import Tapped
from pbprompt.vision.towers.vit import VitConfig

Precision = Literal["fp32", "fp16"]
FORMAT = "pbprompt-onnx"
METADATA_KEY = "pbprompt"
OUTPUTS = {
    "probabilities": "mean over the sampled prompts, in the order of classes",
    "entropy": "the whole doubt about the image, in nats",
    "epistemic": "the part of the entropy that the sampled prompts disagree on, in nats",
}
SHARES = (0.8, 0.9, 0.95, 0.99)
ONE_FILE = 1_750_000_000  # bytes of weights: an ONNX file ends at 2 GiB, what is larger goes beside it
TRACED_BATCH = 64  # in which methods that go over images in chunks have one chunk; the graph takes any batch
# How far a probability may be from torch's: rounding, which in float16 a logit scale of 100 makes large.
TOLERANCE: Mapping[Precision, float] = {"fp32": 1e-3, "fp16": 0.1}


class Exported(NamedTuple):
    """What was written: the model, and its weights where they did not fit into one file."""

    files: tuple[Path, ...]
    difference: float
    """the farthest that a probability was from torch's, on random images"""
    calibrated: bool
    """whether the metadata say when to be unsure"""


class ImageClassifier(nn.Module):
    """The graph: pixels in, what the sampled classifiers say out. Float32 but for the tower."""

    pixel_mean: Tensor
    pixel_std: Tensor
    bank: Tensor

    def __init__(self, predictor: Predictor, tower_dtype: torch.dtype) -> None:
        super().__init__()
        backbone = predictor.method.backbone
        self.method = predictor.method
        self.temperature = predictor.temperature
        self.tower_dtype = tower_dtype
        merges = isinstance(backbone, Tapped) and backbone.mergeable
        visual = cast(Tapped, backbone).merged().visual if merges else copy.deepcopy(backbone.visual)
        self.visual = visual.to(tower_dtype)
        see = backbone.preprocess
        # not "mean": that is what the graph calls a method's own mean, and a name can stand for one thing
        for name, values in (("pixel_mean", see.mean), ("pixel_std", see.std)):
            self.register_buffer(name, torch.tensor(values, device=backbone.device).view(3, 1, 1))
        self.register_buffer("bank", predictor.bank)

    def forward(
        self, image: UInt8[Tensor, "b h w 3"]
    ) -> tuple[Float[Tensor, "b c"], Float[Tensor, " b"], Float[Tensor, " b"]]:
        pixels = (image.permute(0, 3, 1, 2).float() / 255 - self.pixel_mean) / self.pixel_std
        encoded = Encoded(*(part.float() for part in self.visual(pixels.to(self.tower_dtype))))
        logits = self.method.sample_logits(encoded, self.bank)
        found = Predictive.of_logits(logits).tempered(self.temperature)
        return found.probabilities, found.entropy, found.mutual_information


@torch.no_grad()
def export_onnx(
    model: TunedModel | str | Path, out: str | Path, *, precision: Precision = "fp32"
) -> Exported:
    """Write a tuned model (or the folder of one) as ONNX, checked by onnxruntime.

    The model's calibration goes into the metadata as thresholds where it was made for these classes, samples
    and seed.

    Args:
        model: the model, or its folder.
        out: the file; an earlier one is replaced only by a whole new one.
        precision: `fp16`: the image tower's weights and arithmetic are float16.

    Example:
        >>> model = TunedModel.zero_shot(load_backbone("lite"), ["cat", "dog"])
        >>> [file.name for file in export_onnx(model, "model.onnx").files]
        ['model.onnx']
    """
    with needing("ONNX export needs onnx, onnxruntime and onnxscript", "onnx"):
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    if not isinstance(model, TunedModel):
        model = TunedModel.load(Path(model))
    predictor, calibration, out = model.predictor, model.calibration, Path(out)
    if out.is_dir():
        raise InputError(f"{out}: is a folder: give a file name such as model.onnx")
    if not model.method.exportable:
        raise _not_exportable(model.method, "what it computes depends on the image: no bank can be folded in")
    classifier = ImageClassifier(predictor, torch.float16 if precision == "fp16" else torch.float32)
    program = _program(classifier)
    facts = metadata(predictor, precision, model.seed)
    now = (len(predictor.classes), len(predictor.bank), model.seed)
    if calibration is not None and (calibration.classes, calibration.samples, calibration.seed) == now:
        facts["calibration"] = thresholds(calibration)
    program.model.metadata_props[METADATA_KEY] = json.dumps(facts, ensure_ascii=False)
    program.model.producer_name, program.model.producer_version = "pbprompt", __version__
    out.parent.mkdir(parents=True, exist_ok=True)
    with held(out.parent):
        for left in out.parent.glob(f".{glob.escape(out.name)}.*"):  # by exports that were killed
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        weights = (value.const_value for value in program.model.graph.initializers.values())
        size = sum(weight.nbytes for weight in weights if weight is not None)
        if size <= ONE_FILE:  # a kill can leave no folder where none is made
            content = program.model_proto.SerializeToString()
            difference = _checked(content, predictor, out, precision)
            write_bytes(out, content)
            return Exported((out,), difference, "calibration" in facts)
        # Weights beside the model are found by name, so the names are final and the folder is temporary.
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
            program.save(Path(folder) / out.name, external_data=True)
            difference = _checked(Path(folder) / out.name, predictor, out, precision)
            files = sorted(Path(folder).iterdir(), reverse=True)  # weights first: a model never lacks its own
            written = tuple(file.replace(out.parent / file.name) for file in files)
        return Exported(written[::-1], difference, "calibration" in facts)


def export_towers(model: TunedModel | str | Path, out: str | Path) -> Path:
    """Write the tuned towers as a checkpoint in OpenAI's layout, their low-rank updates in the weights.

    Any program that reads such files takes it, and `--backbone FILE` here. A merged model has no other state:
    what was tuned besides, such as a context, stays in the model folder.
    """
    if not isinstance(model, TunedModel):
        model = TunedModel.load(Path(model))
    towers, out = model.backbone, Path(out)
    if not isinstance(towers, Tapped):
        raise InputError(f"{model.method.name} leaves the towers as they are: there is nothing to merge")
    if not towers.mergeable:
        raise InputError(
            f"{model.method.name} does more inside the towers than low-rank updates, which alone can be "
            "merged into weights: export to a .onnx file"
        )
    if not isinstance(towers.config.vision, VitConfig):
        raise InputError(
            f"{towers.config.name} is no file of OpenAI's layout, as which towers are written: export to a "
            ".onnx file"
        )
    state = {key.removeprefix("textual."): value for key, value in towers.merged().state_dict().items()}
    state["logit_scale"] = torch.tensor(math.log(towers.logit_scale))
    write_bytes(out, save({key: value.cpu().contiguous() for key, value in state.items()}))
    return out


def metadata(predictor: Predictor, precision: Precision, seed: int) -> dict[str, Any]:
    """All that is needed to feed the model and to read its answers."""
    method, backbone = predictor.method, predictor.method.backbone
    return {
        "format": FORMAT,
        "version": 1,
        "library": __version__,
        "method": method.name,
        "config": to_dict(method.config),
        "classes": list(predictor.classes),
        "template": method.template,
        "samples": len(predictor.bank),
        "seed": seed,
        "temperature": predictor.temperature,
        "precision": precision,
        **({"backbones": named} if (named := [_named(tower) for tower in backbone.towers])[1:] else {}),
        "backbone": _named(backbone),
        "preprocessing": _canvas(backbone),
        "outputs": OUTPUTS,
    }


def _named(backbone: Backbone) -> dict[str, str]:
    config = backbone.config
    return {"name": config.name, "activation": config.activation, "fingerprint": backbone.fingerprint}


def _canvas(backbone: Backbone) -> dict[str, Any]:
    """How what the model sees is made of a file: a crop, or those of several backbones on one canvas."""
    crops = {tower.preprocess.cropper: preprocessing(tower.preprocess) for tower in backbone.towers}
    if len(crops) == 1:
        return preprocessing(backbone.preprocess)
    height, width = backbone.preprocess.shape
    where = "the squares one below another, each at the left, 0 beside them"
    return {"input": f"uint8 [batch, {height}, {width}, 3]: {where}", "squares": list(crops.values())}


def preprocessing(see: Preprocess) -> dict[str, Any]:
    """How the crop that a tower sees is made of a file, to the pixel."""
    how = f"Pillow's {see.interpolation.upper()}"
    made: dict[str, dict[str, Any]] = {
        "squash": {"resize": f"{how}: the whole image to size x size, its shape given up"},
        "pad": {
            "resize": f"{how}: long side to size, short side to max(1, round(size * short / long))",
            "border": f"RGB {BORDER}; left = (size - width + 1) // 2, top = (size - height + 1) // 2",
        },
        "crop": {
            "short_side": see.resize or see.size,
            "resize": f"{how}: short side to short_side, long side to int(short_side * long / short)",
            "crop": "size x size, left = round((width - size) / 2), top = round((height - size) / 2)",
        },
    }
    return {
        "size": see.size,
        "open": "first frame, EXIF orientation applied, transparency laid on white, 8-bit RGB",
        **made[see.fit],
        "input": "uint8 [batch, size, size, 3], values 0 to 255",
        "in_the_model": "(x / 255 - mean) / std",
        "mean": list(see.mean),
        "std": list(see.std),
    }


def thresholds(calibration: Calibration) -> dict[str, Any]:
    """When to be unsure and what a set of classes holds, for usual accuracies and coverages."""
    sets = {share: calibration.quantile(share) for share in SHARES}
    return {
        "images": len(calibration),
        "certainty": CERTAINTY,
        "unsure_below": {str(share): _finite(calibration.threshold(share)) for share in SHARES},
        "set_quantile": {
            str(share): {"edges": list(found.edges), "quantiles": [_finite(each) for each in found.quantiles]}
            for share, found in sets.items()
        },
        "meaning": "unsure: the top probability, rounded to 6 digits, is below unsure_below[accuracy] (null: "
        "that accuracy cannot be promised); the others are right that often, promised with the certainty; "
        "set: the classes with 1 - probability <= quantiles[n] (null: all), at least one, where n is how "
        "many of the edges of set_quantile[coverage] are at or below the top probability",
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity


def _program(classifier: ImageClassifier) -> torch.onnx.ONNXProgram:
    shape, device = classifier.method.backbone.preprocess.shape, classifier.bank.device
    example = torch.zeros(2, *shape, 3, dtype=torch.uint8, device=device)
    try:
        with _quiet():
            traced = torch.export.export(
                classifier.eval(),
                (example,),
                dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=TRACED_BATCH)},),
                strict=False,
            )
            program = torch.onnx.export(
                traced,
                dynamo=True,
                input_names=["image"],
                output_names=list(OUTPUTS),
                dynamic_shapes=({0: "batch"},),  # its name in the file
                verbose=False,
            )
    except Exception as error:  # tracing runs the method's own code: it may raise anything
        why = f"its prediction is not one fixed computation ({type(error).__name__})"
        raise _not_exportable(classifier.method, why) from error
    assert program is not None
    return program


def _checked(model: bytes | Path, predictor: Predictor, out: Path, precision: Precision) -> float:
    """The farthest that a probability of the written model is from float32 torch's, on random images."""
    import onnxruntime

    shape = predictor.method.backbone.preprocess.shape
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (3, *shape, 3), generator=generator, dtype=torch.uint8)
    wanted = ImageClassifier(predictor, torch.float32)(images.to(predictor.bank.device))[0].cpu()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    got = session.run(["probabilities"], {"image": images.numpy()})[0]
    difference = (torch.from_numpy(got) - wanted).abs().max().item()
    if not difference <= TOLERANCE[precision]:  # not a number is refused too
        hint = ": use precision fp32" if precision == "fp16" else ""
        raise InputError(
            f"{out}: in {precision} the probabilities are {difference:.2g} away from torch's{hint}"
        )
    return difference


def _not_exportable(method: Method, why: str) -> InputError:
    return InputError(f"method {method.name!r} cannot be exported, since {why}: fit --method conjugate")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter logs and prints of its own workings, whether it succeeds or fails."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
