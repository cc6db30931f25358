"""A real server under good, hostile, slow and broken clients at once, and requests made of its schema."""

import importlib.util
import re
import shutil
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
from urllib.parse import urlsplit

from benchmarks import serve_load
from pbprompt.clip.loading.load import load_backbone
from pbprompt.methods.base import build_method, make_config
from pbprompt.model.folder import describe_model, save_model
from pbprompt.registry import find_method

PATIENCE = 180.0  # seconds for a slow or broken client to be cut off or answered
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


def attack(requests: int, examples: int, seed: int = 0) -> Iterator[tuple[str, Counter[str]]]:
    """Requests of `serve_load` beside clients of `ROUGH`, then those made of the schema; then the end."""
    with _server() as (process, url):
        rough: Counter[str] = Counter()
        clients = [
            threading.Thread(target=lambda pieces=pieces: rough.update([_rough(url, pieces)]))
            for pieces in ROUGH.values()
        ]
        for client in clients:
            client.start()
        sent = serve_load.send_all(url, requests, seed)
        yield "server, mixed load", Counter(_outcome(case, answer) for case, answer in sent)
        if importlib.util.find_spec("schemathesis") is None:
            print("chaos: schemathesis is not installed: no requests are made of the schema", file=sys.stderr)
        else:
            yield "server, its schema", _schema(url, examples, seed)
        for client in clients:
            client.join()
        yield "server, rough clients", rough
        process.terminate()
        ended: Counter[str] = Counter()
        try:
            ended["survived" if process.wait(STOPS) in (0, -15) else "lost"] += 1
        except subprocess.TimeoutExpired:
            ended["hung"] += 1
        yield "server, SIGTERM", ended


def _outcome(case: serve_load.Case, answer: serve_load.Answer) -> str:
    if answer.right:
        return "survived" if case.good else "refused"
    return "hung" if answer.status == 0 and "timed out" in answer.reason else "lost"


@contextmanager
def _server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`pbprompt serve` with a model of the embedded backbone."""
    with tempfile.TemporaryDirectory() as folder:
        kind = find_method("pbprompt")
        method = build_method(kind, make_config(kind), load_backbone("lite"), seed=1)
        method.prepare(("cat", "dog", "car"), "a photo of a {}.")
        save_model(Path(folder) / "model", method, describe_model(method))
        log = Path(folder) / "log"
        with log.open("w") as written:
            process = subprocess.Popen(
                [sys.executable, "-m", "pbprompt", "serve", f"{folder}/model", "--port", "0"],
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
