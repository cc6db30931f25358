"""EVA-02-CLIP's and PE-Core's files: the authors' hold open_clip's model; what is wrong is one sentence."""

import json
from pathlib import Path

import pytest
import torch
from plain_text import relative
from safetensors.torch import load_file, save_file
from siglip_folder import change
from trunk_folder import (
    TOWERS,
    drawn,
    trunk_config,
    write_eva_original,
    write_perception_original,
    write_trunk,
)

from pbprompt.errors import InputError
from pbprompt.vision.images.crops import Crop
from pbprompt.vision.towers.loading.load import load_backbone

PERCEPTION = [tower for tower in TOWERS if tower != "eva"]


def test_evas_own_file_is_the_same_model(tmp_path):
    ours = load_backbone(write_trunk(tmp_path / "open_clip", "eva"))
    original = load_backbone(write_eva_original(tmp_path / "EVA02_CLIP_B_psz16_s8B.pt"))
    assert original.fingerprint == ours.fingerprint
    assert (ours.config.activation, ours.preprocess.fit, ours.grid) == ("gelu", "crop", (4, 4))


@pytest.mark.parametrize("tower", PERCEPTION)
def test_metas_own_file_is_the_same_model(tmp_path, tower):
    folder = write_trunk(tmp_path / "open_clip", tower)
    state = load_file(folder / "open_clip_model.safetensors")
    state["visual.trunk.head.bias"].zero_()
    save_file(state, folder / "open_clip_model.safetensors")
    ours = load_backbone(folder)
    original = load_backbone(write_perception_original(tmp_path / "PE-Core-B16-224.pt", tower))
    assert original.fingerprint == ours.fingerprint
    assert ours.preprocess.cropper == Crop(32, "squash", "bilinear") and ours.context_length == 32


@torch.no_grad()
@pytest.mark.parametrize("tower", PERCEPTION)
def test_a_patch_is_what_the_pool_gives_when_it_sees_that_patch_alone(tmp_path, tower):
    visual = load_backbone(write_trunk(tmp_path, tower)).visual
    kept = []
    handle = visual.ln_post.register_forward_hook(lambda module, given, out: kept.append(out))
    image, patches = visual(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    handle.remove()
    (tokens,) = kept
    assert relative(visual.head(visual.attn_pool(tokens))[:, 0], image) == 0
    for at in range(16):
        alone = tokens[:, at + tokens.shape[1] - 16, None]
        wanted = visual.head(visual.attn_pool(alone))[:, 0]
        assert relative(patches[:, at], wanted) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_a_tower_computes_for_itself_follows_its_weights(tmp_path, dtype):
    towers = load_backbone(write_trunk(tmp_path, "eva"), dtype=dtype)
    assert towers.visual.turns.dtype == dtype
    assert towers.image(torch.zeros(1, 3, 32, 32)).global_.dtype == dtype


def spoilt(folder: Path, tower: str, key: str, value: torch.Tensor | None) -> Path:
    state = drawn(tower)
    if value is None:
        del state[key]
    else:
        state[key] = value
    save_file(state, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps(trunk_config(tower)))
    return folder


@pytest.mark.parametrize(
    ("tower", "key", "value", "message"),
    [
        (
            "eva",
            "visual.trunk.blocks.1.attn.k_proj.weight",
            None,
            "lacks the tensor visual.blocks.1.attn.k_proj.weight",
        ),
        (
            "eva",
            "visual.trunk.blocks.0.attn.v_proj.bias",
            None,
            "lacks the tensor visual.blocks.0.attn.v_proj.bias",
        ),
        ("eva", "visual.trunk.blocks.0.mlp.fc1_x.weight", None, "lacks the tensor visual.blocks.0.mlp.up"),
        ("eva", "visual.trunk.blocks.0.mlp.fc1_g.weight", None, ": needs timm"),
        ("eva", "visual.trunk.blocks.0.attn.q_proj.weight", torch.ones(2), "do not fit together"),
        ("eva", "visual.trunk.gamma", torch.ones(2), "has the tensor visual.gamma that"),
        ("eva", "visual.trunk.pos_embed", torch.ones(1, 12, 128), "has 12 positions"),
        ("perception", "visual.trunk.cls_token", None, "has 17 positions"),
        ("perception", "visual.trunk.attn_pool.q.weight", None, "lacks the tensor visual.attn_pool.attn"),
        ("perception", "visual.trunk.norm_pre.weight", None, "of timm's towers, EVA-02"),
        ("perception", "text.text_projection", None, "lacks the tensor text_projection"),
        ("perception", "visual.trunk.pos_embed", torch.ones(()), "dimensions are expected"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, tower, key, value, message):
    with pytest.raises(InputError) as caught:
        load_backbone(spoilt(tmp_path, tower, key, value))
    assert (
        message in str(caught.value) and "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
    )


@pytest.mark.parametrize(
    ("section", "name", "value"), [("vision_cfg", "image_size", 64), ("text_cfg", "layers", 2)]
)
def test_a_config_that_lies(tmp_path, section, name, value):
    config = trunk_config("perception")["model_cfg"]
    config[section][name] = value
    change(write_trunk(tmp_path, "perception") / "open_clip_config.json", model_cfg=config)
    with pytest.raises(InputError, match="the config says"):
        load_backbone(tmp_path)


def test_a_trunks_config_beside_clips_own_tower(tmp_path):
    """Nothing that a trunk's config says is passed over where there is no trunk."""
    state = {key: value for key, value in drawn("eva").items() if not key.startswith("visual.")}
    state["visual.conv1.weight"] = torch.zeros(64, 3, 8, 8)
    save_file(state, tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps(trunk_config("eva")))
    with pytest.raises(InputError, match="the setting timm_model_name='eva' is not supported"):
        load_backbone(tmp_path)
