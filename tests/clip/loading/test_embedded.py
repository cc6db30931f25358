"""The backbone that comes with the package, whole and damaged."""

import json
from pathlib import Path

import pytest
import torch

from pbprompt.clip.loading.embedded import lite_folder, read_lite
from pbprompt.clip.loading.load import load_backbone
from pbprompt.errors import BrokenInstallError, InputError


def test_lite() -> None:
    backbone = load_backbone()
    config = json.loads((lite_folder() / "config.json").read_text())
    assert backbone.config.name == "lite" and backbone.grid == (7, 7)
    assert backbone.logit_scale == pytest.approx(config["logit_scale"], rel=1e-6)
    assert sum(value.numel() for value in backbone.state_dict().values()) == config["parameters"] - 1
    assert len(backbone.fingerprint) == 64
    with pytest.raises(InputError, match="the model uses quick_gelu"):
        load_backbone("lite", activation="gelu")


def test_damaged_lite(tmp_path: Path) -> None:
    config = (lite_folder() / "config.json").read_bytes()
    with pytest.raises(BrokenInstallError, match="install pbprompt again"):
        read_lite(tmp_path)
    (tmp_path / "config.json").write_bytes(config)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(BrokenInstallError, match="wrong checksum"):
        read_lite(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BrokenInstallError, match="sha256"):
        read_lite(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype(dtype: torch.dtype) -> None:
    backbone = load_backbone("lite", dtype=dtype)
    assert {value.dtype for value in backbone.state_dict().values()} == {dtype} and backbone.dtype == dtype
    assert backbone.fingerprint == load_backbone("lite").fingerprint
