"""Loading: every format, written here from one random model, gives that model back under one fingerprint."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.vision.towers.backbone import CLIP_MEAN, CLIP_STD
from pbprompt.vision.towers.loading.load import load_backbone

State = dict[str, Tensor]
TRACE_WARNINGS = "ignore:.*torch.jit.*:DeprecationWarning"


def block(prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.ln_1.weight": (width,),
        f"{prefix}.ln_1.bias": (width,),
        f"{prefix}.attn.in_proj_weight": (3 * width, width),
        f"{prefix}.attn.in_proj_bias": (3 * width,),
        f"{prefix}.attn.out_proj.weight": (width, width),
        f"{prefix}.attn.out_proj.bias": (width,),
        f"{prefix}.ln_2.weight": (width,),
        f"{prefix}.ln_2.bias": (width,),
        f"{prefix}.mlp.c_fc.weight": (4 * width, width),
        f"{prefix}.mlp.c_fc.bias": (4 * width,),
        f"{prefix}.mlp.c_proj.weight": (width, 4 * width),
        f"{prefix}.mlp.c_proj.bias": (width,),
    }


def vit_state() -> State:
    """OpenAI's layout: ViT 2 × 128, patches of 8 in 24 pixels; text 2 × 64, 16 positions; joint space 32."""
    shapes: dict[str, tuple[int, ...]] = {
        "visual.class_embedding": (128,),
        "visual.positional_embedding": (10, 128),
        "visual.conv1.weight": (128, 3, 8, 8),
        "visual.ln_pre.weight": (128,),
        "visual.ln_pre.bias": (128,),
        "visual.ln_post.weight": (128,),
        "visual.ln_post.bias": (128,),
        "visual.proj": (128, 32),
        "token_embedding.weight": (600, 64),
        "positional_embedding": (16, 64),
        "ln_final.weight": (64,),
        "ln_final.bias": (64,),
        "text_projection": (64, 32),
        "logit_scale": (),
    }
    for layer in range(2):
        shapes |= block(f"visual.transformer.resblocks.{layer}", 128)
        shapes |= block(f"transformer.resblocks.{layer}", 64)
    generator = torch.Generator().manual_seed(0)
    # rounded to half precision, so that files of either precision hold the same values
    return {
        key: (0.1 * torch.randn(shape, generator=generator)).half().float() for key, shape in shapes.items()
    }


OPEN_CLIP_CONFIG = {
    "model_cfg": {
        "embed_dim": 32,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 24, "layers": 2, "width": 128, "patch_size": 8},
        "text_cfg": {"context_length": 16, "vocab_size": 600, "width": 64, "heads": 1, "layers": 2},
    },
    "preprocess_cfg": {
        "mean": list(CLIP_MEAN),
        "std": list(CLIP_STD),
        "interpolation": "bicubic",
        "resize_mode": "shortest",
    },
}


class Node(nn.Module):
    """A module tree from dotted names; its forward pass shows the activation and nothing else."""

    def __init__(self, state: State, quick: bool = True) -> None:
        super().__init__()
        self.quick = quick
        for name in {key.split(".")[0] for key in state}:
            inner = {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}
            if inner:
                self.add_module(name, Node(inner, quick))
            elif state[name].is_floating_point():
                self.register_parameter(name, nn.Parameter(state[name]))
            else:
                self.register_buffer(name, state[name])

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x) if self.quick else nn.functional.gelu(x)


def write_torchscript(path: Path, state: State, quick: bool = True) -> Path:
    """As OpenAI's archives: matrices in half precision, sizes stored beside the weights."""
    stored = {key: value.half() if value.ndim > 1 else value for key, value in state.items()}
    stored |= {name: torch.tensor(n) for name, n in (("input_resolution", 24), ("context_length", 16))}
    torch.jit.trace(Node(stored, quick), torch.ones(1)).save(str(path))
    return path


def write_plain(path: Path, state: State) -> Path:
    torch.save(state, path)
    return path


def write_legacy(path: Path, state: State) -> Path:
    torch.save(state, path, _use_new_zipfile_serialization=False)
    return path


def write_training(path: Path, state: State) -> Path:
    """What open_clip's training script writes: the state dict, wrapped, among other things."""
    wrapped = {f"module.{key}": value for key, value in state.items()}
    torch.save({"epoch": 3, "name": "run", "state_dict": wrapped}, path)
    return path


