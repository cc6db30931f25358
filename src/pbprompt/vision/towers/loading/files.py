"""The files that a model comes in: its JSON, and its tensors in safetensors, `torch.save`'s or TorchScript.

OpenAI published CLIP as TorchScript archives: zip files in which `data.pkl` describes the module tree,
`data/N` are the tensors' bytes, and `code/` is the program. `torch.jit.load` would compile that code and run
any `__setstate__` in it; here they are read as data: only tensors come out.
"""

import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from pbprompt import files
from pbprompt.errors import InputError, first_line

OPEN_CLIP_CONFIG = "open_clip_config.json"
HF_CONFIG = "config.json"
HF_PREPROCESSOR = "preprocessor_config.json"
HF_PROCESSOR = "processor_config.json"  # newer: what was there before is its section `image_processor`
HF_TOKENIZER = "tokenizer.json"
HF_TOKENIZER_CONFIG = "tokenizer_config.json"
INDEX = ".index.json"
FILE = re.compile(r"[\w-][\w.-]*\.(safetensors|bin)")  # a name and no path

MOST_UNPACKED = 10  # times a file's size
IMPOSTORS = {  # how they begin, and what they are
    b"<": "a web page, not weights (a download that failed?); fetch it again",
    b"version https://git-lfs": "a Git LFS pointer, not the weights; run `git lfs pull` beside it",
}
DTYPES = {
    f"{name}Storage": getattr(torch, name.lower())
    for name in ("Half", "BFloat16", "Float", "Double", "Long", "Int", "Short", "Bool")
}


def read_json(path: Path) -> dict[str, Any]:
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds no JSON object; fetch it again")
    return content


def shard_files(index: Path) -> list[str]:
    """The files that an index lists, which lie beside it."""
    where = read_json(index).get("weight_map")
    shards = sorted({str(file) for file in where.values()}) if isinstance(where, dict) else []
    if not shards or not all(FILE.fullmatch(file) for file in shards):
        raise InputError(f"{index}: lists no files of weights beside it; fetch it again")
    return shards


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """A file's tensors by name, and the activation where the file itself tells it (TorchScript does).

    What a file is, its first bytes decide, not its suffix. No code of the file is ever run. An index
    stands for the files that it lists.
    """
    if path.name.endswith(INDEX):
        shards = (read_tensors(path.parent / file)[0] for file in shard_files(path))
        return {name: value for shard in shards for name, value in shard.items()}, None
    if files.is_special(path):
        raise InputError(f"{path}: a pipe, socket or device: give a regular file")
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror})") from None
    if not head:
        raise InputError(f"{path}: the file is empty; fetch it again")
    for start, what in IMPOSTORS.items():
        if head.lstrip().startswith(start):
            raise InputError(f"{path}: {what}")
    try:
        if head.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(path) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
                _refuse_bombs(path, unpacked, "declares", "archive")  # tensors are stored, not packed
                if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                    found, activation = _read_torchscript(archive)
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


def _refuse_bombs(path: Path, taken: int, says: str, of: str) -> None:
    if taken > MOST_UNPACKED * path.stat().st_size + 2**20:
        raise InputError(f"{path}: {says} {taken:,} bytes, many times its size: no {of} of weights")


def _of_its_size(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Refuse tensors that show few stored numbers as very many: what they take is what their shapes say."""
    taken = sum(value.numel() * value.element_size() for value in tensors.values())
    _refuse_bombs(path, taken, "its shapes take", "file")
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


def _read_torchscript(archive: zipfile.ZipFile) -> tuple[dict[str, Tensor], str | None]:
    """An archive's tensors by name, and the activation that its program uses, where that can be seen."""
    names = archive.namelist()
    root = next(name for name in names if name.endswith("/data.pkl")).removesuffix("data.pkl")
    with archive.open(f"{root}data.pkl") as file:
        tree = _TreeReader(file, archive, root).load()
    code = b"".join(archive.read(name) for name in names if name.endswith(".py"))
    quick, exact = b"sigmoid(" in code, b"gelu(" in code
    return dict(_tensors(tree)), None if quick == exact else "quick_gelu" if quick else "gelu"


class _Module:
    """Stands for any class of the archive: keeps the attributes, knows no behaviour."""

    attributes: object = None

    def __setstate__(self, attributes: object) -> None:
        self.attributes = attributes


def _tensors(module: object, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    attributes = getattr(module, "attributes", None)
    if isinstance(attributes, dict):
        for name, value in attributes.items():
            if isinstance(value, Tensor):
                yield f"{prefix}{name}", value
            else:
                yield from _tensors(value, f"{prefix}{name}.")


def _tensor(
    storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object
) -> Tensor:
    return storage.as_strided(size, stride, offset)


class _TreeReader(pickle.Unpickler):
    """Unpickles the module tree; every name it may look up is in `find_class`, and none of them acts."""

    def __init__(self, file: Any, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(file)
        self.archive, self.root = archive, root
        self.storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _Module
        if module == "torch.jit._pickle":  # typed lists and type tags: the value itself is the first argument
            return lambda value, *_: value
        known = {("torch._utils", "_rebuild_tensor_v2"): _tensor, ("collections", "OrderedDict"): OrderedDict}
        found = DTYPES.get(name) if module == "torch" else known.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a model archive")
        return found

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, size = pid
        if key not in self.storages:
            content = bytearray(self.archive.read(f"{self.root}data/{key}"))
            self.storages[key] = torch.empty(0, dtype=dtype)
            if size:  # which a view of no bytes may not be
                self.storages[key] = torch.frombuffer(content, dtype=dtype, count=size)
        return self.storages[key]
