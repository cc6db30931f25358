"""An image from an address: http and https alone, so many bytes, in so much time."""

import time
import urllib.request
from http.client import HTTPException
from typing import IO, Any
from urllib.parse import urlsplit

from pbprompt.errors import InputError

MOST_BYTES = 20 << 20
WAIT_SECONDS = 10.0  # for the connection, and for each of its parts
MOST_SECONDS = 60.0  # in all
CHUNK = 1 << 16


def is_address(text: str) -> bool:
    """Whether it names something elsewhere, by whatever scheme."""
    return "://" in text


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Followed to http and https, and never from https to http."""

    max_redirections = 5

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            raise InputError(f"cannot read image {req.full_url}: it leads on to {scheme}, which is refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """What urllib makes by default opens files and FTP too."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    opener.addheaders = [("User-Agent", "pbprompt"), ("Accept", "image/*")]
    return opener


def download(address: str) -> bytes:
    """The content at an address, not yet looked at."""
    if urlsplit(address).scheme not in ("http", "https"):
        raise InputError(f"cannot read image {address}: only http and https are fetched")
    end = time.monotonic() + MOST_SECONDS
    try:
        with _opener().open(address, timeout=WAIT_SECONDS) as answer:
            parts, size = [], 0
            while part := answer.read1(CHUNK):
                size += len(part)
                if size > MOST_BYTES:
                    raise InputError(f"cannot read image {address}: larger than {MOST_BYTES >> 20} MiB")
                if time.monotonic() > end:
                    raise InputError(f"cannot read image {address}: not there after {MOST_SECONDS:g} seconds")
                parts.append(part)
    except InputError:
        raise
    except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
        why = str(getattr(error, "reason", None) or error or type(error).__name__)
        raise InputError(f"cannot read image {address}: {why}") from None
    return b"".join(parts)
