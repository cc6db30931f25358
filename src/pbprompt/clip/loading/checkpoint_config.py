"""The configs that travel with weights and say what the tensors do not."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pbprompt.clip.loading.companions import (
    CLIP_IMAGES,
    Images,
    read_json,
    read_open_clip_images,
    read_preprocessor,
)
from pbprompt.clip.timm_tower import TimmConfig
from pbprompt.errors import InputError

# open_clip's settings that are read, or that the tensors' shapes show; any other one changes the computation.
OPEN_CLIP_MODEL = {"embed_dim", "quick_gelu", "vision_cfg", "text_cfg", "custom_text", "init_logit_scale"}
OPEN_CLIP_VISION = {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio", "patch_dropout"}
OPEN_CLIP_TEXT = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "no_causal_mask"}
OPEN_CLIP_EOS = {"pool_type", "eos_id", "hf_tokenizer_name"}  # together: MetaCLIP 2's text
LAYER_NORM_EPS = 1e-5
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

    A vocabulary that is not CLIP's lies in files beside the weights.
    """

    activation: str | None = None
    sizes: dict[str, Any] = field(default_factory=dict)
    images: Images = CLIP_IMAGES
    family: Literal["clip", "siglip", "eva", "perception", "trunk"] = "clip"
    vocabulary: Literal["clip", "siglip", "metaclip_2"] = "clip"
    trunk: TimmConfig | None = None


def read_open_clip(path: Path, trunk: bool = False) -> CheckpointConfig:
    """open_clip's config, where an absent `quick_gelu` means GELU; `trunk`: the image tower is timm's."""
    config = read_json(path)
    model = _section(path, config, "model_cfg")
    vision, text = _section(path, model, "vision_cfg"), _section(path, model, "text_cfg")
    reads_to_eos = text.get("pool_type") == "eos"
    of_text = OPEN_CLIP_TEXT | (OPEN_CLIP_EOS if reads_to_eos else set())
    for part, known in ((model, OPEN_CLIP_MODEL), (vision, OPEN_CLIP_VISION), (text, of_text)):
        for name in sorted(part.keys() - known):
            if part[name] and not (trunk and name.startswith("timm_")):  # there the tensors show what it says
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
        sizes=known_sizes(sizes),
        images=read_open_clip_images(path, config.get("preprocess_cfg") or {}, vision.get("image_size")),
        vocabulary="metaclip_2" if reads_to_eos else "clip",
    )


def read_hugging_face(path: Path) -> CheckpointConfig:
    """Hugging Face's config of CLIP or MetaCLIP 2; what it leaves out has transformers' default."""
    config = read_json(path)
    kind = config.get("model_type")
    if kind not in ("clip", "metaclip_2"):
        raise InputError(
            f"{path}: model_type is {kind!r}; "
            "only 'clip', 'metaclip_2', and 'siglip' models of a fixed resolution are supported"
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
    sizes = {"embed_dim": config.get("projection_dim")}
    usual = {"image_size": 224, "patch_size": 32, "width": 768, "layers": 12, "heads": 12}
    sizes |= hugging_face_sizes("vision", vision, **usual)
    usual = {"context_length": 77, "vocab_size": 49408, "width": 512, "layers": 12, "heads": 8}
    sizes |= hugging_face_sizes("text", text, **usual)
    return CheckpointConfig(
        activation=activations.pop(),
        sizes=known_sizes(sizes),
        images=read_preprocessor(path.parent, sizes["vision.image_size"], CLIP_IMAGES),
        vocabulary="clip" if kind == "clip" else "metaclip_2",
    )


def hugging_face_sizes(tower: str, told: dict[str, Any], **usual: int) -> dict[str, Any]:
    """Sizes under our names, from a tower's section of the config; what it leaves out is as usual."""
    return {f"{tower}.{name}": told.get(HF_SIZES.get(name, name), size) for name, size in usual.items()}


def towers(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections of the image and of the text tower."""
    vision, text = (
        (config.get(f"{tower}_config") or {}) | (config.get(f"{tower}_config_dict") or {})
        for tower in ("vision", "text")
    )
    return vision, text


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
