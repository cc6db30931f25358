"""Squares in order and in bounded memory, the same from threads and processes, whatever goes wrong beside."""

import contextlib
import io
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images import decoding
from pbprompt.vision.images.crops import Crop, TrainingView
from pbprompt.vision.images.decoding import QUESTION, Decoder, squares_of, worthwhile_processes
from pbprompt.vision.images.records import Record

SMALL, LARGE = Crop(8), Crop(24, "squash", "bilinear")


@pytest.fixture(scope="module")
def one():
    with contextlib.closing(Decoder(1, processes=True)) as processes:
        yield processes


@pytest.fixture
def files(tmp_path):
    random = np.random.default_rng(0)
    paths = [tmp_path / f"{place:02d}.jpg" for place in range(2 * QUESTION + 5)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    return paths


def photograph(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8))


def record(seed: int) -> Record:
    stream = io.BytesIO()
    photograph(seed).save(stream, "PNG")
    return Record(f"{seed}.png", stream.getvalue())


def all_of(decoder: Decoder, files, look) -> list:
    """The squares of records named by their files' names, three at a time."""
    records = [Record(path.name, path) for path in files]
    batches = [(at, records[at : at + 3]) for at in range(0, len(records), 3)]
    found = list(decoder.decoded(batches, look))
    assert [(mark, some) for mark, some, _ in found] == batches
    return [square for _, _, squares in found for square in squares]


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for first, second in zip(found, wanted, strict=True):
        if isinstance(second, InputError):
            assert isinstance(first, InputError) and str(first) == str(second)
        else:
            assert first.dtype == np.uint8 and np.array_equal(first, second)


class Level:
    """One pixel of each image, whose red is its number; notes how many were begun."""

    size, draft = 1, None

    def __init__(self) -> None:
        self.begun, self.lock = 0, threading.Lock()

    def __call__(self, image, key):
        with self.lock:
            self.begun += 1
        return image.resize((1, 1))


@pytest.fixture
def numbered(tmp_path):
    paths = []
    for place in range(40):
        paths.append(tmp_path / f"{place:02d}.png")
        Image.new("RGB", (4, 4), (place, 0, 0)).save(paths[-1])
    return paths


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_in_order_and_bad_ones_in_their_place(numbered, threads):
    numbered[7].write_bytes(b"")
    numbered[39].unlink()
    for index, value in enumerate(squares_of(numbered, Level(), threads=threads)):
        if index in (7, 39):
            assert isinstance(value, InputError) and numbered[index].name in str(value)
        else:
            assert value.tolist() == [[[index, 0, 0]]]
    assert index == 39


def test_only_a_few_are_decoded_ahead(numbered):
    look = Level()
    stream = squares_of(numbered, look, threads=2)
    next(stream)
    while look.begun < 8:  # all that the threads were given
        time.sleep(0.01)
    assert look.begun <= 9
    next(stream)
    stream.close()
    assert look.begun <= 10


def test_other_errors_are_not_swallowed(files):
    class Broken(Level):
        def __call__(self, image, key):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(squares_of(files, Broken()))


def test_what_a_source_raises_arrives(one):
    def source():
        yield 0, [record(1)]
        raise InputError("the source ends here")

    with pytest.raises(InputError, match="ends here"):
        list(one.decoded(source(), SMALL))


def test_draft_reaches_the_decoder(tmp_path, one):
    path = tmp_path / "big.jpg"
    Image.radial_gradient("L").resize((1024, 1024)).rotate(30).convert("RGB").save(path)
    for decoder in (Decoder(1), one):
        exact, rough = (all_of(decoder, [path], Crop(32, draft=draft))[0].astype(int) for draft in (None, 64))
        assert 0 < abs(exact - rough).max() < 13


def test_nothing_to_decode():
    assert list(squares_of([], SMALL)) == []


def test_an_open_image_needs_no_file(one):
    (found,) = Decoder(1).decode([Record("a", photograph(1))], SMALL)
    assert np.array_equal(found, SMALL(photograph(1)))


@pytest.mark.parametrize("look", [SMALL, TrainingView(16, seed=3, epoch=2)])
def test_processes_give_what_threads_give(one, files, look):
    files[QUESTION].write_bytes(b"")
    files[-1].unlink()
    wanted = all_of(Decoder(2), files, look)
    assert sum(isinstance(result, InputError) for result in wanted) == 2
    assert_same(all_of(one, files, look), wanted)


def test_a_view_is_that_of_the_records_name(one, files):
    look, image = TrainingView(16, seed=3, epoch=2), Image.open(files[0])
    first, second = one.decode([Record("a", files[0]), Record("b", files[0])], look)
    assert np.array_equal(first, look(image, "a")) and np.array_equal(second, look(image, "b"))
    assert not np.array_equal(first, second)


def test_a_dead_process_is_made_up_for(files):
    decoder = Decoder(1, processes=True)
    for _ in range(2):
        assert_same(all_of(decoder, files, SMALL), all_of(Decoder(1), files, SMALL))
        (worker,) = decoder.workers._running
        worker.process.kill()
        worker.process.wait()
    decoder.close()


def test_squares_of_any_size_and_number_asked_for_at_once(one):
    questions = [(seeds, look) for seeds in ([0], [1, 2, 3], [4]) for look in (SMALL, LARGE)] * 3

    def right(question) -> bool:
        seeds, look = question
        found = one.decode([record(seed) for seed in seeds], look)
        return all(np.array_equal(a, look(photograph(b))) for a, b in zip(found, seeds, strict=True))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(right, questions))


