"""Files and folders here and elsewhere: paths, and addresses of some schemes that fsspec knows (s3, gs, …);
what counts as an image there, and what folders say of one.
"""

import contextlib
import heapq
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from pbprompt.errors import InputError, first_line, install_command, needing
from pbprompt.files import facts_of
from pbprompt.vision.images.images import IMAGE_SUFFIXES, looks_like_image

Place = Path | str  # a path here, or an address
BLOCK = 4 << 20  # of what is elsewhere, fetched at once
WEB = ("http://", "https://")
# Others that fsspec knows (local, reference, simplecache::…) lead a table's rows to any file of this machine.
SCHEMES = ("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "hf", "memory")
_DENIED = ("credential", "forbidden", "accessdenied", "unauthorized", "anonymous", "permission")
_EXTRAS = {"s3": "s3", "gs": "gs", "gcs": "gs"}
_GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS"
_AWS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_VARIABLES = {"s3": _AWS, "gs": _GOOGLE, "gcs": _GOOGLE}
NAMES_AT_ONCE = 1 << 18  # of one folder; a larger one is gone through again for each so many
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
UNLABELLED = ("unlabelled", "unlabeled")  # a folder of that name is no class


def is_address(text: str) -> bool:
    """Whether it names something elsewhere, by whatever scheme."""
    return "://" in text


def place_of(word: str) -> Place:
    """A path where the word names something here."""
    if word.startswith("file://"):
        return Path(word.removeprefix("file://"))
    return word if is_address(word) else Path(word)


@contextlib.contextmanager
def explained(place: Place) -> Iterator[None]:
    """Whatever goes wrong there as one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # each library beneath fsspec has errors of its own
        why, scheme = first_line(error), str(place).split("://")[0]
        if is_address(str(place)) and _denied(error):
            variables = _VARIABLES.get(scheme, f"what fsspec's {scheme} reads from the environment")
            raise InputError(f"{place}: no access without credentials ({why}): set {variables}") from None
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{place}: not there: check the name") from None
        raise InputError(f"{place}: cannot be read: {why}") from None


def _denied(error: BaseException | None) -> bool:
    """Whether it, or what it was raised from, is for want of credentials."""
    while error is not None:
        words = f"{type(error).__name__} {error}".lower().replace("access denied", "accessdenied")
        if getattr(error, "status", None) in (401, 403) or any(word in words for word in _DENIED):
            return True
        error = error.__cause__
    return False


def filesystem(address: str) -> tuple[Any, str]:
    """fsspec's file system of an address, and the path there."""
    if address.split("://")[0] not in SCHEMES or "::" in address:
        known = ", ".join(SCHEMES[:-1])
        raise InputError(f"{address}: not an address that is read: check it; its scheme may be {known}")
    with needing(f"{address}: addresses need fsspec", "remote"):
        import fsspec
    try:
        system, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        extra = _EXTRAS.get(address.split("://")[0], "remote")
        raise InputError(f"{address}: {error}: {install_command(extra)}") from None
    except ValueError as error:  # an unknown scheme
        raise InputError(f"{address}: {first_line(error)}: check the address") from None
    log = logging.getLogger(type(system).__module__.partition(".")[0])
    if not log.handlers:  # where nobody listens, it would print its tracebacks beside our sentence
        log.addHandler(logging.NullHandler())
    return system, path


@contextlib.contextmanager
def opened(place: Place) -> Iterator[IO[bytes]]:
    """A file for reading, which can seek where its place can."""
    with explained(place):
        if isinstance(place, Path):
            opening: IO[bytes] = place.open("rb")
        else:
            system, path = filesystem(place)
            opening = system.open(path, "rb", block_size=BLOCK, cache_type="readahead")
    with opening as file:
        yield file


def state(place: Place) -> str:
    """Another text once the file has changed, as far as its place tells: size, time or tag."""
    with explained(place):
        if isinstance(place, Path):
            return " ".join(map(str, facts_of(place.stat())))
        system, path = filesystem(place)
        info = system.info(path)
        keys = ("size", "ETag", "etag", "mtime", "LastModified", "created", "md5Hash")
        return " ".join(str(info[key]) for key in keys if info.get(key) is not None)


def files_in(
    folder: Place, prefix: str = "", above: frozenset[Place] = frozenset()
) -> Iterator[tuple[Place, str]]:
    """All files below, each with its path there, in the order of these; hidden ones are left out."""
    real = os.path.realpath(folder) if isinstance(folder, Path) else folder
    if real in above:  # a link to a folder it lies in
        return
    for name in _names(folder):
        place = folder / name if isinstance(folder, Path) else f"{folder.rstrip('/')}/{name}"
        if name.endswith("/"):
            yield from files_in(place, prefix + name, above | {real})
        else:
            yield place, prefix + name


def _names(folder: Place) -> Iterator[str]:
    """The names in a folder, sorted, each folder's with a slash: so the paths below come in order too."""
    last = ""
    while True:
        with explained(folder):
            listed = _listed_here(folder) if isinstance(folder, Path) else _listed_there(folder)
            names = (name for name in listed if name > last and not name.startswith("."))
            some = heapq.nsmallest(NAMES_AT_ONCE, names)
        yield from some
        if len(some) < NAMES_AT_ONCE:
            return
        last = some[-1]


def _listed_here(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                yield f"{entry.name}/" if entry.is_dir() else entry.name
            except OSError:  # a link to itself, which is no image either
                yield entry.name


def _listed_there(address: str) -> set[str]:
    """fsspec lists a folder at once."""
    system, path = filesystem(address)
    return {
        entry["name"].rstrip("/").rsplit("/", 1)[-1] + ("/" if entry["type"] == "directory" else "")
        for entry in system.ls(path, detail=True)
        if entry["name"].rstrip("/") != path.rstrip("/")  # some list the folder itself
    }


def subfolders(folder: Place) -> list[str]:
    """The names of the folders directly in a folder, sorted, hidden ones left out."""
    return sorted(name.rstrip("/") for name in _names(folder) if name.endswith("/"))


def is_image(place: Place) -> bool:
    """By its suffix; a file here with another one by its first bytes."""
    path = place if isinstance(place, Path) else Path(place.split("?")[0])
    return path.suffix.lower() in IMAGE_SUFFIXES or (path is place and looks_like_image(path))


class Labels:
    """The class and split of a file from the folders it lies in: `<class>/…`, or `<split>/<class>/…`."""

    def __init__(self, folders: Sequence[str]) -> None:
        """`folders` are those directly in the root."""
        self.unlabelled = [name for name in folders if name.lower() in UNLABELLED]
        folders = [name for name in folders if name not in self.unlabelled]
        splits = {name: SPLIT_WORDS[name.lower()] for name in folders if name.lower() in SPLIT_WORDS}
        # A class may itself be called "train": two splits, or nothing but splits, make the folders splits.
        split = splits and (len(set(splits.values())) > 1 or len(splits) == len(folders))
        self.splits = splits if split else {}

    def of(self, relative: str) -> tuple[str, str]:
        """The label, "" outside the class folders, and the split, "" where there are none."""
        parts = relative.split("/")[:-1]
        if parts and parts[0] in self.unlabelled:
            return "", ""
        if not self.splits:
            return parts[0] if parts else "", ""
        split = self.splits.get(parts[0], "") if parts else ""
        return parts[1] if split and len(parts) > 1 else "", split
