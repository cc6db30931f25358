"""Processes that need the same images share the work, and wait for no dead one."""

import sys

import pytest
import torch
from PIL import Image

from pbprompt.vision.features import claims
from pbprompt.vision.features.cache import FeatureCache, feature_folder
from pbprompt.vision.features.claims import Claims
from pbprompt.vision.images.items import Item

COUNT = 24

ENCODER = """
import os, sys
from pathlib import Path
from pbprompt.vision.towers.backbone import BackboneConfig, random_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig
from pbprompt.vision.images.items import Item
from pbprompt.vision.features import claims
from pbprompt.vision.features.cache import FeatureCache

claims.SMALLEST = 2
text = TextConfig(context_length=77, vocab_size=49408, width=64, heads=4, layers=1)
backbone = random_backbone(BackboneConfig("tiny-vit", 32, VitConfig(32, 8, 64, 1, 4), text))
items = [Item(f"{place}.png", 0) for place in range(24)]
bank = FeatureCache(backbone, progress=False)
for _ in range(3):  # four processes, of which one imported torch
    if not os.fork():
        break
os.write(1, b"ready\\n")  # whole, beside the others' lines
os.read(0, 1)
features = bank.encode(Path(sys.argv[1]), items)
os.write(1, f"{bank.encoded} {len(features) - bank.encoded} {features.global_.sum().item()}\\n".encode())
"""
HOLDER = """
import sys
from pathlib import Path
from pbprompt.vision.features.claims import Claims

with Claims(Path(sys.argv[1]), Path(sys.argv[2])) as claims:
    assert all([claims.take(key) for key in sys.argv[3:]])
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def photos(tmp_path):
    root = tmp_path / "photos"
    root.mkdir()
    generator = torch.Generator().manual_seed(0)
    for place in range(COUNT):
        pixels = torch.randint(256, (40, 50, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(root / f"{place}.png")
    return root


def start(child, program, *given):
    return child([sys.executable, "-c", program, *given], stdin=-1, stdout=-1)


def said(process):
    return process.stdout.readline().split()


def test_four_processes_encode_each_image_once(child, photos):
    four = start(child, ENCODER, photos)
    assert [said(four) for _ in range(4)] == [["ready"]] * 4
    four.stdin.write("goes")  # a letter for each
    four.stdin.flush()
    encoded, read, sums = zip(*(said(four) for _ in range(4)), strict=True)
    assert sum(map(int, encoded)) == COUNT and sum(map(int, read)) == 3 * COUNT
    assert len(set(sums)) == 1
    assert (feature_folder() / ".claims").stat().st_size == 0


def test_what_another_holds_is_waited_for_and_a_dead_one_holds_nothing(child, tmp_path, monkeypatch):
    holder = start(child, HOLDER, tmp_path, tmp_path / "store", "a", "c")
    assert said(holder) == ["held"]
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            holder.kill()
            holder.wait()

    monkeypatch.setattr(claims.time, "sleep", wait)
    with Claims(tmp_path, tmp_path / "store") as own:
        assert not own.take("a") and own.take("b")
        own.release()
        assert list(own.share("abcd")) == [[1, 3], [0, 2]]
        assert len(waits) == 3
    with Claims(tmp_path, tmp_path / "another") as other:
        assert list(other.share("ab")) == [[0, 1]]


def test_a_stopped_process_is_not_waited_for_without_end(child, tmp_path, monkeypatch):
    assert said(start(child, HOLDER, tmp_path, tmp_path / "store", "a")) == ["held"]
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", -1)
    with Claims(tmp_path, tmp_path / "store") as own:
        assert list(own.share("ab")) == [[1], [0]]


def test_portions(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "SMALLEST", 3)
    with Claims(tmp_path, tmp_path / "store") as own:
        assert [len(some) for some in own.share([str(n) for n in range(100)])] == [7] * 14 + [2]
        assert [len(some) for some in own.share("abcdefgh")] == [3, 3, 2]
        assert list(own.share([])) == []


def test_without_a_folder_for_locks_everything_is_encoded(tmp_path, tiny_vit, photos):
    (tmp_path / "file").write_text("")
    with Claims(tmp_path / "file", tmp_path / "store") as own:
        assert list(own.share("ab")) == [[0, 1]]


def test_what_became_stored_meanwhile_is_read(tiny_vit, photos, monkeypatch):
    """Between the first look at the store and the claim, another process finished."""
    items = [Item(f"{place}.png", 0) for place in range(3)]
    own, other = (FeatureCache(tiny_vit, progress=False) for _ in range(2))
    share = Claims.share

    def late(self, keys, portions):
        monkeypatch.setattr(Claims, "share", share)
        other.encode(photos, items)
        return share(self, keys, portions)

    monkeypatch.setattr(Claims, "share", late)
    features = own.encode(photos, items)
    assert own.encoded == 0
    assert torch.equal(features.global_, other.encode(photos, items).global_)
