"""How soon a server answers, and how many images a second it answers on, beside the tower's own rate.

    python -m benchmarks.serve_rate model/

Every row but the tower's is a server of its own: from its start to its first answer to `/predict`, and then
so many clients that send one image after another, from this machine, whose processors they share. Rates and
milliseconds to an answer are by the clock. Processor time is of all the server's processes, to its end; an
image's is what is left of that after a server that answered once.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.serve_load import Case, form, healthy, photo, send
from pbprompt.model.tuned import TunedModel

CLIENTS = (1, 8, 64)
BATCH = 4  # images that a server computes at once on a CPU


class Served(NamedTuple):
    """One server: seconds to its first answer, then of each and of all, and all its processor time."""

    first: float
    answers: list[float]
    seconds: float
    processor: float


def serve(model: Path, clients: int, images: int) -> Served:
    """Start a server, wait for its first answer, let clients ask, and stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, case = f"http://127.0.0.1:{port}", Case("JPEG", True, form(photo("JPEG")))
    before, started = _processor(), time.perf_counter()
    command = [sys.executable, "-m", "pbprompt", "serve", str(model), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not healthy(url):
            if server.poll() is not None:
                raise SystemExit(f"the server ended: try `pbprompt serve {model}`")
            time.sleep(0.02)
        assert send(url, case).right
        first = time.perf_counter() - started
        left, answers = threading.Semaphore(images), list[float]()

        def client() -> None:
            while left.acquire(blocking=False):
                answer = send(url, case)
                assert answer.right
                answers.append(answer.seconds)

        threads = [threading.Thread(target=client) for _ in range(clients)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    return Served(first, answers, seconds, _processor() - before)


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _processor() -> float:
    """Of processes that were started here and have ended."""
    return sum(os.times()[2:4])


def tower(model: Path, images: int) -> tuple[float, float]:
    """Seconds and processor time an image, in batches of ready pixels."""
    loaded = TunedModel.load(model)
    size = loaded.backbone.preprocess.size
    pixels = list(torch.zeros(BATCH, 3, size, size))
    loaded.encode(pixels)
    began, before = time.perf_counter(), time.process_time()
    for _ in range(max(1, images // BATCH)):
        loaded.encode(pixels)
    done = max(1, images // BATCH) * BATCH
    return (time.perf_counter() - began) / done, (time.process_time() - before) / done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder that `pbprompt fit` wrote")
    parser.add_argument("--images", type=int, default=256, help="that each row is measured by")
    options = parser.parse_args()
    seconds, processor = tower(options.model, options.images)
    cold = min((serve(options.model, 0, 0) for _ in range(3)), key=lambda one: one.processor)
    print(f"first answer after {cold.first:.2f} s; {cold.processor:.2f} s of a processor from start to end")
    heads = (
        "images/s",
        "beside the tower",
        "p50, ms",
        "p99, ms",
        "ms of a processor an image",
        "beside the tower",
    )
    shown = Table("", *heads, box=None)
    shown.add_row("tower", f"{1 / seconds:.1f}", "1.00", "", "", f"{1000 * processor:.1f}", "1.00")
    for clients in CLIENTS:
        one = serve(options.model, clients, options.images)
        rate, each = options.images / one.seconds, (one.processor - cold.processor) / options.images
        middle, slow = (1000 * quantile(one.answers, share) for share in (0.5, 0.99))
        cells = f"{rate:.1f}", f"{rate * seconds:.2f}", f"{middle:.0f}", f"{slow:.0f}"
        name = f"{clients} client{'s' if clients > 1 else ''}"
        shown.add_row(name, *cells, f"{1000 * each:.1f}", f"{processor / each:.2f}")
    Console(width=120).print(shown)


if __name__ == "__main__":
    main()
