"""Evidence of a stream against that of the same images in memory, whole and shared out."""

import io
import os
import pickle
import signal
from concurrent.futures import ProcessPoolExecutor
from itertools import count, pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from ahead import most_batches_ahead
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.evidence import evidence
from pbprompt.evidence.evidence import Evidence
from pbprompt.model import streamed_statistics as gathered
from pbprompt.model.streamed_statistics import Gathered, Pass, gather_units
from pbprompt.testing.fits import tiny_vit
from pbprompt.vision.features import checkpoint as checkpoints
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.features.checkpoint import Checkpoint
from pbprompt.vision.features.encode import decoder_for
from pbprompt.vision.images.items import Item
from pbprompt.vision.images.stream import Files, Record, Stream

CLASSES = ("cat", "dog", "hen")
JOB = {"images": ["photos"]}


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
    bank = FeatureCache(backbone, cache=tmp_path_factory.mktemp("cache"), progress=False)
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


def exact(mine: Gathered, theirs: Gathered) -> None:
    assert mine._replace(evidence=None) == theirs._replace(evidence=None)
    for one, other in zip(mine.evidence, theirs.evidence, strict=True):
        assert all(map(torch.equal, one, other)), "to the bit"


@pytest.fixture
def in_small_units(photos, monkeypatch) -> list[Files]:
    """Of three and a few files, so that batches of four cross their ends; one of the last is of val."""
    records = list(Stream([photos]).records())
    cuts = (0, 3, 10, 11, len(records))
    return [Files(tuple(records[start:end])) for start, end in pairwise(cuts)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_killed_at_several_moments_and_gone_on_with(in_small_units, tmp_path, monkeypatch):
    """Each child is killed after so many batches, before or while it keeps them; the last comes to an end."""
    monkeypatch.setattr(evidence, "BLOCK", 6)
    monkeypatch.setattr(evidence, "KEPT", 8)
    monkeypatch.setattr(checkpoints, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(checkpoints, "SPARED", 0)
    monkeypatch.setattr(gathered, "default_batch", lambda device: 4)
    backbone = tiny_vit()
    wanted = gather_units(backbone, in_small_units)

    def work(batches: int, torn: bool) -> None:
        checkpoint = Checkpoint(tmp_path / "kept", JOB)
        write, left = checkpoint.write, batches

        def killed(*_: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        if torn:
            monkeypatch.setattr(os, "fsync", killed)
        else:
            checkpoint.write = lambda state: killed() or write(state)
        gather_units(backbone, in_small_units, checkpoint=checkpoint, begun=begun(checkpoint))

    def begun(checkpoint: Checkpoint) -> Pass:
        return Pass.begun(backbone.embed_dim, checkpoint)

    done = []
    for batches, torn in ((0, False), (1, False), (1, True), (0, True)):
        child = os.fork()
        if not child:
            try:
                torch.set_num_threads(1)
                work(batches, torn)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        standing = begun(Checkpoint(tmp_path / "kept", JOB))
        done.append(standing.gathering.images + standing.failed)
    assert done == sorted(done) and done[0] == 0 < done[-1]
    checkpoint = Checkpoint(tmp_path / "kept", JOB)
    exact(gather_units(backbone, in_small_units, checkpoint=checkpoint, begun=begun(checkpoint)), wanted)
    again = begun(Checkpoint(tmp_path / "kept", JOB))  # the pass that came to its end is kept, too
    exact(gather_units(backbone, in_small_units, begun=again), wanted)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["0.safetensors"]
    checkpoint.remove()
    assert not (tmp_path / "kept").exists()


@pytest.fixture
def stopped(in_small_units, tmp_path, monkeypatch) -> Checkpoint:
    """A pass that was interrupted after its second batch."""
    monkeypatch.setattr(gathered, "default_batch", lambda device: 4)
    checkpoint, seen = Checkpoint(tmp_path / "kept", JOB), []

    def interrupt(images: int) -> None:
        seen.append(images)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather_units(tiny_vit(), in_small_units, interrupt, checkpoint)
    return checkpoint


def test_an_interrupted_pass_is_kept_and_gone_on_with(in_small_units, stopped):
    standing = Pass.begun(tiny_vit().embed_dim, stopped)
    assert standing.gathering.images + standing.failed == 8
    exact(gather_units(tiny_vit(), in_small_units, begun=standing), gather_units(tiny_vit(), in_small_units))


def test_other_images_than_before_are_refused(in_small_units, stopped):
    for changed in (in_small_units[:1], in_small_units[1:], [in_small_units[0], *in_small_units[2:]]):
        with pytest.raises(InputError, match=r"kept: the images are others than when it was gathered"):
            gather_units(
                tiny_vit(), changed, checkpoint=stopped, begun=Pass.begun(tiny_vit().embed_dim, stopped)
            )
    assert stopped.path.exists()


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

    decoders = decoder_for(backbone)
    decoders.close()
    with pytest.raises(EnoughError):
        gather_units(backbone, [Endless()], saw)


def test_an_image_without_a_label_is_named():
    unit = Files((Record("a.png", picture(0), "cat"), Record("data.parquet#1", picture(1))))
    with pytest.raises(InputError, match=r"data.parquet#1 has no label: .*column `label`"):
        gather_units(tiny_vit(), [unit])


def test_what_has_no_image_needs_no_label():
    """Such as what is left of a tar that is cut off."""
    cut = Record("b.tar", InputError("b.tar: cut off after 1 images"))
    found = gather_units(tiny_vit(), [Files((Record("a.png", picture(0), "cat"), cut))])
    assert (found.images, found.failed, found.failures) == (1, 1, ("b.tar: cut off after 1 images",))


def test_what_is_gathered_can_be_sent(whole):
    again = pickle.loads(pickle.dumps(whole))
    assert again.keys == whole.keys
    same(again.evidence, whole.evidence)
