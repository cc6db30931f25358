"""SHA-256 of files' bytes, remembered while size and modification time stay the same."""

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_ISREG

from pbprompt import files
from pbprompt.data.workers import available_cpus
from pbprompt.errors import InputError

# A file that changed this recently may change again without its time showing it: it is not remembered.
SETTLED_NS = 2_000_000_000

Seen = tuple[int, int]  # size, modification time in ns


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
                case [str(path), int(size), int(modified), str(digest)]:
                    known[path] = (size, modified), digest
    found: dict[str, str | InputError] = {}
    unknown: dict[str, Seen] = {}
    for path in dict.fromkeys(paths):
        try:
            stat = os.stat(root / path)  # noqa: PTH116 - twice as fast over many files
        except OSError as error:
            found[path] = InputError(f"cannot read image {root / path}: {error.strerror or error}")
            continue
        if not S_ISREG(stat.st_mode):  # the reader of a pipe or device may wait for ever
            found[path] = InputError(f"cannot read image {root / path}: not a regular file")
            continue
        seen = stat.st_size, stat.st_mtime_ns
        if path in known and known[path][0] == seen:
            found[path] = known[path][1]
        else:
            unknown[path] = seen
    settled = time.time_ns() - SETTLED_NS
    with ThreadPoolExecutor(available_cpus()) as pool:  # hashing lets go of the interpreter
        found.update(zip(unknown, pool.map(lambda path: _hash(root / path), unknown), strict=True))
    fresh = [
        [path, *seen, found[path]]
        for path, seen in unknown.items()
        if isinstance(found[path], str) and seen[1] < settled
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
        return InputError(f"cannot read image {file}: {error.strerror or error}")
