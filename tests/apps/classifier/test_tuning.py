"""Images and classes that count unequally."""

import numpy as np
import pytest

from pbprompt import InputError, PromptClassifier
from pbprompt.apps.classifier.inputs import read_sample_weight
from pbprompt.apps.classifier.tuning import item_weights
from pbprompt.registry import methods
from pbprompt.vision.images.items import Item

ITEMS = [Item("0", 0), Item("1", 0), Item("2", 0), Item("3", 1)]


@pytest.fixture(scope="module")
def table(tiny_vit):
    """Six images of two classes, a third of them far off."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(2, tiny_vit.embed_dim))
    rows = np.array([0, 0, 0, 1, 1, 1])
    x = centres[rows] + 0.3 * random.normal(size=(6, tiny_vit.embed_dim))
    x[[2, 5]] = x[[5, 2]]  # labelled wrongly
    return x.astype(np.float32), np.array(["cat", "dog"])[rows]


def fitted(tiny_vit, table, method="conjugate", weight=None, **parameters):
    classifier = PromptClassifier(method, backbone=tiny_vit, samples=2, **parameters)
    return classifier.fit(*table, sample_weight=weight)


def test_balanced_makes_the_classes_alike():
    weights = item_weights(ITEMS, ["cat", "dog"], "balanced", None)
    assert weights == pytest.approx({"0": 2 / 3, "1": 2 / 3, "2": 2 / 3, "3": 2})


def test_weights_of_images_and_of_classes_multiply():
    weights = item_weights(ITEMS, ["cat", "dog"], {"dog": 5}, {"0": 1, "1": 2, "2": 1, "3": 3})
    assert weights == {"0": 1, "1": 2, "2": 1, "3": 15}
    assert item_weights(ITEMS, ["cat", "dog"], None, None) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("even", "class_weight is 'even'"),
        ({"bird": 2}, "'bird', which is no class of y"),
        ({"cat": 0}, "not above 0"),
    ],
)
def test_class_weights_are_checked(given, message):
    with pytest.raises(InputError, match=message):
        item_weights(ITEMS, ["cat", "dog"], given, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2], r"shape \(2,\)"),
        ([1, -1, 1], "negative"),
        ([1, np.nan, 1], "NaN"),
        ([0, 0, 0], "zero for every image"),
        (["a", "b", "c"], "no numbers"),
    ],
)
def test_sample_weights_are_checked(given, message):
    with pytest.raises(InputError, match=message):
        read_sample_weight(given, 3)
    assert read_sample_weight(2, 3).tolist() == [2, 2, 2]


def test_equal_weights_change_nothing(tiny_vit, table):
    plain, equal = fitted(tiny_vit, table), fitted(tiny_vit, table, weight=np.full(6, 7.0))
    np.testing.assert_allclose(equal.predict_proba(table[0]), plain.predict_proba(table[0]), atol=1e-6)


def test_weight_0_leaves_an_image_out(tiny_vit, table):
    x, y = table
    right = [0, 1, 3, 4]
    few = fitted(tiny_vit, (x[right], y[right]))
    weighted = fitted(tiny_vit, table, weight=[1, 1, 0, 1, 1, 0])
    np.testing.assert_allclose(weighted.predict_proba(x), few.predict_proba(x), atol=1e-6)


def test_little_weight_is_little_influence(tiny_vit, table):
    """The nearer to 0 the weight of wrong labels, the nearer to the model without them."""
    x, y = table
    right = [0, 1, 3, 4]
    without = fitted(tiny_vit, (x[right], y[right])).predict_proba(x)
    gaps = [
        np.abs(fitted(tiny_vit, table, weight=[1, 1, w, 1, 1, w]).predict_proba(x) - without).max()
        for w in (1, 0.1, 0.001)
    ]
    assert gaps[0] > gaps[1] > gaps[2]


def test_a_heavier_class_pulls_a_method_that_takes_steps(tiny_vit, table):
    brief = {"settings": {"epochs": 20, "warmup_epochs": 0, "learning_rate": 0.1, "batch_size": 6}}
    x, _ = table
    light, heavy = (
        fitted(tiny_vit, table, "taskres", class_weight={"cat": weight}, **brief)
        .predict_proba(x)[:, 0]
        .mean()
        for weight in (0.05, 20)
    )
    assert heavy > light + 0.1


def test_weights_stay_with_a_saved_model(tiny_vit, table, tmp_path):
    """Images learned later count once beside those of unequal weight."""
    x, y = table
    classifier = fitted(tiny_vit, table, weight=[1, 2, 0.1, 1, 2, 0.1])
    classifier.save_pretrained(tmp_path / "model")
    again = PromptClassifier.from_pretrained(tmp_path / "model", backbone=tiny_vit)
    kept, before = (each.method_.fitted.shown.evidence.kept.weights for each in (again, classifier))
    np.testing.assert_array_equal(kept, before)
    for each in (classifier, again):
        each.partial_fit(x[:1], y[:1])
    np.testing.assert_allclose(again.predict_proba(x), classifier.predict_proba(x), atol=1e-6)
    assert again.method_.fitted.shown.evidence.kept.weights[-1] == 1


@pytest.mark.parametrize(
    "method", [name for name, kind in sorted(methods().items()) if not kind.takes_weights]
)
def test_others_refuse(tiny_vit, table, method):
    with pytest.raises(InputError, match="cannot weigh images"):
        fitted(tiny_vit, table, method, weight=[1, 1, 1, 1, 1, 2])


def test_features_of_nothing_but_zeros_are_refused(tiny_vit):
    zeros = np.zeros((4, tiny_vit.embed_dim))
    with pytest.raises(InputError, match="X holds nothing but zeros"):
        PromptClassifier(backbone=tiny_vit).fit(zeros, ["a", "b", "a", "b"])


def test_weights_are_of_all_rows_beside_some_without_a_label(tiny_vit, table):
    x, y = table
    bare = [*y[:5], None]
    one, other, without = (
        fitted(tiny_vit, (x, bare), weight=weight).predict_proba(x)
        for weight in ([1, 1, 0, 1, 1, 7], [1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1])
    )
    np.testing.assert_array_equal(one, other)
    assert not np.allclose(one, without)
    with pytest.raises(InputError, match=r"y has the shape \(7,\)"):
        fitted(tiny_vit, (x, [*y, None]))
