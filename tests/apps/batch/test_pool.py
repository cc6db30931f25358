"""Images without labels, read from a stream."""

import pytest
import torch

from pbprompt.apps.batch import pool as pools
from pbprompt.apps.batch.pool import Pool, read_pool
from pbprompt.errors import InputError
from pbprompt.evidence.evidence import feature_keys
from pbprompt.vision.images.stream import Record, Stream


def test_what_cannot_be_read_is_left_out_and_told(tiny_vit, photos):
    pool = read_pool(tiny_vit, Stream([photos]), progress=False)
    assert len(pool.names) == 10 == len(pool.images) and pool.read == 11
    assert len(pool.failures) == 1 and "05.png" in pool.failures[0]
    torch.testing.assert_close(pool.images.norm(dim=1), torch.ones(10))
    assert pool.encoded.patches.shape[:2] == (10, 0)


def test_copies_are_known_by_what_they_show(tiny_vit, photos):
    pool = read_pool(tiny_vit, Stream([photos]), progress=False)
    again = torch.cat([3 * pool.images[2:4], torch.randn(1, tiny_vit.embed_dim)])
    assert pool.copies(again).nonzero().squeeze(1).tolist() == [2, 3]
    assert pool.kept(~pool.copies(again)).names == pool.names[:2] + pool.names[4:]


def test_of_many_those_with_the_least_keys_stand_for_all(monkeypatch):
    monkeypatch.setattr(pools, "SEEN", 6)
    images = torch.nn.functional.normalize(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)))
    parts = [Pool([str(at)], images[at : at + 1], 1, []) for at in range(20)]
    forward, backward = Pool.joined(parts), Pool.joined([Pool.joined(parts[10:]), Pool.joined(parts[:10])])
    least = feature_keys(images).argsort()[:6].tolist()
    assert sorted(map(int, forward.names)) == sorted(least) == sorted(map(int, backward.names))
    assert forward.read == 20


def test_nothing_in_it(tiny_vit, tmp_path):
    (tmp_path / "none.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"none\.png"):
        read_pool(tiny_vit, Stream([tmp_path]), progress=False)
    with pytest.raises(InputError, match=r"^-: cannot read image -"):
        read_pool(tiny_vit, Stream([Record("-", b"no image")]), progress=False)


def test_of_a_table_those_without_a_label(tiny_vit, photos):
    table = photos / "table.csv"
    table.write_text("image,label\n00.png,cat\n01.png,\n02.png,\n")
    pool = read_pool(tiny_vit, Stream([table]), bare=True, progress=False)
    assert [name.rpartition("/")[2] for name in pool.names] == ["01.png", "02.png"]
