"""Processes that decode give what threads give, outlive mistakes, and leave with their caller."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from pbprompt.data import decoders as module
from pbprompt.data.decoders import Decoders, Work, decode, worthwhile_decoders
from pbprompt.data.loading import PART, load_images
from pbprompt.data.transforms import Preprocess, TrainView
from pbprompt.errors import InputError

VIEW = TrainView(16, (0.5,) * 3, (0.5,) * 3)
TEST = Preprocess(16, (0.5,) * 3, (0.5,) * 3)


@pytest.fixture(scope="module")
def two():
    decoders = Decoders(2)
    yield decoders
    decoders.close()


@pytest.fixture
def files(tmp_path):
    random = np.random.default_rng(0)
    paths = [tmp_path / f"{place:02d}.jpg" for place in range(2 * PART + 5)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    return paths


def assert_same(found, wanted):
    assert [index for index, _ in found] == [index for index, _ in wanted]
    for (_, one), (_, other) in zip(found, wanted, strict=True):
        if isinstance(other, InputError):
            assert isinstance(one, InputError) and str(one) == str(other)
        else:
            assert torch.equal(one, other)


def test_views_are_those_of_threads(two, files):
    files[PART].write_bytes(b"")
    files[-1].unlink()
    keys = [path.name for path in files]
    view = partial(VIEW.pixels, seed=3, epoch=2)
    wanted = list(load_images(files, view, keys=keys, workers=2))
    assert sum(isinstance(result, InputError) for _, result in wanted) == 2
    assert_same(list(load_images(files, view, keys=keys, decoders=two)), wanted)


def test_no_keys_and_a_draft(two, tmp_path):
    path = tmp_path / "big.jpg"
    Image.radial_gradient("L").resize((512, 512)).rotate(30).convert("RGB").save(path)
    exact, rough = (
        list(load_images([path] * 3, TEST.pixels, decoders=two, draft=draft)) for draft in (None, 32)
    )
    assert_same(exact, list(load_images([path] * 3, TEST.pixels)))
    assert not torch.equal(exact[0][1], rough[0][1])


def test_a_dead_process_is_made_up_for(files):
    decoders = Decoders(1)
    for found in (list(load_images(files, TEST.pixels, decoders=decoders)) for _ in range(2)):
        assert_same(found, list(load_images(files, TEST.pixels)))
        (worker,) = decoders._running
        worker.process.kill()
        worker.process.wait()
    decoders.close()


def test_what_a_transform_raises_arrives(files):
    decoders = Decoders(1)
    wrong = Work(partial(VIEW.pixels, seed=1), files[:1], None, None)  # no epoch, no key
    for run in (decode, decoders.decode):
        with pytest.raises(TypeError, match="epoch"):
            run(wrong)
    decoders.close()


def test_a_program_without_a_guard_is_not_run_again(files):
    """As multiprocessing would, which imports the caller's main program in every child."""
    program = f"""
from pbprompt.data.decoders import shared_decoders
from pbprompt.data.loading import load_images
from pbprompt.data.transforms import Preprocess
print("started")
pixels = Preprocess(16, (0.5,) * 3, (0.5,) * 3).pixels
print(sum(1 for _ in load_images({[str(path) for path in files]!r}, pixels, decoders=shared_decoders(1))))
"""
    script = files[0].parent / "program.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["started", str(len(files))], "")


def test_only_for_many_images_on_many_processors(monkeypatch):
    monkeypatch.setattr(module, "shared_decoders", lambda count: count)
    for processors, images, wanted in (
        (12, 10_000, 12),
        (64, 10_000, 16),
        (16, 9_999, None),
        (4, 10**6, None),
    ):
        monkeypatch.setattr(module, "available_cpus", lambda processors=processors: processors)
        assert worthwhile_decoders(images) == wanted
