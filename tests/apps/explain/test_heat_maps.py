"""Heat maps: the plans in explicit loops, and pictures whose hottest place is where the array says."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pbprompt
from pbprompt.apps.explain.drawing import (
    ANCHORS,
    _scale,
    draw_heat_maps,
    full_colour,
    heat_colours,
    overlay,
    save_picture,
    seen,
)
from pbprompt.apps.explain.heat_maps import READINGS, HeatMaps, heat_maps
from pbprompt.errors import InputError
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.predictor import predictive
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.registry import find_method

CLASSES = ("cat", "dog", "fire engine", "car", "sea horse")


def made(backbone, name="pbprompt", *overrides):
    kind = find_method(name)
    method = build_method(kind, make_config(kind, overrides=overrides), backbone, seed=1)
    method.prepare(CLASSES, "a photo of a {}.")
    return method


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    noise = np.random.default_rng(3).integers(0, 256, (40, 70, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def unit(vectors):
    vectors = vectors.detach().double().numpy()
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def by_hand(method, photo, prompts, temperature):
    """Both plans and the contribution [s, c, h, w] in float64 loops."""
    backbone = method.backbone
    encoded = backbone.image(backbone.preprocess(photo)[None])
    lengths = np.linalg.norm(encoded.patches[0].double().numpy(), axis=-1)
    u, g, f = unit(encoded.patches[0]), unit(prompts), unit(encoded.global_[0])
    f_length = encoded.global_[0].double().norm().item()
    samples, classes = g.shape[:2]
    height, width = backbone.grid
    to_prompt, to_patch, contribution = (np.zeros((samples, classes, height, width)) for _ in range(3))
    for s in range(samples):
        weights = np.exp([backbone.logit_scale * (f @ g[s, c] - 1) for c in range(classes)])
        weights /= weights.sum()
        for m in range(height * width):
            i, j = divmod(m, width)
            mass = [weights[c] * math.exp(u[m] @ g[s, c] / temperature) for c in range(classes)]
            mean = sum(u[m] @ g[s, c] for c in range(classes)) / classes
            for c in range(classes):
                to_prompt[s, c, i, j] = mass[c] / sum(mass)
                to_patch[s, c, i, j] = math.exp(u[m] @ g[s, c] / temperature)
                share = lengths[m] * (u[m] @ g[s, c] - mean) / f_length
                contribution[s, c, i, j] = backbone.logit_scale * share
        to_patch[s] /= to_patch[s].sum((-2, -1), keepdims=True)
    return to_prompt, to_patch, contribution


@pytest.mark.parametrize("temperature", [None, 0.05])
def test_values_in_loops(tiny_vit, photo, temperature):
    method = made(tiny_vit)
    found = heat_maps(predictive(method, seed=5), photo, CLASSES, samples=3, temperature=temperature)
    prompts = predictive(method, 20, 5).bank[:3]
    wanted = by_hand(method, photo, prompts, temperature or 1.0)
    for reading, one in zip(READINGS, wanted, strict=True):
        assert found.of(reading).dtype == np.float32
        np.testing.assert_allclose(found.of(reading), one, rtol=1e-3, atol=2e-5)
    assert found.patch_to_prompt.shape == (3, 5, *tiny_vit.grid) and found.temperature == (temperature or 1)


def test_a_subset_is_rows_of_the_whole_in_the_order_asked_for(tiny_vit, photo):
    method = made(tiny_vit)
    whole = heat_maps(predictive(method), photo, CLASSES)
    some = heat_maps(predictive(method), photo, ["Car", "fire_engine"])
    assert some.classes == ("car", "fire engine")
    for reading in READINGS:
        assert np.array_equal(some.of(reading), whole.of(reading)[:, [3, 2]])
    assert np.array_equal(some.probabilities, whole.probabilities[[3, 2]])


def test_the_likeliest_classes_with_the_probabilities_of_predict(tiny_vit, photo):
    method = made(tiny_vit)
    said = predictive(method)(tiny_vit.image(tiny_vit.preprocess(photo)[None])).probabilities[0]
    found = heat_maps(predictive(method), photo)
    order = said.argsort(descending=True)[:3].tolist()
    assert found.classes == tuple(CLASSES[row] for row in order)
    np.testing.assert_allclose(found.probabilities, said[order])


def test_sums(tiny_resnet, photo):
    found = heat_maps(predictive(made(tiny_resnet)), photo, CLASSES)
    np.testing.assert_allclose(found.prompt_to_patch.sum((-2, -1)), 1, atol=1e-5)
    np.testing.assert_allclose(found.patch_to_prompt.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(found.contribution.sum(1), 0, atol=1e-3)


@pytest.mark.parametrize("temperature", [1, 2.5])
def test_where_the_image_is_the_mean_of_its_patches_the_contribution_is_a_share_of_the_logit(
    lite, photo, temperature
):
    method = made(lite, "pbprompt", f"prediction_temperature={temperature}")
    found = heat_maps(predictive(method), photo, CLASSES, samples=2)
    bank = predictive(method).bank[:2]
    logits = method.sample_logits(lite.image(lite.preprocess(photo)[None]), bank)[:, 0].detach().numpy()
    np.testing.assert_allclose(
        found.contribution.mean((-2, -1)), logits - logits.mean(1, keepdims=True), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(
    ("name", "maps"), [("coop", 1), ("plot", 4), ("proda", 1), ("zeroshot", 1), ("vpt", 4)]
)
def test_other_methods_have_maps_of_their_prompts(tiny_vit, photo, name, maps):
    found = heat_maps(predictive(made(tiny_vit, name)), photo, ["dog"])
    assert found.prompt_to_patch.shape == (maps, 1, *tiny_vit.grid)


def test_the_temperature_of_the_model(tiny_vit, photo):
    assert heat_maps(predictive(made(tiny_vit, "pbprompt", "ct_temperature=0.3")), photo).temperature == 0.3
    assert heat_maps(
        predictive(made(tiny_vit, "pbprompt", "ct_temperature=0")), photo
    ).temperature == pytest.approx(0.01)
    assert heat_maps(predictive(made(tiny_vit, "coop")), photo).temperature == 1


def test_what_cannot_be_explained_says_so(tiny_vit, photo):
    with pytest.raises(InputError, match="cocoop makes its prompts anew for every image"):
        heat_maps(predictive(made(tiny_vit, "cocoop")), photo)
    with pytest.raises(InputError, match="'zebra' is none of the model's 5"):
        heat_maps(predictive(made(tiny_vit)), photo, ["zebra"])
    with pytest.raises(InputError, match="temperature"):
        heat_maps(predictive(made(tiny_vit)), photo, temperature=0.0)
    with pytest.raises(InputError, match="reading 'heat'"):
        draw_heat_maps(heat_maps(predictive(made(tiny_vit)), photo), photo, "heat")


def test_a_cache_of_images_has_no_prompts(tiny_vit, photo):
    method = made(tiny_vit, "tip-adapter")
    encoded = tiny_vit.image(torch.stack([tiny_vit.preprocess(photo)] * 5))
    method.begin(encoded, torch.arange(5))
    with pytest.raises(InputError, match="tip-adapter votes by its images"):
        heat_maps(predictive(method), photo)


def test_maps_are_kept_as_arrays(tiny_vit, photo, tmp_path):
    found = heat_maps(predictive(made(tiny_vit)), photo)
    found.save(tmp_path / "maps.npz")
    with np.load(tmp_path / "maps.npz", allow_pickle=False) as kept:
        assert tuple(kept["classes"]) == found.classes
        for name in ("patch_to_prompt", "prompt_to_patch", "contribution", "probabilities"):
            assert np.array_equal(kept[name], getattr(found, name))


# ---------------------------------------------------------------- pictures


def warmth(picture: Image.Image) -> np.ndarray:
    """On a grey photograph the scale's lightness is the heat."""
    return np.asarray(picture.convert("L"), float)