def write_open_clip(folder: Path, state: State, config: dict = OPEN_CLIP_CONFIG) -> Path:
    folder.mkdir()
    save_file(state, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder


def write_custom_text(folder: Path, state: State) -> Path:
    folder.mkdir()
    renamed = {k if k.startswith(("visual.", "logit")) else f"text.{k}": v for k, v in state.items()}
    torch.save(renamed, folder / "open_clip_pytorch_model.bin")
    config = {**OPEN_CLIP_CONFIG, "model_cfg": {**OPEN_CLIP_CONFIG["model_cfg"], "custom_text": True}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder


def write_hugging_face(folder: Path, state: State, activation: str = "quick_gelu") -> Path:
    """transformers' own model, filled attribute by attribute."""
    text = {"vocab_size": 600, "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 1}
    vision = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 2}
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(
        text_config=text | {"num_hidden_layers": 2, "max_position_embeddings": 16, "hidden_act": activation},
        vision_config=vision
        | {"num_hidden_layers": 2, "image_size": 24, "patch_size": 8, "hidden_act": activation},
        projection_dim=32,
    )
    model = CLIPModel(config)

    def fill_norm(norm: nn.Module, key: str) -> None:
        norm.weight.copy_(state[f"{key}.weight"])
        norm.bias.copy_(state[f"{key}.bias"])

    def fill_encoder(encoder: nn.Module, prefix: str) -> None:
        for index, layer in enumerate(encoder.layers):
            key = f"{prefix}.{index}"
            fill_norm(layer.layer_norm1, f"{key}.ln_1")
            fill_norm(layer.layer_norm2, f"{key}.ln_2")
            fill_norm(layer.mlp.fc1, f"{key}.mlp.c_fc")
            fill_norm(layer.mlp.fc2, f"{key}.mlp.c_proj")
            fill_norm(layer.self_attn.out_proj, f"{key}.attn.out_proj")
            parts = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
            weights = state[f"{key}.attn.in_proj_weight"].chunk(3)
            biases = state[f"{key}.attn.in_proj_bias"].chunk(3)
            for part, weight, bias in zip(parts, weights, biases, strict=True):
                part.weight.copy_(weight)
                part.bias.copy_(bias)

    with torch.no_grad():
        vision_model, text_model = model.vision_model, model.text_model
        vision_model.embeddings.class_embedding.copy_(state["visual.class_embedding"])
        vision_model.embeddings.patch_embedding.weight.copy_(state["visual.conv1.weight"])
        vision_model.embeddings.position_embedding.weight.copy_(state["visual.positional_embedding"])
        fill_norm(vision_model.pre_layrnorm, "visual.ln_pre")
        fill_norm(vision_model.post_layernorm, "visual.ln_post")
        fill_encoder(vision_model.encoder, "visual.transformer.resblocks")
        model.visual_projection.weight.copy_(state["visual.proj"].T)
        text_model.embeddings.token_embedding.weight.copy_(state["token_embedding.weight"])
        text_model.embeddings.position_embedding.weight.copy_(state["positional_embedding"])
        fill_norm(text_model.final_layer_norm, "ln_final")
        fill_encoder(text_model.encoder, "transformer.resblocks")
        model.text_projection.weight.copy_(state["text_projection"].T)
        model.logit_scale.copy_(state["logit_scale"])
    model.save_pretrained(folder)
    return folder


def write_hugging_face_bin(folder: Path, state: State) -> Path:
    """As older folders: a pickled state dict, position ids among the weights, a preprocessor's config."""
    write_hugging_face(folder, state)
    weights = load_file(folder / "model.safetensors")
    weights["text_model.embeddings.position_ids"] = torch.arange(16)[None]
    weights["vision_model.embeddings.position_ids"] = torch.arange(10)[None]
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    images = {"image_mean": list(CLIP_MEAN), "image_std": list(CLIP_STD)}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return folder


TELLING: dict[str, Callable[[Path, State], Path]] = {
    "openai.pt": write_torchscript,
    "open_clip": write_open_clip,
    "custom_text": write_custom_text,
    "hugging_face": write_hugging_face,
    "hugging_face_bin": write_hugging_face_bin,
}
SILENT: dict[str, Callable[[Path, State], Path]] = {
    "plain.pt": write_plain,
    "legacy.bin": write_legacy,
    "training.pt": write_training,
    "bare.safetensors": lambda path, state: save_file(state, path) or path,
    "half.safetensors": lambda path, state: save_file({k: v.half() for k, v in state.items()}, path) or path,
}


@pytest.mark.filterwarnings(TRACE_WARNINGS)
@pytest.mark.parametrize("name", [*TELLING, *SILENT])
def test_every_format_gives_the_same_model(tmp_path: Path, name: str) -> None:
    state = vit_state()
    path = (TELLING | SILENT)[name](tmp_path / name, state)
    backbone = load_backbone(path, activation="quick_gelu" if name in SILENT else None)
    towers = backbone.state_dict()
    for key, value in state.items():
        if key != "logit_scale":
            torch.testing.assert_close(
                towers[key if key.startswith("visual.") else f"textual.{key}"], value, rtol=0, atol=0
            )
    assert len(towers) == len(state) - 1
    assert backbone.logit_scale == pytest.approx(float(state["logit_scale"].exp()))
    assert (backbone.config.activation, backbone.grid, backbone.embed_dim) == ("quick_gelu", (3, 3), 32)
    assert (backbone.config.vision.heads, backbone.config.text.heads) == (2, 1)
    assert backbone.tokenizer.vocab_size == 600 and backbone.context_length == 16
    assert backbone.preprocess.size == 24
    reference = write_plain(tmp_path / "reference.pt", state)
    assert backbone.fingerprint == load_backbone(reference, activation="quick_gelu").fingerprint


@pytest.mark.parametrize("name", SILENT)
def test_a_silent_file_is_not_guessed(tmp_path: Path, name: str) -> None:
    path = SILENT[name](tmp_path / name, vit_state())
    with pytest.raises(InputError, match=r"does not tell its activation; say --activation quick_gelu"):
        load_backbone(path)


@pytest.mark.filterwarnings(TRACE_WARNINGS)
@pytest.mark.parametrize("name", TELLING)
def test_a_conflicting_activation_is_refused(tmp_path: Path, name: str) -> None:
    path = TELLING[name](tmp_path / name, vit_state())
    load_backbone(path, activation="quick_gelu")
    with pytest.raises(InputError, match="the model uses quick_gelu; leave out activation=gelu"):
        load_backbone(path, activation="gelu")


@pytest.mark.filterwarnings(TRACE_WARNINGS)
def test_gelu_is_told_too(tmp_path: Path) -> None:
    config = {**OPEN_CLIP_CONFIG, "model_cfg": {**OPEN_CLIP_CONFIG["model_cfg"], "quick_gelu": False}}
    prints = set()
    for path in (
        write_open_clip(tmp_path / "open_clip", vit_state(), config),
        write_hugging_face(tmp_path / "hf", vit_state(), "gelu"),
        write_torchscript(tmp_path / "gelu.pt", vit_state(), quick=False),
    ):
        backbone = load_backbone(path)
        assert backbone.config.activation == "gelu"
        prints.add(backbone.fingerprint)
    quick = load_backbone(write_plain(tmp_path / "plain.pt", vit_state()), activation="quick_gelu")
    assert len(prints) == 1 and quick.fingerprint not in prints


def test_one_changed_value_changes_the_fingerprint(tmp_path: Path) -> None:
    state = vit_state()
    first = load_backbone(write_plain(tmp_path / "a.pt", state), activation="gelu").fingerprint
    state["ln_final.bias"][3] += 1e-3
    assert load_backbone(write_plain(tmp_path / "b.pt", state), activation="gelu").fingerprint != first


def test_normalisation_of_the_config_is_used(tmp_path: Path) -> None:
    preprocess = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.5, 0.75]}
    config = {**OPEN_CLIP_CONFIG, "preprocess_cfg": preprocess}
    backbone = load_backbone(write_open_clip(tmp_path / "a", vit_state(), config))
    assert (backbone.preprocess.mean, backbone.preprocess.std) == ((0.5, 0.5, 0.5), (0.25, 0.5, 0.75))
    usual = load_backbone(write_open_clip(tmp_path / "b", vit_state()))
    assert usual.preprocess.mean == CLIP_MEAN and usual.fingerprint != backbone.fingerprint


