"""Loading: whatever is wrong with a checkpoint is said in one line that names the file and the fix."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.vision.towers.backbone import BackboneConfig, random_backbone
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

State = dict[str, Tensor]


def tiny_state(width: int = 64, layers: int = 2) -> State:
    config = BackboneConfig(
        "tiny", 32, VitConfig(16, 8, width, layers, width // 64), TextConfig(16, 600, 64, 1, 2)
    )
    state = random_backbone(config).state_dict()
    return {key.removeprefix("textual."): value for key, value in state.items()} | {
        "logit_scale": torch.tensor(4.0)
    }


def refused(path: Path | str, **options) -> str:
    with pytest.raises(InputError) as caught:
        load_backbone(path, **options)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message and len(message) < 400
    return message


def test_sound(tmp_path: Path) -> None:
    """The state that the tests below spoil does load."""
    save_file(tiny_state(), tmp_path / "good.safetensors")
    assert load_backbone(tmp_path / "good.safetensors", activation="gelu").embed_dim == 32


def drop(key: str) -> Callable[[State], None]:
    return lambda state: state.__delitem__(key)


def put(key: str, value: Tensor) -> Callable[[State], None]:
    return lambda state: state.__setitem__(key, value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (drop("ln_final.bias"), "lacks the tensor ln_final.bias"),
        (
            drop("visual.transformer.resblocks.0.ln_1.bias"),
            "lacks the tensor visual.transformer.resblocks.0.ln_1",
        ),
        (drop("text_projection"), "lacks the tensor text_projection"),
        (drop("visual.conv1.weight"), "lacks the tensor visual.conv1.weight; give a whole model"),
        (drop("token_embedding.weight"), "lacks the tensor token_embedding.weight"),
        (drop("logit_scale"), "lacks the tensor logit_scale"),
        (put("logit_bias", torch.zeros(1)), "has the tensor logit_bias that the towers of its kind lack"),
        (
            lambda state: state.update(
                {"cls_token": torch.zeros(8), "blocks.0.attn.qkv.weight": torch.zeros(8)}
            ),
            "give its Hugging Face folder or hub id",
        ),
        (put("visual.trunk.stem", torch.zeros(1)), "its image tower is timm's"),
        (put("ln_final.bias", torch.zeros(63)), r"ln_final.bias is [63], expected [64]"),
        (put("logit_scale", torch.zeros(2)), r"logit_scale is [2], expected []"),
        (
            put("ln_final.bias", torch.zeros(64, dtype=torch.int8)),
            "ln_final.bias is int8; give weights in float16",
        ),
        (put("visual.positional_embedding", torch.zeros(6, 64)), "has 6 positions"),
        (put("visual.positional_embedding", torch.zeros(1, 64)), "has 1 positions"),
        (put("text_projection", torch.zeros(64)), "2 dimensions are expected"),
        (put("token_embedding.weight", torch.zeros(100, 64)), "vocabulary"),
    ],
)
def test_wrong_tensors(tmp_path: Path, spoil: Callable[[State], None], message: str) -> None:
    state = tiny_state()
    spoil(state)
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(InputError) as caught:
        load_backbone(tmp_path / "a.safetensors", activation="quick_gelu")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_many_missing_tensors_are_summed_up(tmp_path: Path) -> None:
    state = {
        key: value for key, value in tiny_state().items() if not key.startswith("transformer.resblocks.0")
    }
    save_file(state, tmp_path / "a.safetensors")
    assert " and 9 more;" in refused(tmp_path / "a.safetensors", activation="gelu")


def test_heads_of_a_giant_are_not_guessed(tmp_path: Path) -> None:
    """ViT-H/14 and larger have heads of 80 and more channels; the tensors do not show it."""
    save_file(tiny_state(width=1280, layers=1), tmp_path / "open_clip_model.safetensors")
    assert "do not show its number of heads" in refused(
        tmp_path / "open_clip_model.safetensors", activation="gelu"
    )
    model = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 1280, "head_width": 80, "patch_size": 8},
        "text_cfg": {"context_length": 16, "vocab_size": 600, "width": 64, "heads": 1, "layers": 2},
    }
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": model}))
    assert load_backbone(tmp_path).config.vision.heads == 16


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"\n <html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"hello, this is some text", "neither safetensors nor a PyTorch file"),
        (b"\x00" * 100, "neither safetensors nor a PyTorch file"),
        (b"PK\x03\x04 no zip file at all", "truncated or damaged"),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00{broken", "truncated or damaged"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f{", "truncated or damaged"),
        (b"\x80\x02broken pickle", "damaged"),
    ],
)
def test_not_weights(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    assert message in refused(tmp_path / "model.pt", activation="gelu")


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy", "torchscript"])
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_truncated(tmp_path: Path, kind: str, kept: float) -> None:
    path = tmp_path / "model.bin"
    if kind == "safetensors":
        save_file(tiny_state(), path)
    elif kind == "torchscript":
        torch.jit.trace(torch.nn.Linear(200, 200), torch.ones(200)).save(str(path))
    else:
        torch.save(tiny_state(), path, _use_new_zipfile_serialization=kind == "zip")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    assert "damaged" in refused(path, activation="gelu")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds no state dict"),
        ({}, "holds no state dict"),
        ({"a": 1}, "'a' is no tensor"),
        ({"a": torch.ones(2)}, "lacks the tensor text_projection"),
        (torch.ones(2), "holds no state dict"),
    ],
)
def test_saved_something_else(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "a.pt")
    assert message in refused(tmp_path / "a.pt", activation="gelu")


def open_clip_config() -> dict:
    return {
        "model_cfg": {
            "embed_dim": 32,
            "vision_cfg": {"image_size": 16, "layers": 2, "width": 64, "patch_size": 8},
            "text_cfg": {"context_length": 16, "vocab_size": 600, "width": 64, "heads": 1, "layers": 2},
        }
    }


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        ("vision_cfg", "layers", 3, "the config says vision.layers is 3, the tensors say 2"),
        ("vision_cfg", "image_size", 32, "the config says images of 32 pixels, the tensors say 16"),
        ("vision_cfg", "pool_type", "avg", "the setting pool_type='avg' is not supported"),
        (
            "text_cfg",
            "hf_tokenizer_name",
            "t5-base",
            "the setting hf_tokenizer_name='t5-base' is not supported",
        ),
        ("text_cfg", "vocab_size", 49408, "the config says text.vocab_size is 49408, the tensors say 600"),
    ],
)
def test_config_of_another_model(
    tmp_path: Path, section: str, name: str, value: object, message: str
) -> None:
    save_file(tiny_state(), tmp_path / "open_clip_model.safetensors")
    config = open_clip_config()
    config["model_cfg"][section][name] = value
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    assert message in refused(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "not JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "no section 'model_cfg'"),
        ('{"model_cfg": {}}', "no section 'vision_cfg'"),
        (json.dumps(open_clip_config() | {"preprocess_cfg": {"mean": [1, 2]}}), "three numbers"),
        (json.dumps(open_clip_config() | {"preprocess_cfg": {"resize_mode": "longest"}}), "'longest'"),
        (json.dumps(open_clip_config() | {"preprocess_cfg": {"size": 20}}), "image_size is 16"),
    ],
)
def test_broken_open_clip_config(tmp_path: Path, content: str, message: str) -> None:
    save_file(tiny_state(), tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(content)
    assert message in refused(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "siglip"}, "model_type is 'siglip'"),
        ({"model_type": "clip", "text_config": {"hidden_act": "relu"}}, "both towers need one of"),
        ({"model_type": "clip", "vision_config": {"hidden_act": "gelu"}}, "both towers need one of"),
        ({"model_type": "clip", "text_config": {"layer_norm_eps": 1e-6}}, "layer_norm_eps is 1e-06"),
    ],
)
def test_unsupported_hugging_face_config(tmp_path: Path, config: dict, message: str) -> None:
    save_file(
        {"text_model.embeddings.token_embedding.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert message in refused(tmp_path)


def test_unknown_activation() -> None:
    with pytest.raises(InputError, match="use quick_gelu or gelu"):
        load_backbone("lite", activation="relu")


@pytest.mark.parametrize("content", [{"state_dict": {}}, {1: torch.ones(2)}])
def test_odd_dictionaries(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", activation="gelu")


def test_an_archive_that_unpacks_to_far_more_than_it_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\0" * 2**24)
    assert "declares 16,777,216 bytes, many times its size" in refused(tmp_path / "a.pt", activation="gelu")


def test_few_numbers_that_are_shown_as_very_many(tmp_path: Path) -> None:
    """A tensor of strides 0 is few bytes in the file, and gigabytes once it is laid out."""
    wide = {"visual.proj": torch.zeros(1).expand(50_000, 50_000)}
    torch.save(wide, tmp_path / "a.pt")
    assert (tmp_path / "a.pt").stat().st_size < 10_000
    assert "its shapes take 10,000,000,000 bytes" in refused(tmp_path / "a.pt", activation="gelu")
