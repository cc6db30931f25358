"""Tiny DINOv2 and DINOv3 towers with random weights, written as Hugging Face's folders are."""

import json
from pathlib import Path
from typing import Any

import torch

SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SECOND: dict[str, Any] = {**SIZES, "image_size": 40, "patch_size": 8}
THIRD: dict[str, Any] = {**SIZES, "patch_size": 8, "num_register_tokens": 4, "intermediate_size": 52}
GATED: dict[str, Any] = {"use_gated_mlp": True, "hidden_act": "silu"}
MAKERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dinov2": ("Dinov2", SECOND),
    "dinov2-swiglu": ("Dinov2", {**SECOND, "use_swiglu_ffn": True}),
    "dinov2-registers": ("Dinov2WithRegisters", SECOND),
    "dinov3": ("DINOv3ViT", THIRD),
    "dinov3-gated": ("DINOv3ViT", {**THIRD, **GATED}),
}
KINDS = tuple(MAKERS)


def dino_model(kind: str, seed: int = 0) -> Any:
    """transformers' own, every tensor random: zeros and ones would hide a scale or a bias left out."""
    import transformers  # which takes seconds

    family, settings = MAKERS[kind]
    config = getattr(transformers, f"{family}Config")(**settings)
    model = getattr(transformers, f"{family}Model")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        value.data = 0.2 * torch.randn(value.shape, generator=generator) + (
            "norm" in name and "weight" in name
        )
    return model


def write_dino(folder: Path, model: Any, size: int = 32) -> Path:
    """The model's folder as the hub has them, for images of `size` pixels."""
    model.save_pretrained(folder)
    square = {"height": size, "width": size}
    images: dict[str, Any] = {"size": square, "resample": 2}
    if model.config.model_type != "dinov3_vit":
        images = {"size": {"shortest_edge": size + 4}, "crop_size": square, "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return folder
