import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt import EvidenceClassifier, PromptClassifier
from pbprompt.apps.classifier.inputs import (
    as_image,
    as_pictures,
    encode_inputs,
    feature_table,
    names_of,
    read_labels,
)
from pbprompt.errors import InputError
from pbprompt.vision.features.cache import Features
from pbprompt.vision.images.names import read_name
from pbprompt.vision.towers.backbone import Encoded


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(0, 256, (3, 40, 40, 3), dtype=np.uint8)


@pytest.fixture
def files(tmp_path, pixels):
    for number, array in enumerate(pixels):
        Image.fromarray(array).save(tmp_path / f"{number}.png")
    return [tmp_path / f"{number}.png" for number in range(len(pixels))]


def test_images_are_encoded_alike_however_they_come(tiny_vit, pixels, files):
    with torch.inference_mode():
        tensors = [tiny_vit.preprocess(Image.fromarray(array)) for array in pixels]
        expected = tiny_vit.image(torch.stack(tensors))
    for x in (
        files,
        [str(file) for file in files],
        np.array([str(file) for file in files]),
        np.array(files, dtype=object),
        [Image.open(file) for file in files],
        pixels,
        list(pixels),
        torch.from_numpy(pixels),
        [files[0], Image.open(files[1]), pixels[2]],
    ):
        encoded = encode_inputs(x, tiny_vit)
        torch.testing.assert_close(encoded.global_, expected.global_, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(encoded.patches.float(), expected.patches, rtol=1e-2, atol=1e-2)


def test_features_are_taken_as_they_are(tiny_vit):
    global_, patches = torch.randn(4, 32), torch.randn(4, 5, 32)
    table = torch.cat([global_[:, None], patches], dim=1).numpy()
    for x in (
        Features(global_, patches, torch.zeros(4, dtype=torch.long)),
        Encoded(global_, patches),
        table,
        table.tolist(),
    ):
        encoded = encode_inputs(x, tiny_vit)
        torch.testing.assert_close(encoded.global_, global_)
        torch.testing.assert_close(encoded.patches, patches)
    alone = encode_inputs(global_.double().numpy(), tiny_vit)  # the global vector is the one patch
    torch.testing.assert_close(alone.global_, global_)
    torch.testing.assert_close(alone.patches, global_[:, None])


def test_a_picture_in_memory_is_read_as_its_file_is(tmp_path, pixels):
    clear = Image.fromarray(pixels[0]).convert("RGBA")
    clear.putalpha(0)
    assert np.asarray(as_image(clear)).min() == 255  # transparency lies on white
    turned = Image.fromarray(pixels[0][:20])
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    assert as_image(Image.open(tmp_path / "turned.png")).size == (20, 40)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ("photo.jpg", "photo.jpg does not exist: give an image"),
        ([Image.new("RGB", (2, 2)), 3], r"X\[1\] is int, no image"),
        (np.zeros((2, 8, 8), np.uint8), r"images have the shape \[n, h, w, 3\]"),
        ([np.zeros((8, 8, 3))], r"images are uint8 \[h, w, 3\]"),
        (np.zeros((2, 8, 8, 3)), "shape"),
        (np.zeros((2, 7)), "X has 7 features, but PromptClassifier is expecting 32 features as input"),
        (Encoded(torch.zeros(2, 7), torch.zeros(2, 1, 7)), "expecting 32 features"),
        (np.zeros((2, 1, 32)), "behind the global vector come patches"),
        (np.full((2, 32), np.nan), "NaN"),
        (np.full((2, 32), 1e300), "too large for float32"),
        (np.zeros((2, 32), complex), "Complex data not supported"),
        (np.zeros((0, 32)), "0 sample"),
        ([], "Reshape your data"),
        ([[1.0], [1.0, 2.0]], "ragged"),
        ([["a.jpg"], ["b.jpg"]], "holds no numbers"),
        (np.zeros(32), "Reshape your data"),
        (["missing.jpg"], r"cannot read image missing\.jpg"),
    ],
)
def test_what_cannot_be_used_is_told(tiny_vit, x, message):
    with pytest.raises(InputError, match=message) as error:
        encode_inputs(x, tiny_vit)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("factor", "near"), [(1e-40, 5e-3), (1e-38, 1e-3), (1e-20, 1e-3), (1e19, 1e-3), (1e37, 1e-3)]
)
def test_only_the_directions_of_features_count(factor, near):
    """Though their squares are no numbers of float32; at 1e-40 the features have four digits left."""
    generator = np.random.default_rng(0)
    y = np.arange(12) % 3
    x = (np.eye(3, 256)[y] + 0.02 * generator.normal(size=(12, 256))).astype(np.float32)
    for kind in (EvidenceClassifier, PromptClassifier):
        plain = kind().fit(x, y).predict_proba(x)
        far = (x * np.float64(factor)).astype(np.float32)
        np.testing.assert_allclose(kind().fit(far, y).predict_proba(far), plain, atol=near)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 5), st.integers(1, 4), st.sampled_from(["float32", "float64", "int32", "uint8", "object"])
)
def test_a_table_of_numbers_is_no_picture(rows, width, dtype):
    x = np.arange(rows * width).reshape(rows, width).astype(dtype)
    assert as_pictures(x) is None
    assert as_pictures(x.tolist()) is None
    np.testing.assert_array_equal(feature_table(x), x.astype("float32"))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed"),
        (["a", "b"], "one label for each of the 4 images"),
        ([["a", "b"]] * 4, "several labels an image, and PromptClassifier takes one"),
        ([["a"], ["a", "b"], [], ["b"]], "several labels an image, and PromptClassifier takes one"),
        ([{"a", "b"}, {"a"}, {"b"}, {"a"}], "several labels an image, and PromptClassifier takes one"),
        (np.eye(4), "several labels an image, and PromptClassifier takes one"),
        ([1.0, 2.0, np.nan, 1.0], "NaN"),
        ([1.0, 2.0, 1.5, 1.0], "Unknown label type: continuous"),
        (np.array(["a", 1, "b", 2], dtype=object), "Unknown label type: y holds int, str"),
        ([1, "1", 2, 1], "Unknown label type: y holds int, str"),
        (np.array([None] * 4), "Unknown label type: y holds NoneType"),
        (["a"] * 4, "1 class"),
        (np.array([1j, 2, 1, 2]), "Complex"),
    ],
)
def test_labels_that_are_none_are_told(y, message):
    with pytest.raises(InputError, match=message):
        read_labels(y, 4)


