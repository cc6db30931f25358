"""The attack can find what it looks for, and finds nothing here in a few points."""

import os
import random
import signal
import sys
import threading
import time

import pytest

from benchmarks import serve_load
from benchmarks.chaos import commands, disk, inputs, kills, server
from pbprompt.errors import InputError
from pbprompt.vision.images.workers import Workers

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def test_every_fault_of_a_careless_writer_is_found(tmp_path):
    """It writes in place: after a fault there is neither the old nor the new."""
    path = tmp_path / "value"

    def careless(text: bytes) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(handle, text)
        os.close(handle)

    def look() -> bool:
        assert path.read_bytes() in (b"old one", b"new one")
        return path.read_bytes() == b"new one"

    def outcome(fault: str, at: int) -> str:
        careless(b"old one")
        code = disk._child(lambda: careless(b"new one"), fault, at)
        assert code is not None
        return disk._judged(code, lambda: careless(b"new one"), look)

    assert outcome("killed before", 0) == "survived"
    assert outcome("killed before", 1) == outcome("ENOSPC", 1) == outcome("short", 1) == "lost"
    assert disk._child(lambda: careless(b"new one"), "EIO", 2) == 5, "there is no third call"


def test_a_job_that_a_kill_spoils_is_found(tmp_path):
    """Whatever the moment: here it is at once."""
    assert kills._run(lambda: time.sleep(600), 0.0) == -signal.SIGKILL
    assert kills._run(lambda: None, None) == 0
    assert kills._run(lambda: 1 / 0, None) == 1

    def outcome(look, result):
        made = kills.Killed(lambda: None, look, result)
        return kills._point(lambda *_: made, tmp_path, None, "whole", 0.0)

    assert outcome(lambda: None, lambda: "whole") == "survived"
    assert outcome(lambda: None, lambda: "another") == "lost"
    assert outcome(lambda: 1 / 0, lambda: "whole") == "lost"


def test_what_a_server_does_is_judged():
    good, bad = serve_load.Case("a", True, b""), serve_load.Case("b", False, b"")
    right, wrong = (serve_load.Answer(200, "", 1.0, 1, is_right) for is_right in (True, False))
    silent = serve_load.Answer(0, "TimeoutError('timed out')", 120.0, 1, False)
    judged = [server._outcome(*pair) for pair in ((good, right), (bad, right), (bad, wrong), (good, silent))]
    assert judged == ["survived", "refused", "lost", "hung"]


def test_good_inputs_are_read_and_tracebacks_are_found(tmp_path, monkeypatch):
    from PIL import Image

    workers = Workers(1, seconds=600, prepare="benchmarks.chaos.inputs")
    monkeypatch.setattr(sys, "path", [*sys.path, os.getcwd()])  # noqa: PTH109
    for place in ("a/1.png", "b/2.png"):
        (tmp_path / place).parent.mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / place)
    try:
        for kind, name, content in inputs.seeds():
            (tmp_path / name).write_bytes(content)
            assert inputs._outcome(workers, kind, str(tmp_path / name)) == "survived", name
            (tmp_path / name).write_bytes(b"")
            assert inputs._outcome(workers, kind, str(tmp_path / name)) == "refused", name
        assert inputs._outcome(workers, "no such kind", "x") == "lost"
    finally:
        workers.close()
    with pytest.raises(InputError):
        inputs.read("image", str(tmp_path / "x.png"))


def test_how_a_command_ended_is_judged():
    ends = [
        (0, ""),
        (1, "one image cannot be read"),
        (2, "pbprompt: no"),
        (2, ""),
        (1, "Traceback"),
        (-9, ""),
        (None, ""),
    ]
    assert [commands.Ended(*end).outcome for end in ends] == [
        "survived", "survived", "refused", "lost", "lost", "lost", "hung",
    ]  # fmt: skip


@pytest.mark.parametrize("case", [commands._changed_inputs, commands._damage_after_write])
def test_answers_of_before_are_found(case, tmp_path, monkeypatch):
    """A job that looks at nothing when it is begun again."""
    (tmp_path / "home").mkdir()
    kills.draw_photos(tmp_path / "photos")

    begun = []

    def careless(folder, shared, images, out):
        file = folder / out / "part-0.csv" if out.endswith("/") else folder / out
        if not begun:
            file.parent.mkdir(exist_ok=True)
            file.write_text("image\n" + "".join(f"{path}\n" for path in sorted(images.rglob("*.png"))))
        begun.append(out)
        return commands.Ended(0, "complete already")

    monkeypatch.setattr(commands, "_predict", careless)
    outcome, _ = case(tmp_path / "home", tmp_path, random.Random(1))
    assert outcome == "stale"


def test_a_client_that_waits_for_another_is_found(monkeypatch):
    over, small = threading.Event(), []

    def slow(url, case, address):
        if case.name == "one":
            return serve_load.Answer(200, "", 1.0, 1, True)
        if case.name == "huge":
            over.wait()
        else:
            small.append(address)
            if len(small) == server.SMALL:
                over.set()
        return serve_load.Answer(200, "", 60.0, 1, True)

    monkeypatch.setattr(serve_load, "send", slow)
    (_, greedy, _), (_, modest, seconds) = server._unfair("http://x")
    assert greedy == {"survived": 2} and modest == {"starved": server.SMALL} and len(seconds) == server.SMALL
