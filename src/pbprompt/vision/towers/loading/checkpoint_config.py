"""The configs that travel with weights and say what the tensors do not."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pbprompt.errors import InputError
from pbprompt.vision.towers.backbone import CLIP_IMAGES, Images
from pbprompt.vision.towers.layers import CLIP_EPS, FINE_EPS
from pbprompt.vision.towers.loading.checkpoint_files import (
    HALF,
    HF_CONFIG,
    OPEN_CLIP_CONFIG,
    read_json,
    read_open_clip_images,
    read_preprocessor,
)
from pbprompt.vision.towers.loading.timm_files import trunk_config
from pbprompt.vision.towers.timm_tower import TimmConfig

Family = Literal["clip", "siglip", "eva", "perception", "trunk"]
# open_clip's settings that are read, or that the tensors' shapes show; any other one changes the computation.
OPEN_CLIP_MODEL = {"embed_dim", "quick_gelu", "vision_cfg", "text_cfg", "custom_text", "init_logit_scale"}
OPEN_CLIP_VISION = {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio", "patch_dropout"}
OPEN_CLIP_TEXT = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "no_causal_mask"}
OPEN_CLIP_EOS = {"pool_type", "eos_id", "hf_tokenizer_name"}  # together: MetaCLIP 2's text
HF_SIZES = {  # our name -> Hugging Face's, where it is another
    "width": "hidden_size",
    "hidden": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "context_length": "max_position_embeddings",
}


@dataclass(frozen=True)
class CheckpointConfig:
    """What is known of a model beside its tensors. `sizes` is keyed by where it belongs: `vision.heads`.

    A vocabulary that is not CLIP's lies in files beside the weights. `trunk`: what timm is to build.
    """

    activation: str | None = None
    sizes: dict[str, Any] = field(default_factory=dict)
    images: Images = CLIP_IMAGES
    vocabulary: Literal["clip", "siglip", "metaclip_2"] = "clip"
    trunk: TimmConfig | None = None


class Usual(NamedTuple):
    """What transformers takes where a config says nothing, and which activations there are (theirs: ours)."""

    activations: dict[str, str]  # the usual one first
    eps: float
    vision: dict[str, int]
    text: dict[str, int]
    images: Images


_ALIKE = {"width": 768, "hidden": 3072, "layers": 12, "heads": 12}
USUAL_CLIP = Usual(
    {"quick_gelu": "quick_gelu", "gelu": "gelu"},
    CLIP_EPS,
    {"image_size": 224, "patch_size": 32, "width": 768, "layers": 12, "heads": 12},
    {"context_length": 77, "vocab_size": 49408, "width": 512, "layers": 12, "heads": 8},
    CLIP_IMAGES,
)
USUAL_SIGLIP = Usual(
    {"gelu_pytorch_tanh": "gelu_tanh"},
    FINE_EPS,
    {"image_size": 224, "patch_size": 16, **_ALIKE},
    {"context_length": 64, "vocab_size": 32000, **_ALIKE},
    Images(HALF, HALF, "squash"),
)
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
    return read_open_clip(config, family) if config.name == OPEN_CLIP_CONFIG else read_hf(config, family)


def read_open_clip(path: Path, family: Family) -> CheckpointConfig:
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
    sizes["embed_dim"] = model.get("embed_dim")
    sizes["text.causal"] = not text.get("no_causal_mask")
    if vision.get("patch_size") and vision.get("width"):
        sizes["vision.heads"] = vision["width"] // (vision.get("head_width") or 64)
    return CheckpointConfig(
        activation="quick_gelu" if model.get("quick_gelu") else "gelu",
        sizes=_known(sizes),
        images=read_open_clip_images(path, config.get("preprocess_cfg") or {}, vision.get("image_size")),
        vocabulary="metaclip_2" if reads_to_eos else "clip",
        trunk=trunk_config(path, vision, model.get("embed_dim")) if family == "trunk" else None,
    )


def read_hf(path: Path, family: Family) -> CheckpointConfig:
    """Hugging Face's config of CLIP, MetaCLIP 2 or SigLIP."""
    config = read_json(path)
    kind: Any = config.get("model_type")
    siglip = family == "siglip"
    if siglip and kind != "siglip":
        raise InputError(
            f"{path}: model_type is {kind!r}, but the tensors are SigLIP's; "
            "give a model of a fixed resolution, with the config that came with it (model_type 'siglip')"
        )
    if not siglip and kind not in ("clip", "metaclip_2"):
        raise InputError(
            f"{path}: model_type is {kind!r}; "
            "only 'clip', 'metaclip_2', and 'siglip' models of a fixed resolution are supported"
        )
    usual = USUAL_SIGLIP if siglip else USUAL_CLIP
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
    for place, tower, known in (("vision", vision, usual.vision), ("text", text, usual.text)):
        for name, size in known.items():
            sizes[f"{place}.{name}"] = tower.get(HF_SIZES.get(name, name), size)
    return CheckpointConfig(
        activation=usual.activations[activations.pop()],
        sizes=_known(sizes),
        images=read_preprocessor(path.parent, sizes["vision.image_size"], usual.images),
        vocabulary=kind,
    )


def _section(path: Path, config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    if not isinstance(section, dict):
        raise InputError(f"{path}: has no section {name!r}; give the config that came with the weights")
    return section


def _known(sizes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in sizes.items()
        if value is not None
    }
