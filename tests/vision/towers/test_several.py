"""Backbones side by side: each sees what it sees alone, and is kept as it is alone."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.model.predictor import zero_shot
from pbprompt.testing.fits import tiny_dino, tiny_resnet, tiny_vit
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.features.encode import encode_records
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.images.items import Item
from pbprompt.vision.images.stream import Record
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.engine import encode_texts
from pbprompt.vision.towers.lite import LiteTrunk
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.several import Several

SETS = {"one square": ("vit", "dino"), "two squares": ("vit", "resnet", "dino")}
TINY = {"vit": tiny_vit, "dino": tiny_dino, "resnet": tiny_resnet}


@pytest.fixture(params=SETS.values(), ids=SETS)
def several(request) -> Several:
    return Several([TINY[name]() for name in request.param])


@pytest.fixture
def pictures(tmp_path):
    draws = np.random.default_rng(0)
    for at, shape in enumerate([(50, 40, 3), (64, 64, 3), (33, 90, 3)]):
        Image.fromarray(draws.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / f"{at}.png")
    return tmp_path, [Item(f"{at}.png", 0) for at in range(3)]


def test_each_sees_what_it_sees_alone(several, pictures):
    folder, items = pictures
    images = [Image.open(folder / item.path).convert("RGB") for item in items]
    seen = several.image(torch.stack([several.preprocess(image) for image in images]))
    alone = [
        F.normalize(tower.image(torch.stack([tower.preprocess(image) for image in images])).global_, dim=1)
        for tower in several.towers
    ]
    torch.testing.assert_close(seen.global_, torch.cat(alone, dim=1))
    assert seen.patches.shape == (3, 0, several.embed_dim)
    assert several.preprocess.shape == ((32, 32) if len(several.towers) == 2 else (96, 64))


def test_files_streams_and_copies_agree_and_features_are_kept_by_each(several, pictures, tmp_path):
    folder, items = pictures
    first = FeatureCache(several.towers[0], cache=tmp_path / "cache", progress=False)
    first.encode(folder, items)
    bank = first.on(several)
    kept = bank.encode(folder, items)
    assert bank.encoded == 3 * (len(several.towers) - 1)  # what the first saw was there
    again = bank.encode(folder, items)
    assert bank.encoded == 0 and torch.equal(again.global_, kept.global_)
    records = [Record(item.path, folder / item.path) for item in items]
    [(_, streamed)] = encode_records(several, [(0, records)], Decoder(1))
    torch.testing.assert_close(streamed.global_, kept.global_)


def test_new_images_are_decoded_once_and_kept_as_by_each_alone(several, pictures, tmp_path, monkeypatch):
    folder, items = pictures
    alone = []
    for at, tower in enumerate(several.towers):
        by_itself = FeatureCache(tower, cache=tmp_path / str(at), progress=False)
        alone.append(by_itself.encode(folder, items))
    decoded = []
    monkeypatch.setattr(
        Decoder, "_one", lambda self, *of, plain=Decoder._one: decoded.append(of) or plain(self, *of)
    )
    bank = FeatureCache(several, cache=tmp_path / "cache", progress=False)
    bank.encode(folder, items)
    assert len(decoded) == 3 and bank.encoded == 3 * len(several.towers)
    for tower, expected in zip(several.towers, alone, strict=True):
        found = bank.on(tower).encode(folder, items)
        torch.testing.assert_close(found.global_, expected.global_)
        torch.testing.assert_close(found.patches, expected.patches, rtol=2e-3, atol=2e-3)
    assert len(decoded) == 3


def test_one_trunk_is_computed_once(monkeypatch):
    both = load_backbone(["lite", "lite-vit"])
    pixels = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    see = both.towers[0].preprocess
    square = (pixels - torch.tensor(see.mean).view(3, 1, 1)) / torch.tensor(see.std).view(3, 1, 1)
    alone = [tower.image(square) for tower in both.towers]
    made = []
    monkeypatch.setattr(
        LiteTrunk, "features", lambda self, x, plain=LiteTrunk.features: made.append(x) or plain(self, x)
    )
    seen = both.each_of(both.as_they_are().image(pixels))
    assert len(made) == 1
    for one, expected in zip(seen, alone, strict=True):
        torch.testing.assert_close(one.global_, expected.global_, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one.patches, expected.patches, rtol=1e-4, atol=1e-4)
    both.image(pixels)
    assert len(made) == 2
    both.towers[1].visual.trunk.top.bias[0] += 1  # another trunk from here on
    assert Several(both.towers).visual.firsts == [0, 1] and both.visual.firsts == [0, 0]


def test_an_image_that_cannot_be_read_is_left_out_once(pictures, tmp_path):
    folder, items = pictures
    (folder / "1.png").write_bytes(b"no image")
    failures: dict[str, InputError] = {}
    bank = FeatureCache(Several([tiny_vit(), tiny_dino()]), cache=tmp_path / "cache", progress=False)
    features = bank.encode(folder, items, failures)
    assert list(failures) == ["1.png"] and len(features) == len(features.global_) == 2
    assert features.global_.isfinite().all()


def test_names_are_read_by_those_that_read():
    towers, names = [tiny_vit(), tiny_dino(), tiny_resnet()], ("cat", "dog")
    several = Several(towers)
    texts = [encode_texts(tower, ["a cat.", "a dog."]) for tower in towers if tower.reads_text]
    images = torch.randn(5, several.embed_dim, generator=torch.Generator().manual_seed(0))
    parts = [unit(part) for part in images.split(several.widths, dim=1)]
    by_each = [
        tower.logit_scale * parts[place] @ unit(text).T
        for (place, tower), text in zip([(0, towers[0]), (2, towers[2])], texts, strict=True)
    ]
    predictor = zero_shot(several, names, "a {}.")
    seen = torch.cat(parts, dim=1)
    logits = predictor.method.sample_logits(
        type(several.image(torch.zeros(1, 3, 96, 64)))(seen, seen), predictor.bank
    )
    torch.testing.assert_close(logits[0], (by_each[0] + by_each[1]) / 2, atol=1e-4, rtol=1e-4)
    assert not Several([tiny_dino(), _other_dino()]).reads_text


def _other_dino():
    from dataclasses import replace

    from pbprompt.vision.towers.backbone import random_backbone

    return random_backbone(replace(tiny_dino().config, name="other-dino"), seed=1)


def test_the_same_twice_and_none_are_refused():
    with pytest.raises(InputError, match="backbone lite is given twice: give it once"):
        load_backbone(["lite", "lite"])
    with pytest.raises(InputError, match="no backbone is given"):
        load_backbone([])
    with pytest.raises(InputError, match="unknown backbone 'nope'"):
        load_backbone(["lite", "nope"])
    assert load_backbone(["lite"]).config.name == "lite"


def test_an_activation_is_for_files_that_do_not_tell():
    both = load_backbone(["lite", "lite-vit"], activation="gelu")
    assert [tower.config.activation for tower in both.towers] == ["quick_gelu", "quick_gelu"]
