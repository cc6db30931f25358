"""The JSON that travels with weights, of open_clip and Hugging Face: what the tensors do not say of a model,
how its images are prepared, and the tokenizer of one whose vocabulary is not CLIP's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pbprompt.errors import InputError, first_line, needing
from pbprompt.vision.images.crops import Fit, Interpolation
from pbprompt.vision.images.transforms import Triple
from pbprompt.vision.towers.backbone import CLIP_IMAGES, CLIP_MEAN, CLIP_STD, Images
from pbprompt.vision.towers.layers import CLIP_EPS, FINE_EPS
from pbprompt.vision.towers.loading.files import (
    HF_CONFIG,
    HF_PREPROCESSOR,
    HF_PROCESSOR,
    HF_TOKENIZER,
    HF_TOKENIZER_CONFIG,
    OPEN_CLIP_CONFIG,
    read_json,
)
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.tokenizer import SentenceTokenizer

Family = Literal["clip", "siglip", "eva", "perception", "trunk"]
Vocabulary = Literal["clip", "siglip", "metaclip_2"]

HALF: Triple = (0.5, 0.5, 0.5)
PILLOW: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
RESIZE_MODES: dict[str, Fit] = {"shortest": "crop", "squash": "squash"}  # open_clip's words

# open_clip's settings that are read, or that the tensors' shapes show; any other one changes the computation.
OPEN_CLIP_MODEL = {"embed_dim", "quick_gelu", "vision_cfg", "text_cfg", "custom_text", "init_logit_scale"}
OPEN_CLIP_VISION = {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio", "patch_dropout"}
OPEN_CLIP_TEXT = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "no_causal_mask"}
OPEN_CLIP_EOS = {"pool_type", "eos_id", "hf_tokenizer_name"}  # together: MetaCLIP 2's text
HF_SIZES = {  # our name -> Hugging Face's
    "width": "hidden_size",
    "hidden": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "image_size": "image_size",
    "patch_size": "patch_size",
}
IMAGE_SIZE = 224  # where Hugging Face's config says none


@dataclass(frozen=True)
class CheckpointConfig:
    """What is known of a model beside its tensors. `sizes` is keyed by where it belongs: `vision.heads`.

    A vocabulary that is not CLIP's lies in files beside the weights. `trunk`: open_clip's section of an image
    tower that timm is to build.
    """

    activation: str | None = None
    sizes: dict[str, Any] = field(default_factory=dict)
    images: Images = CLIP_IMAGES
    vocabulary: Vocabulary = "clip"
    trunk: dict[str, Any] | None = None


class Usual(NamedTuple):
    """What transformers takes where a config says nothing, and which activations there are (theirs: ours)."""

    activations: dict[str, str]  # the usual one first
    eps: float
    text_heads: int
    images: Images


USUAL_CLIP = Usual({"quick_gelu": "quick_gelu", "gelu": "gelu"}, CLIP_EPS, 8, CLIP_IMAGES)
USUAL_SIGLIP = Usual({"gelu_pytorch_tanh": "gelu_tanh"}, FINE_EPS, 12, Images(HALF, HALF, "squash"))
USUAL_VISION_HEADS = 12
ALONE = {  # their authors' files come without a config
    "eva": CheckpointConfig("gelu"),
    "perception": CheckpointConfig("gelu", images=Images(HALF, HALF, "squash", "bilinear")),
}
NEEDED = {
    "siglip": f"a SigLIP model needs {HF_CONFIG} beside it; give the folder it came in",
    "trunk": f"its image tower is timm's, whose name is in {OPEN_CLIP_CONFIG}; give the model's folder",
}


def read_declared(path: Path, family: Family, hugging_face: bool, activation: str | None) -> CheckpointConfig:
    """What the config beside weights says; `activation`: what the file of weights itself says."""
    config = path.parent / (HF_CONFIG if hugging_face or family == "siglip" else OPEN_CLIP_CONFIG)
    if not config.is_file():
        if family in NEEDED:
            raise InputError(f"{path}: {NEEDED[family]}")
        return ALONE.get(family, CheckpointConfig(activation))
    if family == "clip" and activation is not None:
        return CheckpointConfig(activation)
    return _read_open_clip(config, family) if config.name == OPEN_CLIP_CONFIG else _read_hf(config, family)


def _read_open_clip(path: Path, family: Family) -> CheckpointConfig:
    """open_clip's config, where an absent `quick_gelu` means GELU."""
    config = read_json(path)
    model = _section(path, config, "model_cfg")
    vision, text = _section(path, model, "vision_cfg"), _section(path, model, "text_cfg")
    reads_to_eos = text.get("pool_type") == "eos"
    of_text = OPEN_CLIP_TEXT | (OPEN_CLIP_EOS if reads_to_eos else set())
    for part, known in ((model, OPEN_CLIP_MODEL), (vision, OPEN_CLIP_VISION), (text, of_text)):
        for name in sorted(part.keys() - known):
            timms = family != "clip" and name.startswith("timm_")  # the tensors show what it says
            if part[name] and not timms:
                raise InputError(
                    f"{path}: the setting {name}={part[name]!r} is not supported by these towers"
                )
    sizes = {f"text.{name}": text.get(name) for name in OPEN_CLIP_TEXT - {"mlp_ratio", "no_causal_mask"}}
    sizes |= {f"vision.{name}": vision.get(name) for name in ("image_size", "layers", "width", "patch_size")}
    sizes |= {"embed_dim": model.get("embed_dim"), "text.causal": not text.get("no_causal_mask")}
    if vision.get("patch_size") and vision.get("width"):
        sizes["vision.heads"] = vision["width"] // (vision.get("head_width") or 64)
    images, side = config.get("preprocess_cfg") or {}, vision.get("image_size")
    where = f"{path}: preprocess_cfg"
    if images.get("size", side) not in (side, [side, side]):
        raise InputError(f"{where}.size is {images['size']}, but image_size is {side}")
    resize_mode = one_of(where, images, "resize_mode", tuple(RESIZE_MODES), "shortest")
    return CheckpointConfig(
        activation="quick_gelu" if model.get("quick_gelu") else "gelu",
        sizes=_given(sizes),
        images=Images(
            triple(where, images, "mean", CLIP_MEAN),
            triple(where, images, "std", CLIP_STD),
            RESIZE_MODES[resize_mode],
            one_of(where, images, "interpolation", tuple(PILLOW.values()), "bicubic"),
        ),
        vocabulary="metaclip_2" if reads_to_eos else "clip",
        trunk=vision if family == "trunk" else None,
    )


