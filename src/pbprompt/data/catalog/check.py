"""Whether a benchmark on disk is whole: its layout, its counts and every file."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pbprompt.data.catalog.benchmark import Benchmark
from pbprompt.data.items import SPLITS, some
from pbprompt.errors import InputError


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
