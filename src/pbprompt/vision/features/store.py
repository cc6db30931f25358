"""Features on disk: shards of many images, and an index that says which image is in which shard.

    features/
      .lock                      held for every append and every prune
      .claims                    what is being encoded, as locks of single bytes; empty
      hashes/<root>.jsonl        SHA-256 of files, remembered while what the disk says of them stays the same
      <weights and transform>/
        about.json               backbone, fingerprint, precision, transform
        index.jsonl              one line a shard: its name, and the keys and checksums of its rows
        <name>.safetensors       global [k, d] float32, patches [k, m, d] float16

A shard is complete before it has its name, and is named before the index tells of it. So a kill leaves at
worst a shard nobody knows, which pruning removes; a line whose shard is gone is a miss, and so is a shard
that no longer holds what was written.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
import uuid
import warnings
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pbprompt import files
from pbprompt.errors import InputError
from pbprompt.files import facts_of, write_bytes, write_text
from pbprompt.vision.images.workers import available_cpus

FORMAT = 1  # part of the folder's name: raise it when stored values would no longer mean the same
SHARD_IMAGES = 512
SHARD_BYTES = 128 * 2**20
DEFAULT_LIMIT_GIB = 20.0
GIB = 2**30
# A shard gets its index line moments after its name. One without a line for this long was left by a kill.
ABANDONED_SECONDS = 3600.0

# A file that changed this recently may change again without its times showing it: it is not remembered.
SETTLED_NS = 2_000_000_000

Seen = tuple[int, ...]  # as `files.facts_of` has it

# Shards this process has read or written: its own pruning spares them.
in_use: set[Path] = set()


def index_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of an index that are what they should be; an index that cannot be read has none."""
    with contextlib.suppress(OSError):
        for line in files.read_records(folder / "index.jsonl"):
            match line:
                case {"shard": str(shard), "keys": [*keys], "sums": [*_]} if Path(shard).name == shard:
                    if all(isinstance(key, str) for key in keys):
                        yield line


def checksums(global_: Tensor, patches: Tensor) -> list[int]:
    """CRC-32 of each row."""
    rows = zip(*(part.cpu().contiguous().numpy() for part in (global_, patches)), strict=True)
    return [zlib.crc32(patch, zlib.crc32(vector)) for vector, patch in rows]


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

    def places(self) -> dict[str, tuple[str, int, int]]:
        """Of each key the shard, the row in it and its checksum."""
        found: dict[str, tuple[str, int, int]] = {}
        for line in index_lines(self.folder):
            stored = enumerate(zip(line["keys"], line["sums"], strict=False))
            found.update((key, (line["shard"], at, checksum)) for at, (key, checksum) in stored)
        return found

    def read(
        self, keys: Sequence[str], global_: Tensor, patches: Tensor, rows: Sequence[int] | None = None
    ) -> list[int]:
        """Fill those of the rows (all, by default) whose key is stored; return the others."""
        places = self.places()
        missing = []
        shards: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for row in range(len(keys)) if rows is None else rows:
            if keys[row] in places:
                shard, at, checksum = places[keys[row]]
                shards[shard].append((at, row, checksum))
            else:
                missing.append(row)
        for shard, wanted in shards.items():
            source, target, sums = map(list, zip(*wanted, strict=True))
            if found := self._read_shard(self.folder / shard, source, sums):
                global_[target], patches[target] = found
            else:
                missing += target
        return sorted(missing)

    @staticmethod
    def _read_shard(shard: Path, rows: list[int], sums: list[int]) -> list[Tensor] | None:
        """Some rows' global vectors and patches; None where the shard is gone or damaged."""
        try:
            with contextlib.suppress(OSError):
                os.utime(shard)  # its time is when it was last used
            with safe_open(shard, framework="pt") as file:  # mapped: only the wanted rows are read
                found = [file.get_tensor(name)[rows] for name in ("global", "patches")]
            if checksums(*found) == sums:
                in_use.add(shard)
                return found
        except OSError:
            return None
        except (SafetensorError, IndexError, RuntimeError):
            pass
        with contextlib.suppress(OSError):  # damaged from outside; what it held is encoded again
            shard.unlink(missing_ok=True)
        return None

    def write(self, keys: list[str], global_: Tensor, patches: Tensor) -> None:
        shard = self.folder / f"{uuid.uuid4().hex}.safetensors"
        try:
            if not (self.folder / "about.json").exists():
                write_text(self.folder / "about.json", json.dumps(self.about, indent=1) + "\n")
            write_bytes(shard, save({"global": global_, "patches": patches}))
            with files.locked(self.cache):
                line = {"shard": shard.name, "keys": keys, "sums": checksums(global_, patches)}
                files.append_records(self.folder / "index.jsonl", [line])
        except OSError as error:
            why = error.strerror or error
            raise InputError(
                f"cannot write features to {self.folder}: {why}: free space or set PBPROMPT_CACHE"
            ) from error
        in_use.add(shard)


