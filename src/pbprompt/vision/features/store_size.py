"""How much the stored features take, and keeping that below a limit."""

import contextlib
import json
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from os import stat_result
from pathlib import Path

from pbprompt import files
from pbprompt.files import write_text
from pbprompt.vision.features.store import index_lines

DEFAULT_LIMIT_GIB = 20.0
GIB = 2**30
# A shard gets its index line moments after its name. One without a line for this long was left by a kill.
ABANDONED_SECONDS = 3600.0


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
    for folder in _folders(cache):
        shards = {path.name: stat for path, stat in _shards(folder)}
        try:
            told = dict(json.loads((folder / "about.json").read_text(encoding="utf-8")))
            about = {key: str(value) for key, value in told.items()}
        except (OSError, ValueError, TypeError, RecursionError):
            about = {}
        keys = {key for line in index_lines(folder) if line["shard"] in shards for key in line["keys"]}
        if shards:
            size = sum(stat.st_size for stat in shards.values())
            last = max(stat.st_mtime for stat in shards.values())
            found.append(Usage(folder, about, len(keys), size, last))
    return sorted(found, key=lambda use: -use.last_use)


def total_bytes(cache: Path) -> int:
    return sum(stat.st_size for folder in _folders(cache) for _, stat in _shards(folder))


def prune(cache: Path, limit: float, spare: Collection[Path] = ()) -> int:
    """Remove abandoned files, then least recently used shards until at most `limit` bytes stay.

    Returns the bytes removed. Processes that hold a removed shard open keep reading it; others encode again.
    """
    if not cache.exists():
        return 0
    removed = 0
    with files.locked(cache):
        kept: list[tuple[float, int, Path]] = []  # by their last use
        for folder in _folders(cache):
            indexed = {line["shard"] for line in index_lines(folder)}
            for path, stat in _shards(folder):
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
            if size <= limit:
                break
            if path not in spare:
                freed = _remove(path, own)
                size -= freed
                removed += freed
        for folder in _folders(cache):
            _compact(folder)
    return removed


def clear(cache: Path) -> int:
    """Remove every stored feature and all that is remembered of files."""
    removed = prune(cache, 0)
    shutil.rmtree(cache / "hashes", ignore_errors=True)
    return removed


def _folders(cache: Path) -> list[Path]:
    try:
        return sorted(path for path in cache.iterdir() if path.is_dir() and path.name != "hashes")
    except OSError:  # not there, or a file
        return []


def _shards(folder: Path) -> Iterator[tuple[Path, stat_result]]:
    """Their size and when each was last used, as a file's last change has it."""
    for path in folder.glob("*.safetensors"):
        with contextlib.suppress(FileNotFoundError):  # another process is pruning
            yield path, path.stat()


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
            if not any(_shards(folder)):
                (folder / "about.json").unlink(missing_ok=True)
            folder.rmdir()
