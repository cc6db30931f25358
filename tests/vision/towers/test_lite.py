"""The backbones that come with the package, whole and damaged."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from pbprompt.errors import BrokenInstallError, InputError
from pbprompt.vision.towers import ASSETS
from pbprompt.vision.towers.lite import read_embedded
from pbprompt.vision.towers.loading.hub import EMBEDDED
from pbprompt.vision.towers.loading.load import backbone_fingerprint, fingerprint, load_backbone


def told(name: str) -> dict:
    return json.loads((ASSETS / name / "config.json").read_text())


def test_lite() -> None:
    backbone = load_backbone()
    assert backbone.config.name == "lite" and backbone.grid == (7, 7)
    assert sum(value.numel() for value in backbone.state_dict().values()) == told("lite")["parameters"] - 1


def test_lite_vit_has_its_own_transformer_and_the_rest_from_lite() -> None:
    lite, backbone = load_backbone("lite"), load_backbone("lite-vit")
    assert backbone.config.name == "lite-vit" and backbone.grid == (7, 7)
    assert backbone.preprocess == lite.preprocess and backbone.logit_scale == lite.logit_scale
    tensors = backbone.state_dict()
    for key, value in lite.state_dict().items():
        if not key.startswith("visual.head."):
            assert torch.equal(tensors.pop(key.replace("visual.", "visual.trunk.")), value)
    assert sum(value.numel() for value in tensors.values()) == told("lite-vit")["parameters"]


@pytest.mark.parametrize("name", EMBEDDED)
def test_settings(name: str) -> None:
    backbone = load_backbone(name)
    assert backbone.logit_scale == pytest.approx(told(name)["logit_scale"], rel=1e-6)
    assert len(backbone.fingerprint) == 64 and backbone.fingerprint == backbone_fingerprint(name)
    with pytest.raises(InputError, match="the model uses quick_gelu"):
        load_backbone(name, activation="gelu")


def test_the_fingerprint_of_lite_vit_covers_both_files() -> None:
    config, state = read_embedded("lite-vit")
    found = {backbone_fingerprint("lite"), fingerprint(config, state)}
    for key in ("visual.proj", "visual.trunk.top.bias", "text_projection"):
        found.add(fingerprint(config, state | {key: state[key] + 1}))
    assert len(found) == 5


@pytest.mark.parametrize("name", EMBEDDED)
def test_damaged(name: str, tmp_path: Path) -> None:
    for whole in EMBEDDED:
        shutil.copytree(str(ASSETS / whole), tmp_path / whole)
    read_embedded(name, tmp_path)
    config = tmp_path / name / "config.json"
    whole_config = json.loads(config.read_text())
    for lost in ({}, {"vision": None}, {"vision": {}}, {"name": None}):
        damaged = {key: value for key, value in (whole_config | lost).items() if value is not None}
        config.write_text(json.dumps(damaged if lost else [damaged]))
        with pytest.raises(BrokenInstallError, match=f"{name}: unreadable"):
            read_embedded(name, tmp_path)
    config.write_text(json.dumps(whole_config))
    (tmp_path / name / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(BrokenInstallError, match=f"{name}: .* has the wrong checksum"):
        read_embedded(name, tmp_path)
    (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(BrokenInstallError, match="sha256"):
        read_embedded(name, tmp_path)
    shutil.rmtree(tmp_path / name)
    with pytest.raises(BrokenInstallError, match="install pbprompt again"):
        read_embedded(name, tmp_path)


def test_lite_vit_needs_lites_file_whole(tmp_path: Path) -> None:
    for whole in EMBEDDED:
        shutil.copytree(str(ASSETS / whole), tmp_path / whole)
    (tmp_path / "lite" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(BrokenInstallError, match=r"lite: .* has the wrong checksum"):
        read_embedded("lite-vit", tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", EMBEDDED)
def test_dtype(name: str, dtype: torch.dtype) -> None:
    backbone = load_backbone(name, dtype=dtype)
    assert {value.dtype for value in backbone.state_dict().values()} == {dtype} and backbone.dtype == dtype
    assert backbone.fingerprint == load_backbone(name).fingerprint
