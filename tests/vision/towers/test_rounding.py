"""An image tower in bfloat16: near float32 within a stated tolerance, texts untouched; refused where it would
be slower, or where a method reaches into the tower."""

import copy

import pytest
import torch
import torch.nn.functional as F

from pbprompt.errors import InputError
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.towers.engine import encode_texts
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.rounding import precision_of, round_image_tower
from pbprompt.vision.towers.taps import Tapped


@pytest.fixture
def able(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)


@pytest.mark.parametrize("name", ["tiny", "lite"])
def test_features_are_near_and_texts_are_the_same(name, tiny_vit, able):
    exact = tiny_vit if name == "tiny" else load_backbone(name)
    rough = copy.deepcopy(exact)
    round_image_tower(rough)
    size = exact.preprocess.size
    pixels = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    found, wanted = rough.image(pixels), exact.image(pixels)
    assert found.global_.dtype == rough.dtype == torch.bfloat16
    assert not torch.equal(found.global_.float(), wanted.global_)
    assert F.cosine_similarity(found.global_.float(), wanted.global_).min() > 0.99
    texts = ["a photo of a cat.", "a dog"]
    assert torch.equal(encode_texts(rough, texts), encode_texts(exact, texts))


def test_features_are_kept_apart(tiny_vit, able, tmp_path):
    rough = copy.deepcopy(tiny_vit)
    round_image_tower(rough)
    stores = [FeatureCache(one, cache=tmp_path)._store(one.preprocess.identity) for one in (tiny_vit, rough)]
    assert stores[0].folder != stores[1].folder


@pytest.mark.parametrize("capabilities", [{"avx2": True}, {}])
def test_refused_without_instructions(tiny_vit, monkeypatch, capabilities):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    with pytest.raises(InputError, match=r"no instructions for it \(avx512_bf16 or amx_bf16\): leave it out"):
        round_image_tower(tiny_vit)
    assert tiny_vit.dtype == torch.float32


def test_refused_where_a_method_reaches_into_the_tower(tiny_vit, able):
    with pytest.raises(InputError, match="reaches into the image tower: leave it out"):
        round_image_tower(Tapped(tiny_vit))


def test_both_towers_in_the_precision_asked_for(able):
    assert precision_of("bfloat16", "cpu") == torch.bfloat16
    assert precision_of("float16", "cuda:1") == torch.float16
    with pytest.raises(InputError, match="--precision float16: that is for a GPU: use bfloat16"):
        precision_of("float16", "cpu")
    with pytest.raises(InputError, match="--precision half: choose float32, bfloat16, float16"):
        precision_of("half", "cpu")


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_processor_that_gains_nothing_says_so(monkeypatch, name):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    with pytest.raises(InputError, match=f"--precision {name}: .*: leave it out"):
        precision_of(name, "cpu")