def _read_hf(path: Path, family: Family) -> CheckpointConfig:
    """Hugging Face's config of CLIP, MetaCLIP 2 or SigLIP."""
    config = read_json(path)
    kind: Any = config.get("model_type")
    siglip = family == "siglip"
    whose, kinds, usual = (
        ("SigLIP", ("siglip",), USUAL_SIGLIP) if siglip else ("CLIP", ("clip", "metaclip_2"), USUAL_CLIP)
    )
    if kind not in kinds:
        raise InputError(
            f"{path}: model_type is {kind!r}, but the tensors are {whose}'s; give a model of a fixed "
            f"resolution, with the config that came with it (model_type {' or '.join(map(repr, kinds))})"
        )
    vision, text = (
        (config.get(f"{tower}_config") or {}) | (config.get(f"{tower}_config_dict") or {})
        for tower in ("vision", "text")
    )
    activations = {tower.get("hidden_act", next(iter(usual.activations))) for tower in (vision, text)}
    if len(activations) > 1 or not activations <= usual.activations.keys():
        raise InputError(
            f"{path}: hidden_act is {' and '.join(map(repr, sorted(activations)))}; "
            f"both towers need one of {' and '.join(map(repr, usual.activations))}"
        )
    for tower in (vision, text):
        if (eps := tower.get("layer_norm_eps", usual.eps)) != usual.eps:
            raise InputError(f"{path}: layer_norm_eps is {eps}; that of such a model is {usual.eps}")
    sizes = {"embed_dim": text.get("projection_size") if siglip else config.get("projection_dim")}
    sizes |= {"vision.heads": USUAL_VISION_HEADS, "text.heads": usual.text_heads}
    for place, tower in (("vision", vision), ("text", text)):
        sizes |= {f"{place}.{ours}": tower[name] for ours, name in HF_SIZES.items() if name in tower}
    return CheckpointConfig(
        activation=usual.activations[activations.pop()],
        sizes=_given(sizes),
        images=read_preprocessor(path.parent, sizes.get("vision.image_size", IMAGE_SIZE), usual.images)[1],
        vocabulary=kind,
    )


def read_preprocessor(folder: Path, side: Any, usual: Images) -> tuple[Any, Images]:
    """What a Hugging Face folder says of images, the rest as `usual`; and their side, which is in this file
    where the model's config does not say it."""
    path, newer = folder / HF_PREPROCESSOR, folder / HF_PROCESSOR
    declared = read_json(path) if path.is_file() else None
    if declared is None and newer.is_file():
        path, declared = newer, read_json(newer).get("image_processor")
    if not isinstance(declared, dict):
        return IMAGE_SIZE if side is None else side, usual
    side = _side(path, declared) if side is None else side
    interpolation = PILLOW.get(declared["resample"]) if "resample" in declared else usual.interpolation
    if interpolation is None:
        raise InputError(
            f"{path}: resample is {declared['resample']!r}; 2 (bilinear) and 3 (bicubic) are supported"
        )
    mean, std = (triple(path, declared, f"image_{name}", getattr(usual, name)) for name in ("mean", "std"))
    fit, resize = _fit(path, declared, side, usual)
    return side, Images(mean, std, fit, interpolation, resize)


