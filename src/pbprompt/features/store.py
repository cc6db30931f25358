"""Features on disk: shards of many images, and an index that says which image is in which shard.

    features/
      .lock                      held for every append and every prune
      hashes/<root>.jsonl        what `file_hashes` remembers
      <weights and transform>/
        about.json               backbone, fingerprint, precision, transform
        index.jsonl              one line a shard: its name and the keys of its rows
        <name>.safetensors       global [k, d] float32, patches [k, m, d] float16

A shard is complete before it has its name, and is named before the index tells of it. So a kill leaves at
worst a shard nobody knows, which pruning removes; a line whose shard is gone is a miss.
"""

import hashlib
import json
import os
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pbprompt import files
from pbprompt.errors import InputError
from pbprompt.files import write_bytes, write_text

FORMAT = 1  # part of the folder's name: raise it when stored values would no longer mean the same
SHARD_IMAGES = 512
SHARD_BYTES = 128 * 2**20

# Shards this process has read or written: its own pruning spares them.
in_use: set[Path] = set()


class FeatureStore:
    """The stored features of one backbone at one precision under one transform."""

    def __init__(self, cache: Path, *, backbone: str, fingerprint: str, precision: str, transform: str):
        self.cache = cache
        self.about = {
            "backbone": backbone,
            "fingerprint": fingerprint,
            "precision": precision,
            "transform": transform,
        }
        identity = json.dumps([FORMAT, fingerprint, precision, transform])
        self.folder = cache / hashlib.sha256(identity.encode()).hexdigest()[:16]

    def read(self, keys: Sequence[str], global_: Tensor, patches: Tensor) -> list[int]:
        """Fill the rows whose key is stored; return the other rows."""
        places: dict[str, tuple[str, int]] = {}
        for line in files.read_records(self.folder / "index.jsonl"):
            places.update((key, (line["shard"], row)) for row, key in enumerate(line["keys"]))
        missing = []
        shards: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for row, key in enumerate(keys):
            if key in places:
                shard, at = places[key]
                shards[shard].append((at, row))
            else:
                missing.append(row)
        for shard, pairs in shards.items():
            if not self._read_shard(self.folder / shard, pairs, global_, patches):
                missing += [row for _, row in pairs]
        return sorted(missing)

    @staticmethod
    def _read_shard(shard: Path, pairs: list[tuple[int, int]], global_: Tensor, patches: Tensor) -> bool:
        source, target = torch.tensor(pairs).unbind(1)
        try:
            os.utime(shard)  # its time is when it was last used
            with safe_open(shard, framework="pt") as file:  # mapped: only the wanted rows are read
                global_[target] = file.get_tensor("global")[source]
                patches[target] = file.get_tensor("patches")[source]
        except FileNotFoundError:
            return False
        except SafetensorError:  # damaged from outside; what it held is encoded again
            shard.unlink(missing_ok=True)
            return False
        in_use.add(shard)
        return True

    def write(self, keys: list[str], global_: Tensor, patches: Tensor) -> None:
        """Add one shard."""
        shard = self.folder / f"{uuid.uuid4().hex}.safetensors"
        try:
            if not (self.folder / "about.json").exists():
                write_text(self.folder / "about.json", json.dumps(self.about, indent=1) + "\n")
            write_bytes(shard, save({"global": global_, "patches": patches}))
            with files.locked(self.cache):
                files.append_records(self.folder / "index.jsonl", [{"shard": shard.name, "keys": keys}])
        except OSError as error:
            why = error.strerror or error
            raise InputError(
                f"cannot write features to {self.folder}: {why}: free space or set PBPROMPT_CACHE"
            ) from error
        in_use.add(shard)


class ShardWriter:
    """Collects rows and writes a shard whenever enough are there, and the rest at the end, Ctrl-C included.

    Without a store, nothing is kept.
    """

    def __init__(self, store: FeatureStore | None) -> None:
        self.store = store
        self.keys: list[str] = []
        self.parts: list[tuple[Tensor, Tensor]] = []

    def add(self, keys: list[str], global_: Tensor, patches: Tensor) -> None:
        if self.store is None:
            return
        self.keys += keys
        self.parts.append((global_, patches))
        size = len(self.keys) * patches[0].nbytes
        if len(self.keys) >= SHARD_IMAGES or size >= SHARD_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.store is None or not self.keys:
            return
        keys, parts = self.keys, self.parts
        self.keys, self.parts = [], []
        global_, patches = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        self.store.write(keys, global_, patches)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()
