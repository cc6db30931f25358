"""Files written so that a kill at any moment leaves no half of one, and paths that others wrote into files.

Logs are JSON lines that many processes append to at once.
"""

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from pbprompt.errors import OBEYED, InputError, first_line

try:
    import fcntl
except ImportError:  # Windows: an append is then still a single write, only unguarded
    fcntl = None  # type: ignore[assignment]

CONTROL = re.compile(r"[\x00-\x1f]")
ESCAPED = re.compile(r"\\u(?:d[89a-f][0-9a-f]{2}|00[01][0-9a-f]|00[89][0-9a-f]|007f|202[89a-e]|206[6-9])")
UNSHOWN = re.compile(rf"[{OBEYED}\ud800-\udfff]")  # and what is no text
FORMULA = re.compile(r"'*[=+\-@](?![\d.]+%?$)")  # a cell that a spreadsheet would compute; numbers are none
MOST_JSON = 1 << 29  # bytes; COCO's own file of 118,000 images has 448 MB
LONGEST_NAME = 255  # bytes, of a file; systems refuse longer ones with an error of their own


def cache_folder() -> Path:
    """What can be made again: $PBPROMPT_CACHE, or pbprompt under $XDG_CACHE_HOME, or ~/.cache/pbprompt."""
    if own := os.environ.get("PBPROMPT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pbprompt"


def as_text(name: str) -> str:
    """A name as every file format can hold it; `as_name` is the way back. Nearly all stay as they are.

    What is not UTF-8 in a file name is in Python a lone surrogate, which no format can hold: it is written
    `\\udcff`, and then a backslash of the name itself is doubled. So are control characters, which a terminal
    obeys, and those that turn the order of letters around.
    """
    if not ESCAPED.search(name) and not UNSHOWN.search(name):
        return name
    return UNSHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", name.replace("\\", "\\\\"))


def as_name(text: str) -> str:
    """The name that `as_text` wrote."""
    if not ESCAPED.search(text):
        return text
    both = re.compile(rf"\\\\|{ESCAPED.pattern}")
    return both.sub(lambda found: "\\" if found[0] == "\\\\" else chr(int(found[0][2:], 16)), text)


def inside(text: str, where: str, *, absolute: bool = False) -> str:
    """The path as a normal relative one with `/`; refused where it climbs out of the root or, unless that is
    allowed, is absolute.

    `where` names the file and line for the message. Backslashes count as separators, since tables made on
    Windows carry them.
    """
    if not text.strip():
        raise InputError(f"{where}: the image path is empty: give a path relative to the dataset's folder")
    slashed = as_name(text).replace("\\", "/")
    if (slashed.startswith("/") and not absolute) or re.match(r"[A-Za-z]:", slashed):
        raise InputError(f"{where}: {text!r} is an absolute path: give it relative to the dataset's folder")
    if CONTROL.search(slashed):
        raise InputError(f"{where}: {text!r} has a control character in it: correct the path")
    try:
        os.fsencode(slashed)
    except UnicodeEncodeError:
        raise InputError(
            f"{where}: {text!r} has a character that no file name has: correct the path"
        ) from None
    parts = slashed.split("/") if 4 * len(slashed) > LONGEST_NAME else ()
    if any(len(part.encode("utf-8", "surrogatepass")) > LONGEST_NAME for part in parts):
        raise InputError(f"{where}: '{text[:40]}…' has a name of over {LONGEST_NAME} bytes: correct the path")
    normal = os.path.normpath(slashed).replace(os.sep, "/")
    if normal in (".", "..") or normal.startswith("../"):
        raise InputError(f"{where}: {text!r} points outside the dataset's folder: move the image into it")
    return normal


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether it is a pipe, socket or device, whose reader may wait for ever."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - twice as fast over many files
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def facts_of(file: os.stat_result) -> tuple[int, int, int, int]:
    """Other numbers once the file was changed or replaced: its size, times in ns, and place on the disk.

    Whoever sets a file's modification time back sets its time of change to now. What remains: a clock that
    was set back, a disk that was written to by other ways than its files, and systems that keep neither.
    """
    return file.st_size, file.st_mtime_ns, file.st_ctime_ns, file.st_ino


def read_text(path: Path) -> str:
    """A UTF-8 file's text, without its byte-order mark."""
    if is_special(path):
        raise InputError(f"{path}: a pipe, socket or device: give a regular file")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text: save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}: give a file that can be read") from None


