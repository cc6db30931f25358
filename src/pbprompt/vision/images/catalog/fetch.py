"""Bringing a benchmark here from where its makers have it, into the layout of the field.

What comes is resumed after whatever cut it off, and is used only if its size and its SHA-256 are those of the
table.
"""

import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from pbprompt.errors import InputError
from pbprompt.files import file_hash
from pbprompt.vision.images.catalog.benchmark import Benchmark, SourceFile

WAIT_SECONDS = 60.0  # for the connection, and for each of its parts
CHUNK = 1 << 20
Watch = Callable[[Path, int, int], object]  # told the file, the bytes that are there and those there will be


def fetch(benchmark: Benchmark, root: str | Path, watch: Watch = lambda file, done, size: None) -> Path:
    """Bring what is missing of the benchmark to `root/<folder>`, which is returned; what is there stays.

    Example:
        >>> fetch(find("imagenet"), "data")
        Traceback (most recent call last):
            ...
        pbprompt.errors.InputError: ImageNet cannot be fetched: its terms are accepted by a person: ...
    """
    if not benchmark.parts:
        raise InputError(
            f"{benchmark.title} cannot be fetched: {benchmark.by_hand}: obtain it from {benchmark.source}"
        )
    folder = Path(root).expanduser() / benchmark.folder
    folder.mkdir(parents=True, exist_ok=True)
    for part in benchmark.parts:
        if (folder / part.makes).exists():
            continue
        file = download(part, folder / f".{part.makes}.part", watch)
        if part.inside is None:
            file.replace(folder / part.makes)
        else:
            _unpack(file, part, folder)
            file.unlink()
    return folder


def download(part: SourceFile, file: Path, watch: Watch) -> Path:
    """The part as `file`, whose first bytes may be there already."""
    done = file.stat().st_size if file.exists() else 0
    if done < part.bytes:
        try:
            _append(part, file, done, watch)
        except (OSError, ValueError, HTTPException) as error:
            why = str(getattr(error, "reason", None) or error or type(error).__name__)
            raise InputError(
                f"{part.url}: {why}: run the command again, which goes on where this ended; or obtain the "
                f"file elsewhere and put it at {file}"
            ) from None
    size = file.stat().st_size
    if size < part.bytes:
        raise InputError(
            f"{part.url}: cut off after {size:,} of {part.bytes:,} bytes: run the command again to go on"
        )
    if size > part.bytes or file_hash(file) != part.sha256:
        file.unlink()
        raise InputError(
            f"{part.url}: what came is not the published file ({part.bytes:,} bytes, SHA-256 {part.sha256}) "
            "and was removed: try again, or obtain it elsewhere"
        )
    return file


def _append(part: SourceFile, file: Path, done: int, watch: Watch) -> None:
    headers = {"User-Agent": "pbprompt", **({"Range": f"bytes={done}-"} if done else {})}
    try:
        answer = urlopen(Request(part.url, headers=headers), timeout=WAIT_SECONDS)
    except HTTPError as error:
        error.close()
        raise
    with answer, file.open("ab") as out:
        if answer.status != 206:  # a server that sends all of it again
            out.truncate(0)
            done = 0
        while done <= part.bytes and (piece := answer.read1(CHUNK)):
            out.write(piece)
            done += len(piece)
            watch(file, done, part.bytes)


def _unpack(file: Path, part: SourceFile, folder: Path) -> None:
    """All of one folder of the archive to the benchmark's; `makes`, which tells that all is there, last."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacked-") as name:
        unpacked = Path(name) / "all"
        _extract(file, unpacked)
        if part.nested:
            _extract(unpacked / part.nested, unpacked := Path(name) / "nested")
        top = unpacked / (part.inside or "")
        if not (top / part.makes).exists():
            raise InputError(f"{part.url}: holds no {part.inside}/{part.makes}: obtain it elsewhere")
        for entry in sorted(top.iterdir(), key=lambda entry: entry.name == part.makes):
            if not (folder / entry.name).exists():
                shutil.move(entry, folder / entry.name)


def _extract(file: Path, to: Path) -> None:
    """Neither kind writes outside of the folder."""
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                archive.extractall(to)
        else:
            with tarfile.open(file) as packed:
                packed.extractall(to, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"{file}: cannot be unpacked ({error}): remove it and fetch again") from None
