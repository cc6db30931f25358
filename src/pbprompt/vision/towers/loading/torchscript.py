"""TorchScript archives read as data: the tensors come out and none of the archive's code is compiled or run.

OpenAI published CLIP as such archives. `torch.jit.load` would compile their code and run any `__setstate__`
in it; only the weights are wanted. An archive is a zip file: `data.pkl` describes the module tree, `data/N`
are the tensors' bytes, `code/` is the program.
"""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STORAGES = {
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


def is_torchscript(path: Path) -> bool:
    """Whether a zip file is a TorchScript archive, rather than what `torch.save` writes."""
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_torchscript(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """An archive's tensors by name, and the activation that its program uses, where that can be seen."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        root = next(name for name in names if name.endswith("/data.pkl")).removesuffix("data.pkl")
        with archive.open(f"{root}data.pkl") as file:
            tree = _TreeReader(file, lambda key: archive.read(f"{root}data/{key}")).load()
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


class _TreeReader(pickle.Unpickler):
    """Unpickles the module tree; every name it may look up is in `find_class`, and none of them acts."""

    def __init__(self, file: Any, record: Callable[[str], bytes]) -> None:
        super().__init__(file)
        self.record = record
        self.storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _Module
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch.jit._pickle":  # typed lists and type tags: the value itself is the first argument
            return lambda value, *_: value
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a model archive")

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, size = pid
        if key not in self.storages:
            content = bytearray(self.record(key))
            self.storages[key] = torch.empty(0, dtype=dtype)
            if size:  # which a view of no bytes may not be
                self.storages[key] = torch.frombuffer(content, dtype=dtype, count=size)
        return self.storages[key]


def _tensor(
    storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object
) -> Tensor:
    return storage.as_strided(size, stride, offset)
