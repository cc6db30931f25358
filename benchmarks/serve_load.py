"""Send many requests at once, good and hostile mixed, to a server and table what came of them.

    pbprompt serve model/ --port 8000 &
    python benchmarks/serve_load.py http://127.0.0.1:8000 --requests 200

Exit code 1 if a good request was not answered, a bad one not refused with a 4xx and a reason, or the server
is not well afterwards. A 429, or a 503 of a server that has no time, is tried again after the time it names,
as clients should.
"""

import argparse
import base64
import http.client
import io
import json
import os
import random
import struct
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from PIL import Image
from rich.console import Console
from rich.table import Table

PATIENCE = 120.0  # seconds for an answer
BOUNDARY = "----mixed-requests"
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@dataclass(frozen=True)
class Case:
    """One kind of request to POST /predict and what should come of it."""

    name: str
    good: bool
    body: bytes | Callable[[], Iterator[bytes]]
    headers: dict[str, str] = field(default_factory=lambda: FORM)
    images: int = 1


@dataclass(frozen=True)
class Answer:
    """What came back: status 0 where nothing did."""

    status: int
    reason: str
    seconds: float
    tries: int
    right: bool


def photo(kind: str, mode: str = "RGB", size: tuple[int, int] = (320, 240), **options: object) -> bytes:
    """A picture of coloured noise, encoded."""
    small = Image.frombytes("RGB", (16, 12), random.Random(0).randbytes(16 * 12 * 3))
    buffer = io.BytesIO()
    small.resize(size, Image.Resampling.BICUBIC).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def form(*files: bytes, name: str = "photo.jpg", fields: dict[str, str] | None = None) -> bytes:
    """Multipart form data."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n'
        "Content-Type: image/jpeg\r\n\r\n".encode()
        + file
        + b"\r\n"
        for file in files
    ]
    parts += [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in (fields or {}).items()
    ]
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def png_bomb(width: int, height: int, *, whole: bool) -> bytes:
    """A PNG of a few kilobytes that says (and, if whole, holds) a great many white pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = b"\0" + b"\xff" * ((width + 7) // 8)
    pixels = b"".join(packer.compress(row) for _ in range(height if whole else 1)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def many_scans(count: int, side: int = 640) -> bytes:
    """A progressive JPEG whose last scan comes again and again, at some ten bytes each."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]


def in_chunks(body: bytes, size: int = 1 << 16) -> Callable[[], Iterator[bytes]]:
    """A body without a declared length."""
    return lambda: (body[at : at + size] for at in range(0, len(body), size))


def as_json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def cases() -> list[Case]:
    """Every kind of request, good ones first."""
    jpeg, png, webp, gif = photo("JPEG"), photo("PNG"), photo("WEBP"), photo("GIF", "P")
    turned = Image.Exif()
    turned[0x0112] = 6
    text = base64.b64encode(jpeg).decode()
    huge = jpeg + bytes(12 << 20)
    good = [
        Case("JPEG", True, form(jpeg)),
        Case("PNG", True, form(png)),
        Case("WebP", True, form(webp)),
        Case("GIF", True, form(gif)),
        Case("four images", True, form(jpeg, png, webp, gif), images=4),
        Case("turned by EXIF", True, form(photo("JPEG", exif=turned))),
        Case("CMYK JPEG", True, form(photo("JPEG", "CMYK"))),
        Case("12 megapixels", True, form(photo("JPEG", size=(4000, 3000)))),
        Case("name ../../etc/passwd", True, form(jpeg, name="../../etc/passwd")),
        Case("name <script>", True, form(jpeg, name="<script>alert(1)</script>")),
        Case("without a length", True, in_chunks(form(jpeg))),
        Case("base64", True, as_json(images=[text]), JSON),
        Case("base64, data URL", True, as_json(images=["data:image/jpeg;base64," + text]), JSON),
        Case("base64, surrogate name", True, as_json(images=[{"name": "\ud800", "data": text}]), JSON),
    ]
    bad = [
        Case("PNG bomb, 144 MP", False, form(png_bomb(12_000, 12_000, whole=True))),
        Case("PNG header, 10⁹ pixels", False, form(png_bomb(40_000, 40_000, whole=False))),
        Case("GIF header, 4·10⁹ pixels", False, form(b"GIF89a\xff\xff\xff\xff" + gif[10:])),
        Case("1 × 20,000 pixels", False, form(photo("PNG", size=(1, 20_000)))),
        Case("JPEG of 40,000 scans", False, form(many_scans(40_000))),
        Case("truncated JPEG", False, form(jpeg[: len(jpeg) // 2])),
        Case("truncated PNG", False, form(png[: len(png) // 2])),
        Case("text", False, form(b"I am no image. " * 100)),
        Case("SVG", False, form(b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>')),
        Case("PostScript", False, form(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")),
        Case("TIFF", False, form(photo("TIFF"))),
        Case("random bytes", False, form(random.Random(1).randbytes(5000))),
        Case("empty file", False, form(b"")),
        Case("empty body", False, b""),
        Case("no image", False, form(fields={"top_k": "3"})),
        Case("good and bad together", False, form(jpeg, b"no image")),
        Case("12 MiB", False, form(huge)),
        Case("12 MiB without a length", False, in_chunks(form(huge))),
        Case("40 images", False, form(*[jpeg] * 40)),
        Case("body cut off", False, form(jpeg)[:-200]),
        Case("no boundary", False, form(jpeg), {"Content-Type": "multipart/form-data"}),
        Case("no content type", False, form(jpeg), {}),
        Case("long field", False, form(jpeg, fields={"top_k": "1" * 10_000})),
        Case("top_k = -1", False, form(jpeg, fields={"top_k": "-1"})),
        Case("huge header", False, form(jpeg), {**FORM, "X-Long": "x" * 200_000}),
        Case("wrong base64", False, as_json(images=["@@@" + text]), JSON),
        Case("no JSON", False, b"{images:", JSON),
        Case("deep JSON", False, b'{"images":' + b"[" * 200_000, JSON),
        Case("8 MiB of empty lists", False, b'{"images":[' + b"[]," * ((8 << 20) // 3) + b"[]]}", JSON),
        Case("JSON of wrong types", False, as_json(images=[{"data": 7}, None]), JSON),
    ]
    return good + bad


def send(url: str, case: Case, key: str = "", tries: int = 20, address: str = "") -> Answer:
    """One request, tried again for as long as the server says it is busy; from an address of this machine."""
    parts = urlsplit(url)
    assert parts.hostname, f"{url}: give something like http://127.0.0.1:8000"
    started = time.perf_counter()
    status, body, used = 0, b"", 0
    while used < tries:
        used += 1
        source = (address, 0) if address else None
        connection = http.client.HTTPConnection(parts.hostname, parts.port, PATIENCE, source_address=source)
        content = case.body if isinstance(case.body, bytes) else case.body()  # an iterator goes in chunks
        try:
            connection.request("POST", "/predict", content, case.headers | {"X-API-Key": key})
            response = connection.getresponse()
            status, body, wait = response.status, response.read(), response.headers.get("Retry-After")
        except (OSError, http.client.HTTPException) as error:
            status, body, wait = 0, repr(error).encode(), None
        finally:
            connection.close()
        if status not in (429, 503) or not wait:
            break
        time.sleep(float(wait or 1))
    return _judged(case, status, body, time.perf_counter() - started, used)


def _judged(case: Case, status: int, body: bytes, seconds: float, tries: int) -> Answer:
    """Whether an answer is the one the case calls for."""
    try:
        said = json.loads(body)
    except ValueError:
        said = {}
    if case.good:
        right = status == 200 and len(said.get("predictions", ())) == case.images
        return Answer(status, said.get("error", ""), seconds, tries, right)
    reason = said.get("error", "") if said else body.decode("utf-8", "replace")
    right = 400 <= status < 500 and bool(said.get("error"))
    return Answer(status, reason, seconds, tries, right)


def send_all(url: str, count: int, seed: int = 0, key: str = "") -> list[tuple[Case, Answer]]:
    """`count` requests at the same moment, half of them good, every kind as often as another of its half."""
    known = cases()
    halves = [[case for case in known if case.good is good] for good in (True, False)]
    chosen = [halves[n % 2][n // 2 % len(halves[n % 2])] for n in range(count)]
    random.Random(seed).shuffle(chosen)
    answers: list[Answer | None] = [None] * count
    together = threading.Barrier(count)

    def one(number: int) -> None:
        together.wait()
        answers[number] = send(url, chosen[number], key)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [(case, answer) for case, answer in zip(chosen, answers, strict=True) if answer is not None]


def healthy(url: str) -> bool:
    """Whether the server still answers."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def table(outcomes: list[tuple[Case, Answer]]) -> Table:
    """A row a kind of request."""
    shown = Table("request", "sent", "as it should", "status", "slowest, s", "reason", box=None)
    kinds: dict[str, list[Answer]] = defaultdict(list)
    for case, answer in outcomes:
        kinds[case.name].append(answer)
    for name in (case.name for case in cases()):
        if answers := kinds[name]:
            statuses = ", ".join(f"{status}" for status in sorted({answer.status for answer in answers}))
            right = sum(answer.right for answer in answers)
            slowest = max(answer.seconds for answer in answers)
            shown.add_row(
                name, str(len(answers)), str(right), statuses, f"{slowest:.2f}", answers[0].reason[:70]
            )
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url", help="where the server listens, such as http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.perf_counter()
    key = os.environ.get("PBPROMPT_API_KEY", "")
    outcomes = send_all(options.url, options.requests, options.seed, key)
    seconds = time.perf_counter() - started
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(table(outcomes))
    good = [answer for case, answer in outcomes if case.good]
    bad = [answer for case, answer in outcomes if not case.good]
    again = sum(answer.tries > 1 for _, answer in outcomes)
    statuses = Counter(answer.status for _, answer in outcomes)
    console.print(f"\ngood: {sum(a.right for a in good)} of {len(good)} answered")
    console.print(f"bad: {sum(a.right for a in bad)} of {len(bad)} refused with a 4xx and a reason")
    console.print(f"tried again when it was busy: {again}; statuses: {dict(sorted(statuses.items()))}")
    well = healthy(options.url)
    console.print(f"{len(outcomes)} requests in {seconds:.1f} s; server well afterwards: {well}")
    return 0 if well and all(answer.right for _, answer in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
