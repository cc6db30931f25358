"""TorchScript archives: read as torch reads them, and unable to run anything."""

import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.vision.towers.loading.files import read_tensors
from pbprompt.vision.towers.loading.load import load_backbone

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


class QuickGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


def write(path: Path, activation: nn.Module) -> Path:
    """Two precisions, buffers, a shared tensor and a strided one; partly traced, partly scripted."""
    model = nn.Sequential(nn.Linear(4, 4).half(), activation, nn.LayerNorm(4), nn.BatchNorm1d(4))
    model[0].weight = nn.Parameter(torch.randn(8, 4).half()[::2])
    model[2].bias = model[2].weight
    traced = torch.jit.trace(activation, torch.ones(4))
    model[1] = traced
    torch.jit.script(model).save(str(path))
    return path


@pytest.mark.parametrize(
    ("activation", "told"), [(QuickGELU(), "quick_gelu"), (nn.GELU(), "gelu"), (nn.ReLU(), None)]
)
def test_read_as_torch_reads_them(tmp_path: Path, activation: nn.Module, told: str | None) -> None:
    path = write(tmp_path / "a.pt", activation)
    ours, found = read_tensors(path)
    theirs = torch.jit.load(path).state_dict()
    assert found == told and ours.keys() == theirs.keys() and len(theirs) == 9
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype and torch.equal(ours[key], value)


def test_unable_to_run_anything(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "proof"),)

    good = write(tmp_path / "good.pt", QuickGELU())
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(tmp_path / "evil.pt", "w") as new:
        for name in old.namelist():
            content = pickle.dumps(Evil(), protocol=2) if name.endswith("/data.pkl") else old.read(name)
            new.writestr(name, content)
    torch.save(Evil(), tmp_path / "evil.bin")
    for name in ("evil.pt", "evil.bin"):
        with pytest.raises(InputError, match="Python objects"):
            load_backbone(tmp_path / name)
    assert not (tmp_path / "proof").exists()