def test_a_missing_file_beside_the_config(tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "hf", vit_state())
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(InputError, match="holds no weights that can be loaded"):
        load_backbone(folder)
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="hf"):
        load_backbone(folder)


def write_sharded(folder: Path, state: State) -> Path:
    """As transformers writes what is too large for one file."""
    write_hugging_face(folder, state)
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    keys = sorted(whole)
    where = {key: f"model-0000{1 + (at % 2)}-of-00002.safetensors" for at, key in enumerate(keys)}
    for file in sorted(set(where.values())):
        save_file({key: whole[key] for key in keys if where[key] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def test_shards_are_one_model(tmp_path: Path) -> None:
    whole = load_backbone(write_hugging_face(tmp_path / "whole", vit_state()))
    folder = write_sharded(tmp_path / "shards", vit_state())
    assert load_backbone(folder).fingerprint == whole.fingerprint
    assert load_backbone(folder / "model.safetensors.index.json").fingerprint == whole.fingerprint
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"lacks model-00002-of-00002.*, which model\.safetensors\.index"):
        load_backbone(folder)


@pytest.mark.parametrize("listed", [None, {}, {"a": "../model.safetensors"}, {"a": 3}, {"a": "b.index.json"}])
def test_an_index_that_lists_no_files_beside_it(tmp_path: Path, listed: object) -> None:
    folder = write_sharded(tmp_path / "shards", vit_state())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    with pytest.raises(InputError, match="lists no files of weights beside it"):
        load_backbone(folder)


def test_long_clip_has_two_tables_of_positions(tmp_path: Path) -> None:
    """Its tower adds the first 20 of one and the others of the other; the context is as long as they are."""
    state = vit_state()
    short, long = torch.randn(248, 64), torch.randn(248, 64)
    save_file(state | {"positional_embedding": short, "positional_embedding_res": long}, tmp_path / "long.pt")
    backbone = load_backbone(tmp_path / "long.pt", activation="quick_gelu")
    assert backbone.context_length == backbone.tokenizer.context_length == 248
    kept = torch.arange(248).unsqueeze(1) < 20
    assert torch.equal(backbone.textual.positional_embedding, torch.where(kept, short, long))
    save_file(state | {"positional_embedding_res": long}, tmp_path / "torn.pt")
    with pytest.raises(InputError, match="positional_embedding does not fit positional_embedding_res"):
        load_backbone(tmp_path / "torn.pt", activation="quick_gelu")
