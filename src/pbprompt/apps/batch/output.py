"""Where answers go: parts, a list of those that are whole, and in the end one file.

    answers.csv                     the one file, once all is done, and nothing before
    answers.failed.csv              images that could not be read, with the reasons; where there are any
    .answers.csv.parts/             until then, beside it:
        part-00000012-00001024.csv  answers on the 1,025th image and the next ones of the 13th unit
        _failed-….csv
        _manifest.jsonl             what the job is, then a line for each part, with its hash

A name that ends in a slash, `answers.csv/`, is that folder itself, and its parts stay: for answers that are
too many to be copied into one file. Part files are written under another name and renamed, and are listed
only then: what is not listed was not finished, and is made again, as is what no longer has its hash.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from pbprompt.apps.batch.formats import check_suffix, join
from pbprompt.errors import InputError
from pbprompt.files import append_records, file_hash, read_records, try_lock, write_bytes, write_stream
from pbprompt.vision.images.stream import Unit

MANIFEST = "_manifest.jsonl"  # readers of folders of Parquet files pass over names with an underscore
LOCK = ".lock"
END = {"rows": int, "failures": int, "files": dict}  # fields of the last line; files by name, with their hash
FIELDS = {"unit": int, "identity": str, "first": int, "records": int, "last": bool} | END  # of a part's line
OWN_NAME = re.compile(r"\.?((part|_failed)-\d{8}-\d{8}|whole|_failed)\.(csv|jsonl|parquet)(\.\w+)?")
TORN = re.compile(r"\.(part|_failed)-\d{8}-\d{8}\.\w+\.\w+")  # what a kill left under another name
Identity = Mapping[str, Any]
Line = dict[str, Any]


class Todo(NamedTuple):
    """A unit by its number in the stream, of which the first `skip` records are done."""

    number: int
    unit: Unit
    skip: int = 0


class Part(NamedTuple):
    """The records from `first` on of one unit: so many, and what is said of them."""

    unit: int
    identity: str
    first: int
    last: bool
    records: int
    rows: int
    answers: bytes
    failures: int
    failed: bytes


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
        self.damaged = 0  # parts that are no longer what was written, and are made again
        self.finished = False
        self._parts: list[Line] = []
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
        with (self.folder / LOCK).open("ab") as lock:
            if not (try_lock(lock) and _is_there(lock, self.folder / LOCK)):
                raise InputError(
                    f"{self.path}: another process is writing it: wait for it, or give another name"
                )
            there = self._read()
            self._check(identity, there)
            if not there:
                append_records(self.folder / MANIFEST, [{"job": identity}])
            try:
                self._settle(there)
                yield self
            finally:
                if (self.whole and self.finished) or len(self._read()) <= 1:  # or no part was made
                    self._remove_folder()

    def _read(self) -> list[Line]:
        return [line for line in read_records(self.folder / MANIFEST) if isinstance(line, dict)]

    def _check(self, identity: Identity, there: list[Line]) -> None:
        """Refuse what another job, or a person, has put there."""
        if not there:
            others = (path for path in self.folder.glob("*") if path.name not in (MANIFEST, LOCK))
            self._refuse_files((self.path, self.failed_path) if self.whole else others)
            return
        former = there[0].get("job")
        former = former if isinstance(former, dict) else {}
        other = [key for key in {**former, **identity} if former.get(key) != identity.get(key)]
        if other:
            raise InputError(
                f"{self.path}: was begun by another job (other {', '.join(other)}): give another name, "
                f"or remove {self.folder}"
            )

    def _refuse_files(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if path.exists():
                raise InputError(f"{path}: exists already: give another name, or remove it")

    def _settle(self, there: list[Line]) -> None:
        """After an end: the files are there, or can be made of the parts, or parts have to be made again."""
        ends = [line["finished"] for line in there if _has(line.get("finished"), END)]
        # of one that was made again the last line counts
        listed = {(line["unit"], line["first"]): line for line in there if _has(line, FIELDS)}
        published = self.whole and bool(ends) and self._published(ends[-1])
        for _, line in sorted(listed.items()):
            kept = published or all(file_hash(self.folder / name) == it for name, it in line["files"].items())
            if not kept:
                self.damaged += 1
            elif line["first"] == self._answered(line["unit"]):  # what follows a damaged one is made again
                self._take(line)
        self.finished = published if self.whole else bool(ends) and not self.damaged
        if self.whole and not published:
            self._refuse_files((self.path, self.failed_path))

    def complete(self, units: Iterable[Unit]) -> bool:
        """Whether nothing is left to do; images other than those of before are refused."""
        if self.finished and next(self.todo(units), None) is not None:
            if self.whole:
                raise _changed(str(self.path))
            self.finished = False
        return self.finished

    def _answered(self, unit: int) -> int:
        return self.done[unit].records if unit in self.done else 0

    def _take(self, line: Line) -> None:
        unit, first, records = line["unit"], line["first"], line["records"]
        before = self._answered(unit)
        if first < before:  # made twice, since it was thought lost: both are the same
            return
        if first > before:
            raise RuntimeError(f"the part from {first} on of unit {unit} came before that from {before} on")
        self.done[unit] = Done(line["identity"], first + records, line["last"])
        self.rows, self.failures = self.rows + line["rows"], self.failures + line["failures"]
        self._parts.append(line)

    def todo(self, units: Iterable[Unit]) -> Iterator[Todo]:
        """What is left of the units, which must be those of before."""
        return remaining(units, self.done, str(self.path))

    def add(self, part: Part) -> None:
        """Keep a part; one that is there already is the same."""
        name = f"{part.unit:08d}-{part.first:08d}{self.suffix}"
        contents = {f"part-{name}": part.answers, f"_failed-{name}": part.failed}
        files = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items() if content}
        for name in files:
            write_bytes(self.folder / name, contents[name])
        facts = {key: value for key, value in part._asdict().items() if key in FIELDS}
        line = {**facts, "files": files}
        append_records(self.folder / MANIFEST, [line])
        self._take(line)

    def finish(self) -> None:
        """Put the parts together in the order of the source, unless they are to stay."""
        self._parts.sort(key=lambda line: (line["unit"], line["first"]))
        end: Line = {"rows": self.rows, "failures": self.failures, "files": {}}
        for whole, part, count in (("_failed", "_failed-", "failures"), ("whole", "part-", "rows")):
            if self.whole and end[count]:
                name, contents = f"{whole}{self.suffix}", self._contents(part)
                end["files"][name] = write_stream(self.folder / name, join(contents, self.suffix))
        append_records(self.folder / MANIFEST, [{"finished": end}])
        if self.whole:
            self._published(end)
        else:
            self._remove(TORN)
        self.finished = True

    def _published(self, end: Line) -> bool:
        """Let the files appear, over nobody else's. False: they were taken away."""
        for name, digest in end["files"].items():
            joined, path = self.folder / name, self.failed_path if name.startswith("_failed") else self.path
            if file_hash(path) == digest:
                continue
            if not path.exists() and file_hash(joined) != digest:
                return False
            try:
                _move(joined, path)
            except FileExistsError:
                raise InputError(
                    f"{path}: was put there, or changed, by another program: move it away and run the same "
                    f"command again; the answers are kept in {self.folder}"
                ) from None
        return True

    def _contents(self, kind: str) -> Iterator[bytes]:
        for name, digest in (file for line in self._parts for file in line["files"].items()):
            if name.startswith(kind):
                path = self.folder / name
                content = path.read_bytes() if path.is_file() else b""
                if hashlib.sha256(content).hexdigest() != digest:
                    raise InputError(f"{path}: is not what was written: the same command again makes it anew")
                yield content

    def _remove(self, names: re.Pattern[str]) -> None:
        """Only what is the job's own, by its name."""
        for path in self.folder.glob("*"):
            if names.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _remove_folder(self) -> None:
        self._remove(OWN_NAME)
        (self.folder / MANIFEST).unlink(missing_ok=True)  # after the parts, which it tells whose they are
        with contextlib.suppress(OSError):  # where others have put something there, it stays
            (self.folder / LOCK).unlink(missing_ok=True)
            self.folder.rmdir()


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


def _has(value: object, fields: Mapping[str, type]) -> bool:
    return isinstance(value, dict) and all(type(value.get(key)) is kind for key, kind in fields.items())


def _is_there(file: IO[bytes], path: Path) -> bool:
    """Whether the open file is still the one of that name: a job that ended took its own away."""
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def _move(source: Path, to: Path) -> None:
    """To a name that is free; FileExistsError where it is not."""
    try:
        to.hardlink_to(source)  # unlike a rename, it never takes the place of a file
        source.unlink()
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if to.exists():
            raise FileExistsError from None
        source.replace(to)
