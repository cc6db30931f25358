"""Opening the files that weights come in: safetensors, `torch.save` files and TorchScript archives."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from pbprompt.errors import InputError, first_line
from pbprompt.files import is_special
from pbprompt.vision.towers.loading.checkpoint_files import INDEX, shard_files
from pbprompt.vision.towers.loading.torchscript import is_torchscript, read_torchscript

MOST_UNPACKED = 10  # times a file's size


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """A file's tensors by name, and the activation where the file itself tells it (TorchScript does).

    What a file is, its first bytes decide, not its suffix. No code of the file is ever run. An index
    stands for the files that it lists.
    """
    if path.name.endswith(INDEX):
        shards = (read_tensors(path.parent / file)[0] for file in shard_files(path))
        return {name: value for shard in shards for name, value in shard.items()}, None
    if is_special(path):
        raise InputError(f"{path}: a pipe, socket or device: give a regular file")
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror})") from None
    _refuse_impostors(path, head)
    try:
        if head.startswith(b"PK\x03\x04"):
            _refuse_bombs(path)
            if is_torchscript(path):
                found, activation = read_torchscript(path)
                return _of_its_size(path, found), activation
        if head.startswith((b"PK", b"\x80")):  # or a bare pickle: what torch.save wrote before zip files
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            return _of_its_size(path, _only_tensors(path, loaded)), None
        if head[8:9] == b"{":
            return load_file(path), None
    except InputError:
        raise
    except pickle.UnpicklingError:
        raise InputError(
            f"{path}: holds Python objects beside tensors, or is damaged; save its tensors as .safetensors"
        ) from None
    except Exception as error:  # damaged files make the readers raise nearly anything
        raise InputError(f"{path}: truncated or damaged ({first_line(error)}); fetch it again") from None
    raise InputError(
        f"{path}: neither safetensors nor a PyTorch file; give an OpenAI, open_clip or HF checkpoint"
    )


def check_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse NaN and infinite values: what is computed with them would be no better."""
    for name, values in tensors.items():
        if not values.isfinite().all():
            raise InputError(f"{path}: {name} holds NaN or infinite values: make or fetch the file again")


def _refuse_impostors(path: Path, head: bytes) -> None:
    if not head:
        raise InputError(f"{path}: the file is empty; fetch it again")
    if head.lstrip().startswith(b"<"):
        raise InputError(f"{path}: a web page, not weights (a download that failed?); fetch it again")
    if head.startswith(b"version https://git-lfs"):
        raise InputError(f"{path}: a Git LFS pointer, not the weights; run `git lfs pull` beside it")


def _refuse_bombs(path: Path) -> None:
    """Refuse archives that unpack to far more than they are: tensors are stored, not packed."""
    with zipfile.ZipFile(path) as archive:
        declared = sum(entry.file_size for entry in archive.infolist())
    if declared > MOST_UNPACKED * path.stat().st_size + 2**20:
        raise InputError(f"{path}: declares {declared:,} bytes, many times its size: no archive of weights")


def _of_its_size(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Refuse tensors that show few stored numbers as very many: what they take is what their shapes say."""
    taken = sum(value.numel() * value.element_size() for value in tensors.values())
    if taken > MOST_UNPACKED * path.stat().st_size + 2**20:
        raise InputError(f"{path}: its shapes take {taken:,} bytes, many times its size: no file of weights")
    return tensors


def _only_tensors(path: Path, content: Any) -> dict[str, Tensor]:
    """The state dict, also where a training script put it under `state_dict` beside its own bookkeeping."""
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content:
        raise InputError(
            f"{path}: holds no state dict (tensors by name); save the model's state_dict() instead"
        )
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise InputError(f"{path}: {key!r} is no tensor; save the model's state_dict() alone")
    return dict(content)
