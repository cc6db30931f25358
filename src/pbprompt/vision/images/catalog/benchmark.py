"""What a catalogue entry is, and whether one on disk is whole: its layout, its counts and every file."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pbprompt.errors import InputError
from pbprompt.files import read_text
from pbprompt.vision.images.items import DEFAULT_TEMPLATE, SPLITS, Dataset, some

Counts = tuple[int | None, int | None, int | None]  # train, val, test; None where any number will do


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

    `marker` is a path in its folder that tells it is there; `read` makes the dataset from that folder. A
    split file's paths are relative to `images`; `names` and `rename` make its class names readable. `parts`
    can be fetched; `by_hand` says why the rest, or all, cannot.
    """

    name: str
    title: str
    folder: str
    marker: str
    classes: int | None
    licence: str
    source: str
    read: Callable[["Benchmark", Path], Dataset]
    counts: Counts = (None, None, None)
    template: str = DEFAULT_TEMPLATE
    aliases: tuple[str, ...] = ()
    domains: tuple[tuple[str, int], ...] = ()  # each domain and its images
    images: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    rename: str = ""
    parts: tuple[SourceFile, ...] = ()
    by_hand: str = ""

    def locate(self, root: str | Path) -> Path:
        """The dataset's own folder: `root/<folder>`, or `root` itself."""
        root = Path(root).expanduser()
        for folder in (root / self.folder, root):
            if (folder / self.marker).exists():
                return folder
        raise InputError(
            f"{self.title} is not under {root}: expected {root / self.folder / self.marker} "
            f"(obtain it from {self.source})"
        )

    def open(self, root: str | Path) -> Dataset:
        """Read the benchmark under `root`, the folder that holds it or the benchmark's own."""
        return self.read(self, self.locate(root))


def list_lines(path: Path) -> list[str]:
    """The lines of a list file, without the empty ones."""
    return [line for line in read_text(path).split("\n") if line.strip()]


@dataclass(frozen=True)
class CheckReport:
    """What was looked at and what is wrong; `found` rows are (what, expected, found), texts to print."""

    title: str
    folder: Path
    found: tuple[tuple[str, str, str], ...]
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Nothing is missing and every count is as published."""
        return not self.problems


def check(benchmark: Benchmark, root: str | Path) -> CheckReport:
    """Open the benchmark under `root`, compare its counts and look for every file."""
    try:
        folder = benchmark.locate(root)
        dataset = benchmark.read(benchmark, folder)
    except InputError as error:
        return CheckReport(benchmark.title, Path(root), (), (str(error),))
    found, problems = [], []
    wanted = [("classes", benchmark.classes, len(dataset.classes))]
    for split, count in zip(SPLITS, benchmark.counts, strict=True):
        wanted.append((split, count, len(dataset.split(split))))
    sizes = Counter(item.domain for item in dataset.items)
    wanted += [(domain, count, sizes[domain]) for domain, count in benchmark.domains]
    for what, expected, actual in wanted:
        found.append((what, "any" if expected is None else f"{expected:,}", f"{actual:,}"))
        if expected not in (None, actual):
            problems.append(f"{what}: expected {expected:,}, found {actual:,}")
    missing = [item.path for item in dataset.items if not _has_content(dataset.file(item))]
    total = len(dataset.items)
    found.append(("files", f"{total:,}", f"{total - len(missing):,}"))
    return CheckReport(benchmark.title, folder, tuple(found), (*problems, *_by_folder(folder, missing)))


def _has_content(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except OSError:
        return False


def _by_folder(root: Path, missing: list[str]) -> list[str]:
    """A line per folder, so that thousands of missing files stay readable."""
    folders: dict[str, list[str]] = {}
    for path in missing:
        folders.setdefault(str(PurePosixPath(path).parent), []).append(PurePosixPath(path).name)
    lines = []
    for folder, files in sorted(folders.items()):
        if not (root / folder).is_dir():
            lines.append(f"{root / folder}: the folder is missing ({len(files):,} images)")
        else:
            lines.append(f"{root / folder}: {len(files):,} images missing or empty ({some(sorted(files))})")
    return lines
