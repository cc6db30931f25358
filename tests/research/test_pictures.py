"""Pictures from recipes, on the embedded sample and tiny towers."""

from dataclasses import replace

import pytest
from PIL import Image

from pbprompt.apps.explain.drawing import GAP, SIDE, draw_captions, seen, stacked
from pbprompt.apps.explain.prompts import PromptCaptions
from pbprompt.errors import InputError
from pbprompt.research.pictures import find_picture, make_picture
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.transforms import Preprocess


@pytest.fixture(scope="module")
def bank(tiny_vit, tmp_path_factory):
    return FeatureCache(tiny_vit, cache=tmp_path_factory.mktemp("features"), progress=False)


def short(name, **changes):
    return replace(find_picture(name), overrides=("epochs=1",), shots=1, samples=2, **changes)


def test_heat_maps_of_the_own_class_and_of_the_least_likely(bank):
    drawn, told = make_picture(short("sample-heat-maps", unrelated=3), bank)
    assert [panel["class"] for panel in told["panels"]] == ["bird", "bug"]  # the first two
    for panel in told["panels"]:
        assert [row["related"] for row in panel["rows"]] == [True, False, False, False]
        assert panel["rows"][0]["class"] == panel["class"] and panel["image"].startswith("images/fluent/")
        unlikely = [row["probability"] for row in panel["rows"][1:]]
        assert unlikely == sorted(unlikely) and max(unlikely) < 1 / 28
    assert drawn.width >= 4 * SIDE and drawn.height >= 2 * 4 * SIDE  # four rows twice
    assert told["settings"]["epochs"] == 1 and told["backbone"]["name"] == "tiny-vit"


def test_captions_of_the_classes_that_are_named(bank):
    captions = ("a bird", "two birds", "a red apple")
    drawn, told = make_picture(short("sample-captions", captions=captions, top_k=2), bank)
    assert [panel["class"] for panel in told["panels"]] == ["bird", "fruit"]
    for panel in told["panels"]:
        assert [prompt["prompt"] for prompt in panel["prompts"]] == [1, 2]
        for prompt in panel["prompts"]:
            first, second = prompt["captions"]
            assert {first["text"], second["text"]} <= set(captions) and first["cosine"] >= second["cosine"]
    assert drawn.height >= 2 * SIDE
    with pytest.raises(InputError, match="sample-captions: has no captions"):
        make_picture(short("sample-captions", captions=()), bank)


def test_the_same_recipe_draws_the_same(bank):
    captions = short("sample-captions")
    (first, told), (second, again) = (make_picture(captions, bank) for _ in range(2))
    assert told == again and first.tobytes() == second.tobytes()


def test_captions_widen_the_picture_and_are_written_whole():
    image = Image.new("RGB", (40, 30), "red")
    narrow, wide = (
        draw_captions("cat", image, [PromptCaptions("cat", 0, ((text, 0.5),))]) for text in ("a", "a" * 200)
    )
    assert wide.width > narrow.width + 500
    assert stacked([narrow, wide]).size == (wide.width, narrow.height + wide.height)


def test_captions_stand_beside_the_square_that_the_tower_sees():
    image, prompts = Image.radial_gradient("L").convert("RGB"), [PromptCaptions("cat", 0, (("a", 0.5),))]
    see = Preprocess(224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), resize=256)
    drawn = draw_captions("cat", image, prompts, see.fit, see.kept)
    square = drawn.crop((GAP, GAP, GAP + SIDE, GAP + SIDE))
    assert square.tobytes() == seen(image, SIDE, "crop", 224 / 256).tobytes()
    assert square.tobytes() != seen(image, SIDE).tobytes()
