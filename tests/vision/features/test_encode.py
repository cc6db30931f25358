"""Streams through the tower: features in order, and images whose features are no numbers fail alone."""

import numpy as np
import torch

from pbprompt.errors import InputError
from pbprompt.vision.features.encode import encode_records
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.images.stream import Record
from pbprompt.vision.towers.backbone import Encoded


class Ready(Decoder):
    """Makes the square of a record whose content is a grey level; no processes."""

    def __init__(self, size: int) -> None:
        super().__init__(1)
        self.size = size

    def decode(self, records, look):
        return [
            np.full((self.size, self.size, 3), record.content[0], np.uint8)
            if record.content
            else InputError("none")
            for record in records
        ]


def test_features_that_overflow_fail_alone(tiny_vit, monkeypatch):
    image = tiny_vit.image
    bad = 7 / 255 - torch.tensor(tiny_vit.preprocess.mean[0])

    def overflowing(pixels):
        encoded = image(pixels)
        seen = pixels[:, 0, 0, 0] * tiny_vit.preprocess.std[0]
        patches = torch.where((seen - bad).abs()[:, None, None] < 1e-4, 1e6, encoded.patches)
        return Encoded(encoded.global_, patches)

    monkeypatch.setattr(tiny_vit, "image", overflowing)
    levels = [[1, 7, None, 3], [7], [None, None], [4, 5, 6], [8]]
    batches = [
        (at, [Record(f"{at}-{n}", b"" if level is None else bytes([level])) for n, level in enumerate(some)])
        for at, some in enumerate(levels)
    ]
    found = list(encode_records(tiny_vit, batches, Ready(tiny_vit.preprocess.size)))
    assert [mark for mark, _ in found] == [0, 1, 2, 3, 4]
    assert [sorted(one.failures) for _, one in found] == [[1, 2], [0], [0, 1], [], []]
    assert "0-1: its features overflow" in str(found[0][1].failures[1])
    assert [(len(one.global_), len(one.patches)) for _, one in found] == [
        (2, 2),
        (0, 0),
        (0, 0),
        (3, 3),
        (1, 1),
    ]
    assert all(one.patches.isfinite().all() for _, one in found)