class ShardWriter(contextlib.AbstractContextManager["ShardWriter"]):
    """Collects rows and writes a shard whenever enough are there, and the rest at the end, Ctrl-C included.

    Without a store, or one that cannot be written, nothing is kept.
    """

    def __init__(self, store: FeatureStore | None) -> None:
        self.store = store
        self.keys: list[str] = []
        self.parts: list[tuple[Tensor, Tensor]] = []

    def add(self, keys: list[str], global_: Tensor, patches: Tensor) -> None:
        if self.store is None or not keys:
            return
        self.keys += keys
        self.parts.append((global_, patches))
        if len(self.keys) >= SHARD_IMAGES or len(self.keys) * patches[0].nbytes >= SHARD_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.store is None or not self.keys:
            return
        keys, parts = self.keys, self.parts
        self.keys, self.parts = [], []
        try:
            self.store.write(keys, *map(torch.cat, zip(*parts, strict=True)))
        except InputError as error:  # the features are there all the same
            self.store = None
            warnings.warn(f"{error}; until then images are encoded each time", stacklevel=2)

    def __exit__(self, *_: object) -> None:
        self.flush()


@dataclass(frozen=True)
class Usage:
    """One folder of shards: the features of a backbone under a transform."""

    folder: Path
    about: dict[str, str]
    entries: int
    bytes: int
    last_use: float