def spot(row: int, column: int, side: int = 7) -> np.ndarray:
    heat = np.full((side, side), 0.2, np.float32)
    heat[row, column] = 0.9
    return heat


def test_colours_only_get_lighter():
    steps = heat_colours(np.linspace(0, 1, 64)[None])[0].astype(float)
    lightness = steps @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(lightness) > 0).all()
    assert np.array_equal(heat_colours(np.array([[-1.0, 2.0]]))[0], ANCHORS[[0, -1]])


@pytest.mark.parametrize(("row", "column"), [(0, 0), (2, 5), (6, 3)])
def test_the_hottest_place_of_an_overlay_is_the_hottest_cell(row, column):
    lit = warmth(overlay(Image.new("RGB", (210, 210), "grey"), spot(row, column)))
    hottest = np.argwhere(lit >= lit.max() - 1e-6).mean(0)
    assert np.abs(hottest - (np.array([row, column]) + 0.5) * 30).max() < 16
    assert lit[(row * 30 + 105) % 210, (column * 30 + 105) % 210] < lit.max() - 50


def test_an_overlay_is_the_centre_square():
    wide = Image.new("RGB", (300, 100), "red")
    wide.paste("blue", (100, 0, 200, 100))  # just the square
    square = np.asarray(overlay(seen(wide), np.zeros((4, 4), np.float32)), float)
    assert square.shape == (100, 100, 3)
    assert (square[..., 2] > square[..., 0] + 50).all()
    assert seen(wide, side=50).size == (50, 50)


