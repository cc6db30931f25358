"""The JSON files that travel with weights and say what the tensors do not."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pbprompt.clip.backbone import CLIP_MEAN, CLIP_STD
from pbprompt.data.square import Fit, Interpolation
from pbprompt.errors import InputError
from pbprompt.files import read_text

Triple = tuple[float, float, float]

OPEN_CLIP_CONFIG = "open_clip_config.json"
HF_CONFIG = "config.json"
HF_PREPROCESSOR = "preprocessor_config.json"
HF_TOKENIZER = "tokenizer.json"
HF_TOKENIZER_CONFIG = "tokenizer_config.json"

# open_clip's settings that are read, or that the tensors' shapes show; any other one changes the computation.
OPEN_CLIP_MODEL = {"embed_dim", "quick_gelu", "vision_cfg", "text_cfg", "custom_text", "init_logit_scale"}
OPEN_CLIP_VISION = {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio", "patch_dropout"}
OPEN_CLIP_TEXT = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"}
LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True)
class Told:
    """What is known of a model beside its tensors. `sizes` is keyed by where it belongs: `vision.heads`."""

    activation: str | None = None
    sizes: dict[str, Any] = field(default_factory=dict)
    mean: Triple = CLIP_MEAN
    std: Triple = CLIP_STD
    family: Literal["clip", "siglip"] = "clip"
    fit: Fit = "crop"
    interpolation: Interpolation = "bicubic"


def read_open_clip(path: Path) -> Told:
    """open_clip's config: an absent `quick_gelu` means GELU there."""
    config = read_json(path)
    model = _section(path, config, "model_cfg")
    vision, text = _section(path, model, "vision_cfg"), _section(path, model, "text_cfg")
    for part, known in ((model, OPEN_CLIP_MODEL), (vision, OPEN_CLIP_VISION), (text, OPEN_CLIP_TEXT)):
        for name in sorted(part.keys() - known):
            if part[name]:
                raise InputError(
                    f"{path}: the setting {name}={part[name]!r} is not supported by these towers"
                )
    sizes = {f"text.{name}": text.get(name) for name in OPEN_CLIP_TEXT - {"mlp_ratio"}}
    sizes |= {f"vision.{name}": vision.get(name) for name in ("image_size", "layers", "width", "patch_size")}
    sizes["embed_dim"] = model.get("embed_dim")
    if vision.get("patch_size") and vision.get("width"):
        sizes["vision.heads"] = vision["width"] // (vision.get("head_width") or 64)
    images = config.get("preprocess_cfg") or {}
    for name, ours in (("interpolation", "bicubic"), ("resize_mode", "shortest")):
        if images.get(name) not in (None, ours):
            raise InputError(f"{path}: preprocess_cfg.{name} is {images[name]!r}; only {ours!r} is supported")
    return Told(
        activation="quick_gelu" if model.get("quick_gelu") else "gelu",
        sizes=known_sizes(sizes),
        mean=triple(path, images, "mean", CLIP_MEAN),
        std=triple(path, images, "std", CLIP_STD),
    )


def read_hugging_face(path: Path, preprocessor: Path | None) -> Told:
    """Hugging Face's CLIP config; what it leaves out has transformers' default."""
    config = read_json(path)
    if config.get("model_type") != "clip":
        raise InputError(
            f"{path}: model_type is {config.get('model_type')!r}; "
            "only 'clip' models and 'siglip' models of a fixed resolution are supported"
        )
    vision, text = towers(config)
    activations = {tower.get("hidden_act", "quick_gelu") for tower in (vision, text)}
    if len(activations) > 1 or not activations <= {"quick_gelu", "gelu"}:
        raise InputError(
            f"{path}: hidden_act is {sorted(activations)}; both towers need one of 'quick_gelu' and 'gelu'"
        )
    for tower in (vision, text):
        if tower.get("layer_norm_eps", LAYER_NORM_EPS) != LAYER_NORM_EPS:
            raise InputError(
                f"{path}: layer_norm_eps is {tower['layer_norm_eps']}; CLIP's is {LAYER_NORM_EPS}"
            )
    sizes = {
        "embed_dim": config.get("projection_dim"),
        "vision.image_size": vision.get("image_size", 224),
        "vision.patch_size": vision.get("patch_size", 32),
        "vision.width": vision.get("hidden_size", 768),
        "vision.layers": vision.get("num_hidden_layers", 12),
        "vision.heads": vision.get("num_attention_heads", 12),
        "text.context_length": text.get("max_position_embeddings", 77),
        "text.vocab_size": text.get("vocab_size", 49408),
        "text.width": text.get("hidden_size", 512),
        "text.layers": text.get("num_hidden_layers", 12),
        "text.heads": text.get("num_attention_heads", 8),
    }
    images = read_json(preprocessor) if preprocessor else {}
    return Told(
        activation=activations.pop(),
        sizes=known_sizes(sizes),
        mean=triple(preprocessor, images, "image_mean", CLIP_MEAN),
        std=triple(preprocessor, images, "image_std", CLIP_STD),
    )


def towers(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections of the image and of the text tower."""
    vision, text = (
        (config.get(f"{tower}_config") or {}) | (config.get(f"{tower}_config_dict") or {})
        for tower in ("vision", "text")
    )
    return vision, text


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: not readable as JSON ({str(error).splitlines()[0]}); fetch it again"
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds no JSON object; fetch it again")
    return content


def _section(path: Path, config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    if not isinstance(section, dict):
        raise InputError(f"{path}: has no section {name!r}; give the config that came with the weights")
    return section


def known_sizes(sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in sizes.items()
        if value is not None
    }


def triple(path: Path | None, images: dict[str, Any], name: str, default: Triple) -> Triple:
    values = images.get(name, default)
    try:
        first, second, third = (float(value) for value in values)
    except (TypeError, ValueError):
        raise InputError(f"{path}: {name} is {values!r}; three numbers are needed") from None
    return first, second, third