def test_labels_keep_their_values():
    assert read_labels(list(np.array(["b", "a"])), 2).tolist() == ["b", "a"]
    for y in (["b", "a", "b"], [2, 1, 2], [True, False, True], [3.0, 4.0, 3.0]):
        assert read_labels(y, 3).tolist() == y
        assert read_labels(np.array(y, dtype=object), 3).tolist() == y
    with pytest.warns(UserWarning, match="A column-vector y was passed"):
        assert read_labels([["b"], ["a"]], 2).tolist() == ["b", "a"]


def test_names_of_labels():
    for labels, class_names, texts, read in (
        (["golden_retriever", "cat"], None, ("golden_retriever", "cat"), ["golden retriever", "cat"]),
        ([3, -1], None, ("3", "-1"), ["3", "-1"]),
        ([0, 2], ["cat", "dog", "red_panda"], ("0", "2"), ["cat", "red panda"]),
        (["n1", "n2"], {"n2": "dog", "n1": "cat"}, ("n1", "n2"), ["cat", "dog"]),
    ):
        found = names_of(labels, class_names)
        assert found == texts and [*map(read_name, found)] == read
    for labels, names, message in (
        ([0, 2], ["cat", "dog"], "none for label 2"),
        ([0, 1], {0: "cat"}, "none for label 1"),
        (["a", "b"], ["cat", "dog"], "none for label 'a'"),
        (["a", "A"], None, "both named"),
        (["a", "_"], None, "no readable name"),
    ):
        with pytest.raises(InputError, match=message):
            names_of(labels, names)