def test_a_narrower_crop_is_drawn_as_it_was_seen():
    photo = Image.effect_noise((160, 128), 64).convert("RGB")
    none = np.zeros((4, 4), np.float32)
    centre = overlay(photo.crop((24, 8, 136, 120)), none)  # 7/8 of the short side, 112 pixels
    assert overlay(seen(photo, side=112, cropped=7 / 8), none).tobytes() == centre.tobytes()


def test_colours_are_relative_to_the_mean_unless_a_scale_is_given():
    grey, heat = Image.new("RGB", (70, 70), "grey"), spot(3, 3)
    assert overlay(grey, heat).tobytes() == overlay(grey, heat * 5).tobytes()
    assert warmth(overlay(grey, heat, 9.0)).max() < warmth(overlay(grey, heat)).max() - 50
    assert np.ptp(warmth(overlay(grey, np.full((7, 7), 0.3, np.float32)))) == 0


def test_a_plan_near_uniform_is_not_stretched():
    """A tenth above and below uniform: all of it in the middle of the scale, not from dark to bright."""
    grey, even = Image.new("RGB", (70, 70), "grey"), np.full((7, 7), 0.9, np.float32)
    even[2, 5] = 1.1
    assert full_colour(even) == pytest.approx(2 * even.mean())
    assert full_colour(spot(3, 3)) == pytest.approx(0.9)
    shown, clear = warmth(overlay(grey, even)), warmth(overlay(grey, spot(2, 5)))
    assert np.ptp(shown) < 0.25 * np.ptp(clear) and shown.max() < clear.max() - 40
    text = _scale(np.stack([[even / even.sum()]]), 0, "prompt-to-patch", 1.0)[1]
    assert text == "1.00 to 1.22 times uniform (1/49), full colour from 2, at T = 1"


def handmade(samples: int, **heat) -> HeatMaps:
    arrays = {name: np.zeros((samples, 2, 7, 7), np.float32) for name in
              ("patch_to_prompt", "prompt_to_patch", "contribution")} | heat  # fmt: skip
    return HeatMaps(**arrays, classes=("cat", "x" * 300), probabilities=np.array([0.9, 0.1]), temperature=1.0)


def tile(picture: Image.Image, row: int, column: int) -> np.ndarray:
    """A tile of the grid: 168 pixels, 6 between columns, two lines of text above each row."""
    left, top = 6 + column * 174, 28 + row * 212 + 32
    return warmth(picture.crop((left, top, left + 168, top + 168)))


def hottest_cell(lit: np.ndarray) -> tuple[int, int]:
    row, column = np.argwhere(lit >= lit.max() - 1e-6).mean(0) // 24
    return int(row), int(column)


