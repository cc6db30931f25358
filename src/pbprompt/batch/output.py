"""Where answers go: parts, a list of those that are whole, and in the end one file.

    answers.csv                     the one file, once all is done, and nothing before
    answers.failed.csv              images that could not be read, with the reasons; where there are any
    .answers.csv.parts/             until then, beside it:
        part-00000012-00001024.csv  answers on the 1,025th image and the next ones of the 13th unit
        _failed-….csv
        _manifest.jsonl             what the job is, then a line for each part, with its hash

A name that ends in a slash, `answers.csv/`, is that folder itself, and its parts stay: for answers that are
too many to be copied into one file. Part files are written under another name and renamed, and are listed
only then: what is not listed was not finished, and is made again.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pbprompt.batch.formats import check_suffix, join
from pbprompt.batch.parts import Part, Todo
from pbprompt.data.stream import Unit
from pbprompt.errors import InputError
from pbprompt.files import append_records, read_records, try_lock, write_bytes, write_stream

MANIFEST = "_manifest.jsonl"  # readers of folders of Parquet files pass over names with an underscore
Identity = Mapping[str, Any]


class Done(NamedTuple):
    """How far a unit is, and which it was."""

    identity: str
    records: int
    last: bool


class Output:
    """The answers of one job, here since it began or since an earlier process was ended."""

    def __init__(self, out: str) -> None:
        self.whole = not out.endswith("/")
        self.path = Path(out)
        self.suffix = self.path.suffix.lower()
        check_suffix(str(self.path), self.suffix)
        self.folder = self.path.with_name(f".{self.path.name}.parts") if self.whole else self.path
        self.failed_path = self.path.with_name(f"{self.path.stem}.failed{self.path.suffix}")
        self.done: dict[int, Done] = {}
        self.rows = self.failures = 0
        self.finished = False
        self._parts: list[dict[str, Any]] = []
        if self.whole and self.path.is_dir():
            raise InputError(
                f"{self.path}: is a folder: give a file, or write {self.path}/ for a folder of parts"
            )

    @contextlib.contextmanager
    def opened(self, identity: Identity) -> Iterator["Output"]:
        """For this job and no other at the same time; what it has done already is known from here on."""
        identity = json.loads(json.dumps(identity))
        self._check(identity, self._read())
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("ab") as lock:
            if not try_lock(lock):
                raise InputError(
                    f"{self.path}: another process is writing it: wait for it, or give another name"
                )
            there = self._read()
            self._check(identity, there)
            if not there:
                append_records(self.folder / MANIFEST, [{"job": identity}])
            for line in there[1:]:
                self._take(line)
            self._settle(there)
            yield self

    def _read(self) -> list[dict[str, Any]]:
        return [line for line in read_records(self.folder / MANIFEST) if isinstance(line, dict)]

    def _check(self, identity: Identity, there: list[dict[str, Any]]) -> None:
        """Refuse what another job, or a person, has put there."""
        if not there:
            self._refuse_files((self.path, self.failed_path) if self.whole else self._own_files())
            return
        former = there[0].get("job", {})
        other = [key for key in {**former, **identity} if former.get(key) != identity.get(key)]
        if other:
            raise InputError(
                f"{self.path}: was begun by another job (other {', '.join(other)}): give another name, "
                f"or remove {self.folder}"
            )

    def _refuse_files(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if path.exists():
                raise InputError(f"{path}: exists already, from another job: give another name, or remove it")

    def _own_files(self) -> Iterator[Path]:
        """Of the folder, but for the manifest and the lock."""
        return (path for path in self.folder.glob("*") if path.name not in (MANIFEST, ".lock"))

    def _take(self, line: Mapping[str, Any]) -> None:
        if "part" not in line:
            return
        unit, first, records = line["unit"], line["first"], line["records"]
        before = self.done[unit].records if unit in self.done else 0
        if first < before:  # made twice, since it was thought lost: both are the same
            return
        if first > before:
            raise RuntimeError(f"the part from {first} on of unit {unit} came before that from {before} on")
        self.done[unit] = Done(line["identity"], first + records, line["last"])
        self.rows, self.failures = self.rows + line["rows"], self.failures + line["failures"]
        self._parts.append(dict(line))

    def _settle(self, there: list[dict[str, Any]]) -> None:
        """After an end: the file is there, or can be made of the parts, or was taken away since."""
        end = next((line["finished"] for line in reversed(there) if "finished" in line), None)
        if end is None:
            if self.whole:
                self._refuse_files((self.path, self.failed_path))
        elif not self.whole:
            self.finished = True
        elif self.path.exists():
            if _file_hash(self.path) != end["sha256"]:
                raise InputError(
                    f"{self.path}: was changed since: give another name, or remove {self.folder}"
                )
            self.finished = True
            self._remove_parts()
        elif not all(self._kept(line) for line in self._parts):
            self._begin_anew(there[0])

    def _kept(self, line: Mapping[str, Any]) -> bool:
        names = [line[key] for key, count in (("part", "rows"), ("failed", "failures")) if line[count]]
        return all((self.folder / name).exists() for name in names)

    def _begin_anew(self, job: Mapping[str, Any]) -> None:
        (self.folder / MANIFEST).unlink()
        self._remove_parts()
        self.done.clear()
        self._parts.clear()
        self.rows = self.failures = 0
        append_records(self.folder / MANIFEST, [job])

    def todo(self, units: Iterable[Unit]) -> Iterator[Todo]:
        """What is left of the units, which must be those of before."""
        return remaining(units, self.done, str(self.path))

    def add(self, part: Part) -> None:
        """Keep a part; one that is there already is the same."""
        name = f"{part.unit:08d}-{part.first:08d}{self.suffix}"
        line = {"part": f"part-{name}", "failed": f"_failed-{name}"}
        for key, content in (("part", part.answers), ("failed", part.failed)):
            if content:
                write_bytes(self.folder / line[key], content)
        facts = {key: value for key, value in part._asdict().items() if key not in ("answers", "failed")}
        hashes = {"sha256": _hash(part.answers), "failed_sha256": _hash(part.failed)}
        record = {**facts, **line, **hashes}
        append_records(self.folder / MANIFEST, [record])
        self._take(record)

    def finish(self) -> None:
        """Put the parts together in the order of the source, unless they are to stay."""
        self._parts.sort(key=lambda line: (line["unit"], line["first"]))
        digest: str | None = None
        if self.whole:
            if self.rows:
                pieces = join(self._contents("part", "rows", "sha256"), self.suffix)
                digest = write_stream(self.folder / f"whole{self.suffix}", pieces)
            if self.failures:
                pieces = join(self._contents("failed", "failures", "failed_sha256"), self.suffix)
                write_stream(self.folder / f"_failed{self.suffix}", pieces)
        facts = {"sha256": digest, "rows": self.rows, "failures": self.failures}
        append_records(self.folder / MANIFEST, [{"finished": facts}])
        if self.whole:
            if self.failures:
                (self.folder / f"_failed{self.suffix}").replace(self.failed_path)
            if self.rows:
                (self.folder / f"whole{self.suffix}").replace(self.path)
        self._remove_parts()
        self.finished = True

    def _contents(self, name: str, count: str, digest: str) -> Iterator[bytes]:
        for line in self._parts:
            if not line[count]:
                continue
            path = self.folder / line[name]
            content = path.read_bytes() if path.is_file() else b""
            if _hash(content) != line[digest]:
                raise InputError(f"{path}: is not what was written: remove {self.folder}, and run it again")
            yield content

    def _remove_parts(self) -> None:
        """Unless they are to stay; then only what a kill left under another name."""
        for path in self._own_files():
            if self.whole or path.name.startswith("."):
                path.unlink(missing_ok=True)


def remaining(units: Iterable[Unit], done: Mapping[int, Done], name: str) -> Iterator[Todo]:
    """What is left of the units; see `Output.todo`. It needs no disk: another machine can do it."""
    number = -1
    for number, unit in enumerate(units):
        before = done.get(number)
        if before is None:
            yield Todo(number, unit)
        elif before.identity != unit.identity:
            raise _changed(name)
        elif not before.last:
            yield Todo(number, unit, before.records)
    if done and max(done) > number:
        raise _changed(name)


def _changed(name: str) -> InputError:
    return InputError(
        f"{name}: the images are others than when this job began (some were added, removed or changed): give "
        "another name for the answers, or the images of before"
    )


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
