"""What clients may ask of the server, and how a request beyond that is refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds on requests; of what all share, one client has half at most.

    The defaults let 200 clients with a few photographs each come at once.
    """

    image_bytes: int = 10 * MIB  # one encoded image
    request_bytes: int = 64 * MIB  # one whole request
    fields_bytes: int = MIB  # one request without images
    held_bytes: int = 512 * MIB  # all requests in memory together
    image_pixels: int = 40_000_000
    decode_seconds: float = 10.0  # one image
    images: int = 32  # a request
    queue: int = 1024  # images that wait or are computed
    explanations: int = 16  # heat maps and changes of the model that wait or are computed
    batch: int = 32  # images the tower takes at once
    gather_seconds: float = 0.005  # how long the first image of a batch waits for company
    receive_seconds: float = 30.0  # for a request to arrive
    answer_seconds: float = 60.0  # for an answer to be computed
    classes: int = 1000
    visits: int = 8  # requests' further class names that stay prepared, for the next request with the same
    name_length: int = 100
    samples: int = 8  # prompts of a class to explain


class Refused(Exception):  # noqa: N818 - it names an outcome, not a fault of the server
    """A request that is answered with a reason instead of a result."""

    def __init__(self, status: int, reason: str, *, retry_after: int | None = None) -> None:
        super().__init__(status, reason)  # all it takes, so that it can travel between processes
        self.status, self.reason, self.retry_after = status, reason, retry_after
        self.headers = {"Retry-After": str(retry_after)} if retry_after else {}

    def __str__(self) -> str:
        return self.reason


def too_large(limits: Limits) -> Refused:
    return Refused(413, f"the image is larger than {limits.image_bytes / MIB:g} MiB")


def too_many_images(limits: Limits) -> Refused:
    return Refused(413, f"more than {limits.images} images in one request: send several requests")


@asynccontextmanager
async def in_time(seconds: float) -> AsyncIterator[None]:
    """A block that ends after so many seconds with a 503."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Refused(503, f"no answer within {seconds:g} s: try again", retry_after=5) from None