def test_a_row_a_class_and_a_column_a_sample_after_photograph_and_mean():
    places = [[(1, 1), (5, 2)], [(1, 1), (3, 4)], [(1, 1), (0, 6)]]
    heat = np.stack([[spot(*cell) for cell in sample] for sample in places])
    picture = draw_heat_maps(handmade(3, contribution=heat), Image.new("RGB", (500, 400), "grey"))
    assert picture.size == (6 + 5 * 174, 28 + 2 * 212)
    assert tile(picture, 0, 0).std() == 0 and tile(picture, 1, 0).std() == 0  # the photograph as it is
    assert hottest_cell(tile(picture, 0, 1)) == (1, 1)  # the mean
    for sample in range(3):
        for row in range(2):
            assert hottest_cell(tile(picture, row, 2 + sample)) == places[sample][row]


def test_one_sample_needs_no_mean():
    picture = draw_heat_maps(handmade(1), Image.new("RGB", (50, 50)))
    assert picture.width == 6 + 2 * 174


def test_the_scales_of_the_readings():
    grey = Image.new("RGB", (50, 50), "grey")
    heat = np.stack([np.stack([spot(1, 1), spot(2, 2)]), np.stack([10 * spot(1, 1), spot(2, 2)])])
    brightest = {}
    for reading in READINGS:
        picture = draw_heat_maps(handmade(2, **{reading.replace("-", "_"): heat}), grey, reading)
        brightest[reading] = [[tile(picture, row, 2 + s).max() for s in range(2)] for row in range(2)]
    shared, own, whole = (
        np.array(brightest[r]) for r in ("prompt-to-patch", "patch-to-prompt", "contribution")
    )
    assert shared[0, 0] < shared[0, 1] - 50 and shared[1, 0] == shared[1, 1] == shared[0, 1]
    assert own.min() == own.max()
    assert whole[0, 1] > max(whole[0, 0], *whole[1]) + 50


def test_a_class_that_nothing_speaks_for_stays_dark():
    contribution = np.stack([np.stack([spot(1, 1), -spot(2, 2)])])
    picture = draw_heat_maps(
        handmade(1, contribution=contribution), Image.new("RGB", (50, 50), "grey"), "contribution"
    )
    assert tile(picture, 1, 1).std() == 0 and tile(picture, 0, 1).std() > 5


def test_a_picture_is_written_whole(tmp_path):
    save_picture(Image.new("RGB", (5, 4), "red"), tmp_path / "new" / "a.png")
    with Image.open(tmp_path / "new" / "a.png") as back:
        assert back.format == "PNG" and back.size == (5, 4)


def test_a_class_is_found_where_it_is(lite):
    """Two drawings side by side on one canvas: the contribution for each name lies on its own half."""
    folder = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
    canvas = Image.new("RGB", (224, 224), "white")
    for left, file in ((0, "mammal/1f408.webp"), (112, "musical-instrument/1f3b8.webp")):
        with Image.open(folder / file) as drawing:
            canvas.paste(drawing.convert("RGB").resize((112, 112)), (left, 56))
    method = build_method(find_method("zeroshot"), make_config(find_method("zeroshot")), lite, seed=0)
    method.prepare(("cat", "guitar", "car"), "a photo of a {}.")
    found = heat_maps(predictive(method), canvas, ["cat", "guitar"])
    for reading in READINGS:
        cat, guitar = found.of(reading)[0]
        assert cat[2:5, :3].mean() > cat[2:5, 4:].mean()
        assert guitar[2:5, 4:].mean() > guitar[2:5, :3].mean()


def test_pbprompt_free_and_mean_prompts_are_one_map(tiny_vit, photo):
    for overrides in (("prompts=free",), ("reading=mean",)):
        method = build_method(PBPrompt, make_config(PBPrompt, overrides=overrides), tiny_vit, seed=1)
        method.prepare(CLASSES, "")
        assert len(heat_maps(predictive(method), photo).contribution) == 1
