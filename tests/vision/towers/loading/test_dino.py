"""DINO's folders: whatever is wrong with one is said in a line that names the file."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from dino_folder import dino_model, write_dino
from safetensors.torch import load_file, save_file
from siglip_folder import change

from pbprompt.errors import InputError
from pbprompt.vision.towers.loading.load import load_backbone


@pytest.fixture(scope="module")
def models():
    return {kind: dino_model(kind) for kind in ("dinov2", "dinov3")}


def changed(file: str, **content: object) -> Callable[[Path], None]:
    return lambda folder: change(folder / file, **content)


def with_tensors(act: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        act(state)
        save_file(state, folder / "model.safetensors")

    return spoil


def without(key: str) -> Callable[[Path], None]:
    return with_tensors(lambda state: state.pop(key))


def put(key: str, value: torch.Tensor) -> Callable[[Path], None]:
    return with_tensors(lambda state: state.update({key: value}))


@pytest.mark.parametrize(
    ("kind", "spoil", "message"),
    [
        ("dinov2", changed("config.json", hidden_size=48), "hidden_size is 48, but the tensors say 32"),
        ("dinov2", changed("config.json", num_hidden_layers=3), "num_hidden_layers is 3"),
        ("dinov2", changed("config.json", num_attention_heads=5), "num_attention_heads is 5"),
        ("dinov3", changed("config.json", num_attention_heads=16), "num_attention_heads is 16"),
        ("dinov2", changed("config.json", use_swiglu_ffn=True), "use_swiglu_ffn is True"),
        ("dinov2", changed("config.json", hidden_act="relu"), "hidden_act is 'relu'"),
        ("dinov3", changed("config.json", rope_theta="x"), "rope_theta is 'x'"),
        ("dinov3", changed("config.json", num_register_tokens=2), "num_register_tokens is 2"),
        (
            "dinov3",
            changed("config.json", model_type="dinov3_convnext"),
            "timm's models (timm/NAME) are supported",
        ),
        ("dinov2", changed("config.json", model_type="dinov3_vit"), "that the towers of its kind lack"),
        (
            "dinov3",
            changed("config.json", model_type="dinov2"),
            "lacks the tensor visual.positional_embedding",
        ),
        ("dinov2", changed("preprocessor_config.json", resample=0), "resample is 0"),
        ("dinov2", changed("preprocessor_config.json", size={"shortest_edge": 8}), "images of 32 pixels"),
        ("dinov3", changed("preprocessor_config.json", size={"height": 32, "width": 64}), "a square"),
        ("dinov3", changed("preprocessor_config.json", size={"height": 4, "width": 4}), "hold no patch of 8"),
        ("dinov2", changed("preprocessor_config.json", image_mean=[0.5]), "image_mean is [0.5]"),
        ("dinov2", without("encoder.layer.1.layer_scale1.lambda1"), "lacks the tensor visual.blocks.1.layer"),
        ("dinov2", without("encoder.layer.1.norm1.weight"), "lacks the tensor visual.blocks.1.ln_1.weight"),
        ("dinov2", without("embeddings.patch_embeddings.projection.weight"), "lacks the tensor visual.conv1"),
        ("dinov3", without("layer.0.attention.k_proj.weight"), "lacks the tensor visual.blocks.0.attn.k"),
        ("dinov3", put("layer.0.attention.k_proj.weight", torch.zeros(8, 32)), "do not fit together"),
        ("dinov3", put("layer.0.layer_scale1.lambda1", torch.zeros(8)), "do not fit together"),
        ("dinov2", put("embeddings.position_embeddings", torch.zeros(1, 8, 32)), "has 8 positions"),
        ("dinov2", put("something", torch.zeros(2)), "has the tensor visual.something"),
        ("dinov2", put("layernorm.weight", torch.full((32,), torch.nan)), "NaN or infinite"),
    ],
)
def test_what_is_wrong_is_one_sentence(models, tmp_path, kind, spoil, message):
    folder = write_dino(tmp_path, models[kind])
    spoil(folder)
    with pytest.raises(InputError) as caught:
        load_backbone(folder)
    said = str(caught.value)
    assert message in said and "\n" not in said and str(folder) in said and len(said) < 400


def test_a_classifier_on_top_is_left_off(models, tmp_path):
    plain = load_backbone(write_dino(tmp_path / "plain", models["dinov2"]))
    folder = write_dino(tmp_path / "classifier", models["dinov2"])
    state = load_file(folder / "model.safetensors")
    tuned = {f"dinov2.{key}": value for key, value in state.items()} | {
        "classifier.weight": torch.ones(3, 64)
    }
    save_file(tuned, folder / "model.safetensors")
    assert load_backbone(folder).fingerprint == plain.fingerprint


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_shards_are_one_model(models, tmp_path, name):
    folder = write_dino(tmp_path, models["dinov2"])
    whole = load_backbone(folder).fingerprint
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    write = save_file if name.endswith("safetensors") else torch.save
    where = {key: f"{at % 2}-{name}" for at, key in enumerate(state)}
    for file in set(where.values()):
        write({key: state[key] for key in state if where[key] == file}, folder / file)
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": where}))
    assert load_backbone(folder).fingerprint == whole


def test_what_changes_the_features_changes_the_fingerprint(models, tmp_path):
    folder = write_dino(tmp_path, models["dinov3"])
    prints = {load_backbone(folder).fingerprint}
    for file, content in (
        ("config.json", {"rope_theta": 50.0}),
        ("config.json", {"num_attention_heads": 2}),
        ("preprocessor_config.json", {"resample": 3}),
        ("preprocessor_config.json", {"size": {"shortest_edge": 40}, "crop_size": 32}),
    ):
        change(folder / file, **content)
        prints.add(load_backbone(folder).fingerprint)
    assert len(prints) == 5


def test_another_activation_is_refused(models, tmp_path):
    folder = write_dino(tmp_path, models["dinov2"])
    with pytest.raises(InputError, match="the model uses gelu"):
        load_backbone(folder, activation="quick_gelu")