def _side(path: Path, declared: Mapping[str, Any]) -> int:
    key = "crop_size" if declared.get("do_center_crop", declared.get("crop_size") is not None) else "size"
    side = declared.get(key)
    if isinstance(side, dict) and side.get("height") == side.get("width"):
        side = side.get("height")
    if type(side) is not int or side < 1:
        raise InputError(f"{path}: {key} is {declared.get(key)!r}; a square of so many pixels is needed")
    return side


def _fit(path: Path, declared: Mapping[str, Any], side: Any, usual: Images) -> tuple[Fit, int | None]:
    """Squashed where both sides are given, cropped where the shorter one is; that one, if it is longer."""
    size = declared.get("size")
    if size is None:
        return usual.fit, usual.resize
    square = {"height": side, "width": side}
    if size == square or (size == side and usual.fit == "squash"):
        return "squash", None
    short = size.get("shortest_edge") if isinstance(size, dict) else size
    crop = declared.get("crop_size", short)
    if type(short) is not int or type(side) is not int or short < side or crop not in (side, square):
        raise InputError(
            f"{path}: size is {size}, but images of {side} pixels are expected (by {HF_CONFIG} or crop_size)"
        )
    if not declared.get("do_center_crop", True):
        raise InputError(f"{path}: size is {size} without a crop; a model of square images is needed")
    return "crop", short if short > side else None


def read_tokenizer(folder: Path, text: TextConfig, vocabulary: Vocabulary) -> SentenceTokenizer:
    """SigLIP's (lower case, no start token) or MetaCLIP 2's (as it is written, between <s> and </s>)."""
    path, config = folder / HF_TOKENIZER, folder / HF_TOKENIZER_CONFIG
    for file in (path, config):
        if not file.is_file():
            own = " (spiece.model alone is not read)" if (folder / "spiece.model").is_file() else ""
            raise InputError(
                f"{folder}: lacks {file.name}, without which the model reads no text{own}; "
                "fetch it from the hub"
            )
    with needing(f"{folder}: its text needs tokenizers", "siglip"):
        from tokenizers import Tokenizer as Backend
    declared = read_json(config)
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare ones
        raise InputError(f"{path}: not readable ({first_line(error)}); fetch it again") from None
    if (most := max(backend.get_vocab().values(), default=0)) >= text.vocab_size:
        raise InputError(
            f"{path}: has token ids up to {most}, but the model has {text.vocab_size} tokens; "
            "give the tokenizer that came with the weights"
        )
    kind, siglip = str(declared.get("tokenizer_class", "")), vocabulary == "siglip"
    if not siglip and ("T5" in kind or "Siglip" in kind):
        raise InputError(
            f"{config}: tokenizer_class is {kind!r}; "
            "of MetaCLIP 2 the models with XLM-V's vocabulary are supported"
        )

    def special(name: str) -> int:
        spelled = declared.get(name)
        spelled = spelled.get("content") if isinstance(spelled, dict) else spelled
        token = backend.token_to_id(spelled) if isinstance(spelled, str) else None
        if token is None:
            raise InputError(
                f"{config}: {name} is {spelled!r}, which {HF_TOKENIZER} does not have; "
                "give the two files that came with the weights"
            )
        return int(token)

    return SentenceTokenizer(
        backend,
        vocab_size=text.vocab_size,
        context_length=text.context_length,
        sos=None if siglip else special("bos_token"),
        eot=special("eos_token"),
        pad=special("pad_token"),
        lower=siglip,
        punctuation=not kind.startswith("Siglip") or kind.startswith("Siglip2"),
        pads_left=one_of(config, declared, "padding_side", ("left", "right"), "right") == "left",
    )


def one_of(where: object, section: Mapping[str, Any], name: str, known: Sequence[str], usual: str) -> Any:
    """A setting that is one of a few words."""
    if (value := section.get(name) or usual) not in known:
        raise InputError(f"{where}: {name} is {value!r}; known are {', '.join(known)}")
    return value


def triple(where: object, section: Mapping[str, Any], name: str, usual: Triple) -> Triple:
    """A setting that is a number for each colour."""
    values = section.get(name, usual)
    try:
        first, second, third = (float(value) for value in values)
    except (TypeError, ValueError):
        raise InputError(f"{where}: {name} is {values!r}; three numbers are needed") from None
    return first, second, third


def _section(path: Path, config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    if not isinstance(section, dict):
        raise InputError(f"{path}: has no section {name!r}; give the config that came with the weights")
    return section


def _given(sizes: dict[str, Any]) -> dict[str, Any]:
    sizes = {name: tuple(value) if isinstance(value, list) else value for name, value in sizes.items()}
    return {name: value for name, value in sizes.items() if value is not None}
