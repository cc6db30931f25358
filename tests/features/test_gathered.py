"""Evidence of a stream against that of the same images in memory, whole and shared out."""

import io
import pickle
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pbprompt.core import evidence
from pbprompt.core.evidence import Evidence
from pbprompt.data.items import Item
from pbprompt.data.stream import Files, Record, Stream
from pbprompt.errors import InputError
from pbprompt.features import gathered
from pbprompt.features.bank import FeatureBank
from pbprompt.features.gathered import Gathered, gather_units
from pbprompt.features.streaming import decoders_for, most_batches_ahead
from pbprompt.testing.fits import tiny_vit

CLASSES = ("cat", "dog", "hen")


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (36, 40, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Fourteen pictures of three classes to learn from, two of val, one that is none."""
    root = tmp_path_factory.mktemp("photos")
    for seed in range(16):
        split = "train" if seed < 14 else "val"
        file = root / split / CLASSES[seed // 2 % 3] / f"{seed:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture(seed))
    (root / "train" / "dog" / "99.png").write_bytes(b"\x89PNG\r\n\x1a\n no more")
    return root


def same(mine: Evidence, theirs: Evidence) -> None:
    for one, other in zip(mine.statistics, theirs.statistics, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    order, place = (kept.images[:, 0].argsort() for kept in (mine.kept, theirs.kept))
    torch.testing.assert_close(mine.kept.images[order], theirs.kept.images[place], rtol=1e-6, atol=1e-6)
    assert torch.equal(mine.kept.labels[order], theirs.kept.labels[place])


@pytest.fixture(scope="module")
def in_memory(photos, tmp_path_factory) -> Evidence:
    backbone = tiny_vit()
    files = sorted(file for file in photos.glob("train/*/*.png") if file.name != "99.png")
    items = [Item(str(file.relative_to(photos)), CLASSES.index(file.parent.name)) for file in files]
    bank = FeatureBank(backbone, cache=tmp_path_factory.mktemp("cache"), progress=False)
    features = bank.encode(photos, items)
    return Evidence.of(torch.nn.functional.normalize(features.global_), features.labels, len(CLASSES))


@pytest.fixture(scope="module")
def whole(photos) -> Gathered:
    return gather_units(tiny_vit(), Stream([photos]).units())


def test_a_pass_gives_what_the_images_in_memory_give(whole, in_memory):
    assert sorted(whole.keys) == list(CLASSES) and whole.images == 14
    assert (whole.other_splits, whole.failed) == (2, 1) and "99.png" in whole.failures[0]
    same(whole.under(CLASSES), in_memory)


def test_two_processes_share_the_units(photos, whole, monkeypatch):
    """They go there and come back pickled, and meet the classes in different orders."""
    records = list(Stream([photos]).records())
    shares = [[Files(tuple(records[9:]))], [Files(tuple(records[:4])), Files(tuple(records[4:9]))]]
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        first, second = pool.map(gather_share, shares)
    assert first.keys != second.keys
    for both in (first.merged(second), second.merged(first)):
        assert both[2:5] == whole[2:5] and both.failures == whole.failures
        same(both.under(CLASSES), whole.under(CLASSES))


def gather_share(units: list[Files]) -> Gathered:
    torch.set_num_threads(1)
    return gather_units(tiny_vit(), units)


def test_the_source_is_read_no_further_than_it_must(monkeypatch):
    """Records of an endless source: those ahead of what was summed are bounded."""
    monkeypatch.setattr(evidence, "BLOCK", 8)
    backbone, content = tiny_vit(), picture(0)
    taken = summed = 0

    class Endless:
        identity = "endless"

        def records(self, skip=0):
            nonlocal taken
            for number in count():
                taken += 1
                yield Record(f"{number}.png", content, CLASSES[number % 3])

    class EnoughError(Exception):
        pass

    def saw(images: int) -> None:
        nonlocal summed
        summed += images
        batch = gathered.default_batch(backbone.device)
        assert taken - summed <= batch * most_batches_ahead(backbone, decoders)
        if summed >= 300:
            raise EnoughError

    decoders = decoders_for(backbone)
    decoders.close()
    with pytest.raises(EnoughError):
        gather_units(backbone, [Endless()], saw)


def test_an_image_without_a_label_is_named():
    unit = Files((Record("a.png", picture(0), "cat"), Record("data.parquet#1", picture(1))))
    with pytest.raises(InputError, match=r"data.parquet#1 has no label: .*column `label`"):
        gather_units(tiny_vit(), [unit])


def test_what_is_gathered_can_be_sent(whole):
    again = pickle.loads(pickle.dumps(whole))
    assert again.keys == whole.keys
    same(again.evidence, whole.evidence)