@pytest.mark.parametrize("processes", [True, False])
def test_those_that_have_no_square_are_told_in_their_place(one, processes):
    decoder = one if processes else Decoder(1)
    lost = Record("lost.png", InputError("cannot read image lost.png: gone"))
    found = decoder.decode([record(1), Record("bad.png", b"nonsense"), lost, record(2)], SMALL)
    assert [str(one) for one in found[1:3]] == [
        "cannot read image bad.png: its content is no known image format",
        "cannot read image lost.png: gone",
    ]
    assert np.array_equal(found[0], SMALL(photograph(1)))
    assert np.array_equal(found[3], SMALL(photograph(2)))


def test_processes_load_no_more_than_they_need(one):
    loaded = one.workers.ask(eval, "list(__import__('sys').modules)")
    assert "PIL.Image" in loaded and not {"numpy", "torch", "ftfy"} & set(loaded)


def test_after_closing_every_image_fails_and_nothing_is_started():
    decoder = Decoder(1, processes=True)
    decoder.close()
    (found,) = decoder.decode([record(1)], SMALL)
    assert "its decoder broke down" in str(found)


def test_a_program_without_a_guard_is_not_run_again(files):
    """As multiprocessing would, which imports the caller's main program in every child."""
    program = f"""
from pathlib import Path
from pbprompt.vision.images.decoding import shared_processes
from pbprompt.vision.images.crops import Crop
from pbprompt.vision.images.stream import Record
print("started")
records = [Record(path, Path(path)) for path in {[str(path) for path in files]!r}]
print(sum(one.shape == (16, 16, 3) for one in shared_processes(1).decode(records, Crop(16))))
"""
    script = files[0].parent / "program.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["started", str(len(files))], "")


def test_processes_only_for_many_images_on_many_processors(monkeypatch):
    monkeypatch.setattr(decoding, "shared_processes", lambda count: count)
    for processors, images, wanted in (
        (12, 10_000, 12),
        (64, 10_000, 16),
        (16, 9_999, None),
        (4, 10**6, None),
    ):
        monkeypatch.setattr(decoding, "available_cpus", lambda processors=processors: processors)
        assert worthwhile_processes(images) == wanted


def test_formats_whose_decoders_may_take_for_ever_are_decoded_in_processes(one, tmp_path, monkeypatch):
    """Each where it belongs, and all as a process would have them."""
    files = [tmp_path / f"a.{suffix}" for suffix in ("png", "jpg", "webp", "gif", "bmp", "tiff", "ppm")]
    for path in files:
        photograph(1).save(path)
    files.append(tmp_path / "none.png")
    files[-1].write_bytes(b"no image")
    asked = []

    class Watched:
        def decode(self, records, look):
            asked.extend(record.name for record in records)
            return one.decode(records, look)

    monkeypatch.setattr(decoding, "shared_processes", lambda count: Watched())
    assert_same(all_of(Decoder(2), files, SMALL), all_of(one, files, SMALL))
    assert sorted(asked) == ["a.bmp", "a.gif", "a.ppm", "a.tiff", "none.png"]
    asked.clear()
    content = files[4].read_bytes()
    assert isinstance(Decoder(1).decode([Record("b.bmp", content)], SMALL)[0], np.ndarray)
    assert asked == ["b.bmp"]


def test_a_decoder_that_takes_for_ever_is_ended_in_the_command_line_too(tmp_path, monkeypatch):
    photograph(1).save(tmp_path / "a.bmp")
    with contextlib.closing(Decoder(1, processes=True)) as slow:
        slow.workers._seconds = 0.1
        ask = slow.workers.ask
        monkeypatch.setattr(slow.workers, "ask", lambda function, *given: ask(time.sleep, 600))
        monkeypatch.setattr(decoding, "shared_processes", lambda count: slow)
        (found,) = squares_of([tmp_path / "a.bmp"], SMALL)
    assert isinstance(found, InputError) and "decoding took over" in str(found)


def test_an_image_is_asked_for_again_where_its_decoder_was_killed(tmp_path, monkeypatch):
    photograph(1).save(tmp_path / "a.png")
    with contextlib.closing(Decoder(1, processes=True)) as decoder:
        ask, calls = decoder.workers.ask, []

        def killed_at_first(function, *given):
            calls.append(function)
            return ask(os._exit, 137) if len(calls) == 1 else ask(function, *given)

        monkeypatch.setattr(decoder.workers, "ask", killed_at_first)
        (found,) = decoder.decode([Record("a", tmp_path / "a.png")], SMALL)
    assert isinstance(found, np.ndarray) and len(calls) == 2


def test_few_large_files_wait_to_be_decoded(monkeypatch):
    """Each counts for as many as it is large."""
    monkeypatch.setattr(decoding, "WEIGHT", 100)
    taken = 0

    def batches():
        nonlocal taken
        for number in range(40):
            taken = number + 1
            yield number, [Record(f"{number}", bytes(1000))]

    decoder = Decoder(8)
    found = decoder.decoded(batches(), SMALL)
    next(found)
    time.sleep(0.05)
    assert taken <= 6 < decoder.ahead
    found.close()