def usage(cache: Path) -> list[Usage]:
    """What is stored, most recently used first."""
    found = []
    for folder, shards in _shards(cache).items():
        try:
            values = dict(json.loads((folder / "about.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError):
            values = {}
        names, stats = {path.name for path in shards}, shards.values()
        keys = {key for line in index_lines(folder) if line["shard"] in names for key in line["keys"]}
        if shards:
            about = {key: str(value) for key, value in values.items()}
            size, last = sum(stat.st_size for stat in stats), max(stat.st_mtime for stat in stats)
            found.append(Usage(folder, about, len(keys), size, last))
    return sorted(found, key=lambda use: -use.last_use)


def total_bytes(cache: Path) -> int:
    return sum(stat.st_size for shards in _shards(cache).values() for stat in shards.values())


def keep_below_limit(cache: Path) -> None:
    """Prune what no call of this process used, where the features take more than they may."""
    if total_bytes(cache) > DEFAULT_LIMIT_GIB * GIB:
        with contextlib.suppress(OSError):  # a cache that cannot be changed
            prune(cache, DEFAULT_LIMIT_GIB * GIB, spare=in_use)


def prune(cache: Path, limit: float, spare: Collection[Path] = ()) -> int:
    """Remove abandoned files, then least recently used shards until at most `limit` bytes stay.

    Returns the bytes removed. Processes that hold a removed shard open keep reading it; others encode again.
    """
    if not cache.exists():
        return 0
    removed = 0
    with files.locked(cache):
        kept: list[tuple[float, int, Path]] = []  # by their last use
        folders = _shards(cache)
        for folder, shards in folders.items():
            indexed = {line["shard"] for line in index_lines(folder)}
            for path, stat in shards.items():
                if path.name not in indexed and _abandoned(stat.st_mtime):
                    removed += _remove(path, stat.st_size)
                else:
                    kept.append((stat.st_mtime, stat.st_size, path))
            for path in folder.glob(".*"):  # files that were being written when their process ended
                with contextlib.suppress(OSError):
                    if _abandoned(path.stat().st_mtime):
                        path.unlink()
        size = sum(own for _, own, _ in kept)
        for _, own, path in sorted(kept):
            if size > limit and path not in spare:
                freed = _remove(path, own)
                size -= freed
                removed += freed
        for folder in folders:
            _compact(folder)
    return removed


def clear(cache: Path) -> int:
    """Remove every stored feature and all that is remembered of files."""
    removed = prune(cache, 0)
    shutil.rmtree(cache / "hashes", ignore_errors=True)
    return removed


def _shards(cache: Path) -> dict[Path, dict[Path, os.stat_result]]:
    """Of each folder its shards; when one was last used is its last change."""
    found: dict[Path, dict[Path, os.stat_result]] = {}
    with contextlib.suppress(OSError):  # not there, or a file
        for folder in sorted(path for path in cache.iterdir() if path.is_dir() and path.name != "hashes"):
            found[folder] = {}
            for path in folder.glob("*.safetensors"):
                with contextlib.suppress(FileNotFoundError):  # another process is pruning
                    found[folder][path] = path.stat()
    return found


def _abandoned(modified: float) -> bool:
    return time.time() - modified > ABANDONED_SECONDS


def _remove(shard: Path, size: int) -> int:
    with contextlib.suppress(OSError):  # Windows keeps a file that is open elsewhere
        shard.unlink()
        return size
    return 0


def _compact(folder: Path) -> None:
    """Drop index lines whose shard is gone, and the folder with its last one."""
    index = folder / "index.jsonl"
    lines = list(files.read_records(index))
    alive = [line for line in index_lines(folder) if (folder / line["shard"]).exists()]
    if len(alive) < len(lines):
        write_text(index, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in alive))
    if not alive:
        index.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a shard that waits for its index line keeps the folder
            if not any(folder.glob("*.safetensors")):
                (folder / "about.json").unlink(missing_ok=True)
            folder.rmdir()


def memory_file(cache: Path, root: Path) -> Path:
    """Where the hashes of the files below `root` are remembered."""
    name = hashlib.sha256(os.path.abspath(root).encode("utf-8", "surrogateescape")).hexdigest()[:16]  # noqa: PTH100 - resolve() would follow links
    return cache / "hashes" / f"{name}.jsonl"


def file_hashes(cache: Path, root: Path, paths: Sequence[str]) -> dict[str, str | InputError]:
    """Path relative to `root` -> its file's hash, or why it cannot be read."""
    memory = memory_file(cache, root)
    known: dict[str, tuple[Seen, str]] = {}
    with contextlib.suppress(OSError):
        for line in files.read_records(memory):
            match line:
                case [str(path), [*facts], str(digest)]:
                    known[path] = tuple(facts), digest
    found: dict[str, str | InputError] = {}
    unknown: dict[str, Seen] = {}
    for path in dict.fromkeys(paths):
        try:
            stat = os.stat(root / path)  # noqa: PTH116 - twice as fast over many files
            if not S_ISREG(stat.st_mode):  # the reader of a pipe or device may wait for ever
                raise ValueError("not a regular file")
        except (OSError, ValueError) as error:  # ValueError: a name that no file has, too
            found[path] = _unreadable(root / path, error)
            continue
        seen = facts_of(stat)
        if path in known and known[path][0] == seen:
            found[path] = known[path][1]
        else:
            unknown[path] = seen
    settled = time.time_ns() - SETTLED_NS
    with ThreadPoolExecutor(available_cpus()) as pool:  # hashing lets go of the interpreter
        found.update(zip(unknown, pool.map(lambda path: _hash(root / path), unknown), strict=True))
    fresh = [
        [path, seen, found[path]]
        for path, seen in unknown.items()
        if isinstance(found[path], str) and max(seen[1:3]) < settled
    ]
    if fresh:
        with contextlib.suppress(OSError), files.locked(cache):  # what cannot be kept is hashed again
            files.append_records(memory, fresh)
    return found


def _hash(file: Path) -> str | InputError:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        return _unreadable(file, error)


def _unreadable(file: Path, error: Exception) -> InputError:
    return InputError(f"cannot read image {file}: {getattr(error, 'strerror', None) or error}")
