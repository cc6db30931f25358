"""A real server under good, hostile, slow, broken and greedy clients at once, and requests made of its
schema; and one whose labels are kept, however it ends."""

import csv
import http.client
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import serve_load
from benchmarks.chaos.kills import draw_photos
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.towers.loading.load import load_backbone

PATIENCE = 180.0  # seconds for a slow or broken client to be cut off or answered
STARVED = 16  # huge images that a small one may wait for, of a greedy client's 64
SMALL = 8  # small ones that are sent meanwhile
STOPS = 60.0  # seconds from SIGTERM to the end; the grace is 30
# What JSON schema cannot say (that a text is an image's base64) is no fault of a request that breaks it.
NOT_CHECKED = "positive_data_acceptance,negative_data_rejection"
POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
FORM = b"Content-Type: multipart/form-data; boundary=b\r\n"
JSON = b"Content-Type: application/json\r\n"
ROUGH: dict[str, list[bytes]] = {  # what is sent a piece at a time, before the client falls silent
    "nothing": [],
    "half a header": [POST[:20]],
    "header, no body": [POST + JSON + b"Content-Length: 1000\r\n\r\n"],
    "half a body": [POST + JSON + b"Content-Length: 1000\r\n\r\n", b'{"images": ['],
    "half a form": [
        POST + FORM + b"Content-Length: 9000\r\n\r\n",
        b'--b\r\nContent-Disposition: form-data; name="f',
    ],
    "a byte at a time": [bytes([byte]) for byte in POST],
    "noise": [bytes(range(256)) * 8],
    "TLS": [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)],
    "two lengths": [POST + JSON + b"Content-Length: 2\r\nContent-Length: 9\r\n\r\n{}"],
    "negative length": [POST + JSON + b"Content-Length: -1\r\n\r\n{}"],
    "length and chunks": [
        POST + JSON + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    ],
    "broken chunk": [POST + JSON + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n"],
    "a thousand headers": [POST + b"".join(b"X-%d: y\r\n" % n for n in range(1000)) + b"\r\n"],
    "null in the path": [b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    "HTTP/9": [b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n"],
    "websocket": [b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"],
}


CRUMBS = {  # what is sent first, and then again and again, over so many connections
    "chunks of a byte": [POST + JSON + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 5000],
    "requests in a row": [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500],
    "headers of nothing": [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 50_000 + b"\r\n",
    ],
    "as many headers as it takes": [
        b"",
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 99 + b"\r\n") * 300,
    ],
    "trailers of nothing": [
        b"",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + b"a:\r\n" * 50_000 + b"\r\n",
    ],
    "headers that do not end": [b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"X: y\r\n" * 2000],
    "trailers that do not end": [
        POST + JSON + b"Transfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X: y\r\n" * 2000,
    ],
    "forms of half boundaries": [
        POST + FORM + b"Content-Length: 60000000\r\n\r\n",
        b'--b\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n' + b"\r\n--" * 9000,
    ],
}
LINES = 32


Found = tuple[str, Counter[str], list[float]]  # with the seconds that good requests took


def attack(url: str, requests: int, examples: int, seed: int = 0) -> Iterator[Found]:
    """Requests of `serve_load` beside clients of `ROUGH`, a greedy one beside a modest one, then requests
    made of the schema."""
    rough: Counter[str] = Counter()
    clients = [
        threading.Thread(target=lambda pieces=pieces: rough.update([_rough(url, pieces)]))
        for pieces in ROUGH.values()
    ]
    for client in clients:
        client.start()
    sent = serve_load.send_all(url, requests, seed)
    good = [answer.seconds for case, answer in sent if case.good]
    yield "server, mixed load", Counter(_outcome(case, answer) for case, answer in sent), good
    yield from _unfair(url)
    for kind, pieces in CRUMBS.items():
        yield _beside(url, kind, pieces)
    if importlib.util.find_spec("schemathesis") is None:
        print("chaos: schemathesis is not installed: no requests are made of the schema", file=sys.stderr)
    else:
        yield "server, its schema", _schema(url, examples, seed), []
    for client in clients:
        client.join()
    yield "server, rough clients", rough, []


def end(process: "subprocess.Popen[str]") -> Found:
    """SIGTERM, and whether the server follows it."""
    process.terminate()
    try:
        outcome = "survived" if process.wait(STOPS) in (0, -15) else "lost"
    except subprocess.TimeoutExpired:
        outcome = "hung"
    return "server, SIGTERM", Counter([outcome]), []


def memory(process: "subprocess.Popen[str]") -> float:
    """Megabytes that the server has in memory, its decoders apart."""
    status = Path(f"/proc/{process.pid}/status")
    found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) / 1000 if found else float("nan")


def killed_decoders(process: "subprocess.Popen[str]", url: str) -> Found:
    """The processes that decode are killed or stopped while images come: each is answered, or told to come
    again."""
    small = serve_load.Case("small", True, serve_load.form(serve_load.photo("JPEG")))
    outcomes = Counter[str]()
    for how in (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP):
        for child in Path(f"/proc/{process.pid}/task").glob("*/children"):
            for decoder in map(int, child.read_text().split()):
                with suppress(ProcessLookupError):
                    os.kill(decoder, how)
        answer = serve_load.send(url, small)
        outcomes["survived" if answer.right else "refused" if answer.status == 503 else "lost"] += 1
    return "server, its decoders killed or stopped", outcomes, []


def _unfair(url: str) -> Iterator[Found]:
    """One client sends two requests of 32 images that take long, another small ones meanwhile."""
    greedy: Counter[str] = Counter()
    huge = serve_load.Case("huge", True, serve_load.form(*[serve_load.many_scans(100, 2000)] * 32), images=32)
    small = serve_load.Case("small", True, serve_load.form(serve_load.photo("JPEG")))

    def ask_much() -> None:
        answer = serve_load.send(url, huge, address="127.0.0.2")
        greedy["survived" if answer.right else "refused" if answer.status in (429, 503) else "lost"] += 1

    one = serve_load.Case("one", True, serve_load.form(serve_load.many_scans(100, 2000)))
    patience = STARVED * serve_load.send(url, one, address="127.0.0.1").seconds
    threads = [threading.Thread(target=ask_much) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)  # they are in line
    modest, seconds = Counter[str](), list[float]()
    while any(thread.is_alive() for thread in threads) and len(seconds) < SMALL:
        answer = serve_load.send(url, small, address="127.0.0.1")
        seconds.append(answer.seconds)
        modest["lost" if not answer.right else "starved" if answer.seconds > patience else "survived"] += 1
    for thread in threads:
        thread.join()
    yield "server, greedy client", greedy, []
    yield "server, beside a greedy client", modest, seconds


def _beside(url: str, kind: str, pieces: list[bytes]) -> Found:
    """One client's connections send crumbs without end; another's small requests are answered meanwhile."""
    stop, parts = threading.Event(), urlsplit(url)

    def send_crumbs() -> None:
        while not stop.is_set():
            with (
                suppress(OSError),
                socket.create_connection(
                    (parts.hostname, parts.port), PATIENCE, source_address=("127.0.0.2", 0)
                ) as line,
            ):
                line.settimeout(1.0)
                line.sendall(pieces[0])
                while not stop.is_set():
                    line.sendall(pieces[1])
                    line.setblocking(False)
                    with suppress(BlockingIOError):
                        while line.recv(1 << 20):
                            pass
                    line.settimeout(1.0)

    small = serve_load.Case("small", True, serve_load.form(serve_load.photo("JPEG")))
    one = serve_load.Case("one", True, serve_load.form(serve_load.many_scans(100, 2000)))
    # as if each of the lines had sent a huge image
    patience = LINES * serve_load.send(url, one, address="127.0.0.1").seconds
    threads = [threading.Thread(target=send_crumbs, daemon=True) for _ in range(LINES)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    answers = [serve_load.send(url, small, address="127.0.0.1") for _ in range(SMALL // 2)]
    stop.set()
    for thread in threads:
        thread.join()
    seconds = [answer.seconds for answer in answers]
    late = ("starved" if took > patience else "survived" for took in seconds)
    outcomes = (how if answer.right else "lost" for how, answer in zip(late, answers, strict=True))
    return f"server, beside {kind}", Counter(outcomes), seconds


def labelled(times: int, seed: int = 0) -> Iterator[Found]:
    """`serve --label`, killed while labels come: what was answered is in the table, and it goes on there."""
    source, counts = random.Random(f"{seed}/labels"), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        photos, model, table = Path(folder) / "photos", Path(folder) / "model", Path(folder) / "labels.csv"
        draw_photos(photos)
        command = [sys.executable, "-m", "pbprompt", "fit", str(photos), "--out", str(model)]
        subprocess.run([*command, "--shots", "2"], check=True, capture_output=True)
        known: dict[str, str] = {}
        for _ in range(times):
            with _served(Path(folder), model, "--label", str(photos), "--label-out", str(table)) as (
                process,
                url,
            ):
                killer = threading.Timer(source.random() * 0.5, process.kill)
                killer.start()
                with suppress(OSError, http.client.HTTPException, KeyError):
                    for _ in range(3):
                        name = _labelling(url)["image"]
                        label = source.choice(("cat", "dog"))
                        _labelling(url, {"image": name, "label": label})
                        known[name] = label
                killer.join()
            rows = list(csv.DictReader(table.open())) if table.exists() else []
            kept = {row["image"]: row["label"] for row in rows if row["label"]}
            counts["survived" if kept.items() >= known.items() else "lost"] += 1
    yield "server, killed while labelling", counts, []


def _labelling(url: str, said: dict[str, str] | None = None) -> dict[str, Any]:
    parts = urlsplit(url)
    line = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    if said is None:
        line.request("GET", "/labelling")
    else:
        line.request("POST", "/labelling", json.dumps(said), {"Content-Type": "application/json"})
    answer = line.getresponse()
    found: dict[str, Any] = json.loads(answer.read())
    if answer.status != 200:
        raise KeyError(found)
    return found


def _outcome(case: serve_load.Case, answer: serve_load.Answer) -> str:
    if answer.right:
        return "survived" if case.good else "refused"
    print(
        f"chaos: {case.name}: {answer.status} after {answer.seconds:.1f} s: {answer.reason}", file=sys.stderr
    )
    return "hung" if answer.status == 0 and "timed out" in answer.reason else "lost"


@contextmanager
def started() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`pbprompt serve` with a model of the embedded backbone."""
    with tempfile.TemporaryDirectory() as folder:
        kind = find_method("pbprompt")
        method = build_method(kind, make_config(kind), load_backbone("lite"), seed=1)
        method.prepare(("cat", "dog", "car"), "a photo of a {}.")
        TunedModel(method, describe_model(method)).save(Path(folder) / "model")
        with _served(Path(folder), Path(folder) / "model") as served:
            yield served


@contextmanager
def _served(folder: Path, model: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    log = folder / "log"
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "pbprompt", "serve", str(model), "--port", "0", *options],
            stderr=written, stdout=written, text=True,
        )  # fmt: skip
    try:
        while not (found := re.search(r"running on (http://\S+)", log.read_text())):
            if process.poll() is not None:
                raise RuntimeError(f"the server did not start: {log.read_text()[-500:]}")
            time.sleep(0.05)
        yield process, found[1]
    finally:
        process.kill()
        process.wait()


def _rough(url: str, pieces: list[bytes]) -> str:
    """Refused where the server answers or hangs up, hung where it keeps the line open."""
    parts = urlsplit(url)
    ends = time.monotonic() + PATIENCE
    with suppress(ConnectionError), socket.create_connection((parts.hostname, parts.port), PATIENCE) as line:
        for piece in pieces:
            line.sendall(piece)
            time.sleep(0.05)
        while time.monotonic() < ends:
            try:
                said = line.recv(1 << 16)
            except TimeoutError:
                return "hung"
            if re.match(rb"HTTP/1.1 5(?!03)", said):
                return "lost"
            if not said:
                return "refused"
        return "hung"
    return "refused"


def _schema(url: str, examples: int, seed: int) -> Counter[str]:
    """schemathesis on /openapi.json: every answer is one that the schema has, and none is a failure."""
    command = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or "schemathesis"
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [command, "run", f"{url}/openapi.json", "--max-examples", str(examples), "--seed", str(seed),
             "--exclude-checks", NOT_CHECKED, "--request-timeout", "120", "--no-color"],
            capture_output=True, text=True, cwd=folder,
        )  # fmt: skip
    made = re.search(r"([\d,]+) generated(?:, ([\d,]+) found)?", run.stdout)
    if made is None:
        print(f"chaos: schemathesis said: {' '.join(run.stdout.split())[-300:]}", file=sys.stderr)
        return Counter(lost=1)
    count, bad = (int((made[n] or "0").replace(",", "")) for n in (1, 2))
    if bad:
        print(run.stdout[-6000:], file=sys.stderr)
    return Counter(survived=count - bad, lost=bad)