def read_json(path: Path) -> Any:
    """A file's value, of so many bytes at most."""
    if path.is_file() and path.stat().st_size > MOST_JSON:
        raise InputError(f"{path}: over {MOST_JSON >> 20} MiB of JSON: write a table, a .jsonl or .csv file")
    try:
        return json.loads(read_text(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({first_line(error)}): correct or fetch it again") from None


def as_csv(rows: Iterable[Iterable[object]]) -> str:
    """Rows as the text of a table; `cell_text` is the way back of a cell that looks like a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(
            [f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) else cell for cell in row]
        )
    return text.getvalue()


def csv_rows(where: object, text: str, delimiter: str = ",") -> Iterator[tuple[str, list[str]]]:
    """The rows of a table, each with the place to name where it is wrong; empty lines are passed over."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if cells:
                yield f"{where} line {reader.line_num}", cells
    except csv.Error as error:
        raise InputError(f"{where} line {reader.line_num}: {error}: correct the quotes") from None


def cell_text(cell: str) -> str:
    """A cell without the quote that keeps a spreadsheet from computing it."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text; see `write_bytes`. Prose may quote a name as it is: names alone go by `as_text`."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write under a temporary name beside the file, then rename it into place."""
    path = Path(path)
    write_files(path.parent, {path.name: content})


def write_files(folder: Path, contents: Mapping[str, bytes | Iterable[bytes]]) -> None:
    """Write several files (whole or piece by piece), all on the disk before the first is renamed, in order.

    So a full disk changes nothing, and only a kill between two renames leaves some of them new.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporaries: dict[str, str] = {}
    name = ""
    try:
        for name, content in contents.items():
            handle, temporaries[name] = tempfile.mkstemp(dir=folder, prefix=f".{name.lstrip('.')}.")
            with os.fdopen(handle, "wb") as file:
                file.writelines([content] if isinstance(content, bytes) else content)
                file.flush()
                os.fsync(handle)  # or a power cut could leave a name without its content
            Path(temporaries[name]).chmod(0o644)  # mkstemp makes it private
        for name in contents:
            Path(temporaries[name]).replace(folder / name)
    except BaseException as error:
        for temporary in temporaries.values():
            Path(temporary).unlink(missing_ok=True)
        raise _naming(error, folder / name)  # noqa: B904 - it is the same
    with contextlib.suppress(OSError):  # Windows opens no folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def file_hash(path: Path) -> str | None:
    """SHA-256 of a file's content; None where there is no regular file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_stream(path: Path, pieces: Iterable[bytes]) -> str:
    """Write a file piece by piece, as `write_bytes` would the whole; returns its SHA-256."""
    digest = hashlib.sha256()

    def counted() -> Iterator[bytes]:
        for piece in pieces:
            digest.update(piece)
            yield piece

    write_files(path.parent, {path.name: counted()})
    return digest.hexdigest()


def _naming(error: BaseException, path: Path) -> BaseException:
    """With the file's name, which a write to a full disk does not tell."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        error.filename = str(path)
    return error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which a process that ends lets go of however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        try_lock(file, wait=True)
        yield  # closing the file lets go


_holding = threading.local()


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder itself, so that nothing is left in it; other than `locked`'s.

    One that this thread holds already is held on.
    """
    mine, real = _holding.__dict__, os.path.realpath(folder)
    if real in mine:
        yield
        return
    with contextlib.ExitStack() as stack:
        mine[real] = True
        stack.callback(mine.pop, real)
        with contextlib.suppress(OSError):  # Windows opens no folders
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            try_lock(handle, wait=True)
        yield


def try_lock(file: IO[bytes] | int, *, wait: bool = False) -> bool:
    """Hold a file's lock until it is closed; False where another process holds it and is not waited for."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError:  # some network file systems have no locks
            pass
    return True


def append_records(path: Path, records: Iterable[Any]) -> None:
    """Add one line a record with a single write; call it under `locked`.

    Where a kill left half a line at the end, a newline comes first, so that no good line joins the torn one.
    On a full disk, what was written of them is taken back.
    """
    content = b"".join(json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if size := os.fstat(handle).st_size:
            os.lseek(handle, size - 1, os.SEEK_SET)
            if os.read(handle, 1) != b"\n":
                content = b"\n" + content
        try:
            written = os.write(handle, content)
        except OSError as error:
            raise _naming(error, path)  # noqa: B904
        if written < len(content):
            os.ftruncate(handle, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(handle)
    finally:
        os.close(handle)


def read_records(path: Path) -> Iterator[Any]:
    """The records in order; torn lines are passed over. A file that is not there holds none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for line in content.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            yield json.loads(line)
