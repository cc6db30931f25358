"""The benchmarks that pbprompt knows: `benchmarks.yaml` is the table of them.

Each can be opened where it lies, checked (its layout, its counts and every file) and, where its makers allow
it, fetched: that is resumed after whatever cut it off, and what came is used only if its size and its SHA-256
are those of the table.
"""

import shutil
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import yaml

from pbprompt.config import from_dict
from pbprompt.errors import InputError, suggest
from pbprompt.files import file_hash
from pbprompt.vision.images.benchmark_readers import READERS
from pbprompt.vision.images.items import DEFAULT_TEMPLATE, SPLITS, Dataset, some

TABLE = Path(__file__).with_name("benchmarks.yaml")
SAMPLE = Path(__file__).with_name("sample")  # the folder of the embedded one
WAIT_SECONDS = 60.0  # for the connection, and for each of its parts
CHUNK = 1 << 20
Watch = Callable[[Path, int, int], object]  # given the file, the bytes there are, those there will be


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of a benchmark's makers: an archive, of which the folder `inside` is wanted, or the file itself.

    `makes` is the entry of the benchmark's folder that tells it is there; `nested` an archive in the archive.
    """

    url: str
    bytes: int
    sha256: str
    makes: str
    inside: str | None = None
    nested: str = ""


@dataclass(frozen=True)
class Benchmark:
    """A published dataset: where it lies, how it is read, what it must hold, where a person obtains it.

    `marker` is a path in its folder that tells it is there; `reader` names a function of
    `benchmark_readers.py`. `counts` are of train, val and test, None where any number will do, `domains` the
    images of each. A split file's paths are relative to `images`; `names` and `rename` make its class names
    readable. `parts` can be fetched; `by_hand` says why the rest, or all, cannot.
    """

    name: str
    title: str
    folder: str
    marker: str
    reader: str
    classes: int | None
    licence: str
    source: str
    counts: tuple[int | None, ...] = (None, None, None)
    template: str = DEFAULT_TEMPLATE
    aliases: tuple[str, ...] = ()
    domains: Mapping[str, int] = field(default_factory=dict)
    images: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    rename: str = ""
    parts: tuple[SourceFile, ...] = ()
    by_hand: str = ""

    def open(self, root: str | Path) -> Dataset:
        """Read the benchmark under `root`, the folder that holds it or the benchmark's own."""
        root = Path(root).expanduser()
        for folder in (root / self.folder, root):
            if (folder / self.marker).exists():
                return READERS[self.reader](self, folder)
        raise InputError(
            f"{self.title} is not under {root}: expected {root / self.folder / self.marker} "
            f"(obtain it from {self.source})"
        )


@cache
def benchmarks() -> dict[str, Benchmark]:
    rows = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return {row["name"]: from_dict(Benchmark, row) for row in rows}


def lookup(name: str) -> Benchmark | None:
    """The benchmark of that name, title or alias, whatever its case, hyphens and underscores."""

    def plain(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "").replace(" ", "")

    for entry in benchmarks().values():
        if plain(name) in map(plain, (entry.name, entry.title, *entry.aliases)):
            return entry
    return None


def find(name: str) -> Benchmark:
    """As `lookup`; an unknown name is an error with a suggestion."""
    if (entry := lookup(name)) is None:
        raise InputError(f"no benchmark is named {name!r}: {suggest(name, benchmarks())}")
    return entry


class CheckReport(NamedTuple):
    """What was looked at and what is wrong; `found` rows are (what, expected, found), texts to print."""

    title: str
    folder: Path
    found: tuple[tuple[str, str, str], ...]
    problems: tuple[str, ...]


def check(benchmark: Benchmark, root: str | Path) -> CheckReport:
    """Open the benchmark under `root`, compare its counts and look for every file."""
    try:
        dataset = benchmark.open(root)
    except InputError as error:
        return CheckReport(benchmark.title, Path(root), (), (str(error),))
    sizes = Counter(item.domain for item in dataset.items)
    wanted = [
        ("classes", benchmark.classes, len(dataset.classes)),
        *zip(SPLITS, benchmark.counts, (len(dataset.split(name)) for name in SPLITS), strict=True),
        *((domain, count, sizes[domain]) for domain, count in benchmark.domains.items()),
    ]
    found = [(what, "any" if count is None else f"{count:,}", f"{there:,}") for what, count, there in wanted]
    problems = [
        f"{what}: expected {count:,}, found {there:,}"
        for what, count, there in wanted
        if count not in (None, there)
    ]
    missing: dict[Path, list[str]] = {}  # by folder, so that thousands of files stay readable
    for item in dataset.items:
        file = dataset.file(item)
        if not _has_content(file):
            missing.setdefault(file.parent, []).append(file.name)
    for folder, names in sorted(missing.items()):
        what = f"{len(names):,} images missing or empty ({some(sorted(names))})"
        gone = f"the folder is missing ({len(names):,} images)"
        problems.append(f"{folder}: {what if folder.is_dir() else gone}")
    total = len(dataset.items)
    found.append(("files", f"{total:,}", f"{total - sum(map(len, missing.values())):,}"))
    return CheckReport(benchmark.title, dataset.root, tuple(found), tuple(problems))


def _has_content(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except OSError:
        return False


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
            remedy = "run the command again, which goes on where this ended"
            raise InputError(
                f"{part.url}: {why}: {remedy}; or obtain the file elsewhere and put it at {file}"
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
