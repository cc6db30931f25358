"""Files here and elsewhere: paths, and addresses of some schemes that fsspec knows (s3, gs, http, …).

An image from the web comes by http and https alone, in so many bytes and so much time.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib import request
from urllib.parse import urlsplit

from pbprompt.errors import InputError, first_line, install_command, needing
from pbprompt.files import facts_of

Place = Path | str  # a path here, or an address
BLOCK = 4 << 20  # of what is elsewhere, fetched at once
WEB = ("http://", "https://")
# Others that fsspec knows (local, reference, simplecache::…) lead a table's rows to any file of this machine.
SCHEMES = ("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "hf", "memory")
MOST_BYTES = 20 << 20  # of an image from the web
WAIT_SECONDS = 10.0  # for the connection, and for each of its parts
MOST_SECONDS = 60.0  # in all
CHUNK = 1 << 16
_DENIED = ("credential", "forbidden", "accessdenied", "unauthorized", "anonymous", "permission")
_EXTRAS = {"s3": "s3", "gs": "gs", "gcs": "gs"}
_GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS"
_AWS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_VARIABLES = {"s3": _AWS, "gs": _GOOGLE, "gcs": _GOOGLE}


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


def read_address(address: str, most_bytes: int) -> bytes:
    """An image file from elsewhere. What the web sends has stricter limits."""
    if address.startswith(WEB):
        return download(address)
    try:
        with explained(address), opened(address) as file:
            content = file.read(most_bytes + 1)
        if len(content) <= most_bytes:
            return content
        raise InputError(f"{address}: the file is larger than {most_bytes >> 20} MiB")
    except InputError as error:
        raise InputError(f"cannot read image {error}") from None


class _Redirects(request.HTTPRedirectHandler):
    """Followed to http and https, and never from https to http."""

    max_redirections = 5

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> request.Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            raise InputError(f"cannot read image {req.full_url}: it leads on to {scheme}, which is refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> request.OpenerDirector:
    """What urllib makes by default opens files and FTP too."""
    opener = request.OpenerDirector()
    ways = (request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, _Redirects)
    for handler in (*ways, request.HTTPDefaultErrorHandler, request.HTTPErrorProcessor):
        opener.add_handler(handler())
    opener.addheaders = [("User-Agent", "pbprompt"), ("Accept", "image/*")]
    return opener


def download(address: str) -> bytes:
    """The content at an address, not yet looked at."""
    parts, size, end = [], 0, time.monotonic() + MOST_SECONDS
    try:
        if urlsplit(address).scheme not in ("http", "https"):
            raise ValueError("only http and https are fetched")
        with _opener().open(address, timeout=WAIT_SECONDS) as answer:
            while part := answer.read1(CHUNK):
                size += len(part)
                if size > MOST_BYTES:
                    raise ValueError(f"larger than {MOST_BYTES >> 20} MiB")
                if time.monotonic() > end:
                    raise ValueError(f"not there after {MOST_SECONDS:g} seconds")
                parts.append(part)
            if answer.length:  # of what was to come
                raise ValueError(f"cut off, {answer.length:,} bytes are missing")
    except InputError:
        raise
    except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
        why = str(getattr(error, "reason", None) or error or type(error).__name__)
        raise InputError(f"cannot read image {address}: {why}") from None
    return b"".join(parts)
