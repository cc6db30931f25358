"""The default model from features alone: scikit-learn's checks, names, several models, a file."""

# ruff: noqa: N806 - X and Z are scikit-learn's and the model's names

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from pbprompt import EvidenceClassifier, InputError

NOT_APPLICABLE = {
    "check_classifiers_classes": "-1 is an unlabelled row, as in scikit-learn's semi-supervised estimators",
    "check_sample_weight_equivalence_on_dense_data": "h goes by single examples, however often each counts",
}


@parametrize_with_checks([EvidenceClassifier()], expected_failed_checks=lambda _: NOT_APPLICABLE)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def drawn(per_class=6, classes=4, width=24, seed=0, noise=0.5):
    chance = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    y = np.repeat(np.array(["cat", "dog", "elk", "owl"])[:classes], per_class)
    X = centres.repeat(per_class, axis=0) + noise * chance.normal(size=(len(y), width))
    return X, y, centres


def test_names_tell_and_left_out_rows_are_answered():
    X, y, centres = drawn(2, noise=2.0)
    Z, truth, _ = drawn(50, seed=1, noise=2.0)
    with_names = EvidenceClassifier(centres).fit(X, y)
    assert with_names.score(Z, truth) > EvidenceClassifier().fit(X, y).score(Z, truth)
    by_mapping = EvidenceClassifier(dict(zip(np.unique(y), centres, strict=True))).fit(X, y)
    np.testing.assert_allclose(by_mapping.predict_proba(Z), with_names.predict_proba(Z))
    assert with_names.left_out_.shape == (8, 4)
    np.testing.assert_allclose(with_names.left_out_.sum(1), 1)
    assert set(with_names.weights_) == {"gaussians", "kernel", "nearest", "names"}


def test_rows_of_nan_and_missing_labels_are_names_without_a_text():
    X, y, centres = drawn()
    texts = centres.copy()
    texts[1] = np.nan
    missing = {label: row for label, row in zip(np.unique(y), centres, strict=True) if label != "dog"}
    one, other = (EvidenceClassifier(each).fit(X, y).predict_proba(X) for each in (texts, missing))
    np.testing.assert_allclose(one, other)
    assert np.isfinite(one).all()


def test_several_models():
    X, y, centres = drawn(4, noise=2.5)
    X2, _, _ = drawn(4, width=10, seed=5, noise=1.0)
    Z, truth, _ = drawn(40, seed=2, noise=2.5)
    Z2, _, _ = drawn(40, width=10, seed=6, noise=1.0)
    both = EvidenceClassifier([centres, None], [100.0, 50.0]).fit([X, X2], y)
    assert both.score([Z, Z2], truth) >= EvidenceClassifier(centres).fit(X, y).score(Z, truth)
    assert {"gaussians", "1/gaussians"} <= set(both.weights_)
    with pytest.raises(InputError, match="list of arrays"):
        both.predict(Z)


def test_learning_in_parts_is_fitting_on_all():
    X, y, centres = drawn()
    Z = drawn(seed=3)[0]
    rows = np.random.default_rng(0).permutation(len(y))
    mapping = dict(zip(np.unique(y), centres, strict=True))
    whole = EvidenceClassifier(mapping).fit(X[rows], y[rows])
    parts = EvidenceClassifier(mapping)
    for some in np.array_split(rows, 3):
        parts.partial_fit(X[some], y[some])
    np.testing.assert_allclose(parts.predict_proba(Z), whole.predict_proba(Z), atol=1e-6)


def test_a_class_that_comes_later_is_known_by_its_name():
    X, y, centres = drawn()
    mapping = dict(zip(np.unique(y), centres, strict=True))
    some = y != "owl"
    classifier = EvidenceClassifier(mapping).partial_fit(X[some], y[some], classes=np.unique(y))
    assert classifier.classes_.tolist() == ["cat", "dog", "elk", "owl"]
    assert (classifier.predict(X[~some]) == "owl").mean() > 0.5


def test_unlabelled_rows_and_none_with_a_label():
    X, y, centres = drawn(30, noise=1.0)
    mapping = dict(zip(np.unique(y), centres, strict=True))
    few = [label if n % 10 == 0 else None for n, label in enumerate(y)]
    assert EvidenceClassifier(mapping).fit(X, few).score(X, y) > 0.9
    longer = ["catamaran" if label == "cat" else label for label in few]
    assert "catamaran" in EvidenceClassifier().fit(X[::-1], longer[::-1]).classes_
    numbers = np.where(np.arange(len(y)) % 10 == 0, np.searchsorted(np.unique(y), y), -1)
    fitted = EvidenceClassifier().fit(X, numbers)
    assert fitted.classes_.tolist() == [0, 1, 2, 3] and np.isnan(fitted.left_out_[1]).all()
    assert EvidenceClassifier(mapping).fit(X).score(X, y) > 0.9
    with pytest.raises(InputError, match="mapping"):
        EvidenceClassifier(centres).fit(X)


def test_sets_hold_the_true_class_and_strange_rows_are_unfamiliar():
    X, y, centres = drawn(40, noise=2.0)
    Z, truth, _ = drawn(100, seed=4, noise=2.0)
    classifier = EvidenceClassifier(centres).fit(X, y)
    inside = classifier.predict_sets(Z, 0.8)[np.arange(len(Z)), np.searchsorted(classifier.classes_, truth)]
    assert 0.7 < inside.mean() < 0.95
    strange = np.random.default_rng(7).normal(size=(50, 24)) - 5
    assert np.median(classifier.familiarity(strange)) < 0.1 < 0.3 < np.median(classifier.familiarity(Z))


def test_a_file_holds_all_of_it(tmp_path):
    X, y, centres = drawn()
    X2 = drawn(width=10, seed=5)[0]
    for classifier, rows in (
        (EvidenceClassifier(centres).fit(X, y), X),
        (EvidenceClassifier([centres, None]).fit([X, X2], y), [X, X2]),
    ):
        classifier.save(tmp_path / "model.safetensors")
        again = EvidenceClassifier.load(tmp_path / "model.safetensors")
        np.testing.assert_allclose(again.predict_proba(rows), classifier.predict_proba(rows), atol=1e-7)
        np.testing.assert_array_equal(again.predict_sets(rows), classifier.predict_sets(rows))
    (tmp_path / "other").write_text("nothing")
    with pytest.raises(InputError, match="EvidenceClassifier"):
        EvidenceClassifier.load(tmp_path / "other")


@pytest.mark.parametrize(
    "cut", [b'"classes":', b'"widths":', b'"scales":', b'"text/0":', b'"sums":', b'"[3]"', b'"moment":']
)
def test_a_file_that_was_changed_is_refused_in_a_sentence(tmp_path, cut):
    path = tmp_path / "c.safetensors"
    EvidenceClassifier(np.eye(2, 3)).fit(np.eye(4, 3), [0, 0, 1, 1]).save(path)
    content = path.read_bytes()
    assert cut in content
    path.write_bytes(content.replace(cut, cut[:-3] + b"x" + cut[-2:]))
    with pytest.raises(InputError, match=r"c\.safetensors"):
        EvidenceClassifier.load(path)


def test_scores_by_cross_validation():
    X, y, _ = drawn()
    assert cross_val_score(EvidenceClassifier(), X, y, cv=3).mean() > 0.8


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"text_features": np.ones((3, 24))}, "row for each of"),
        ({"text_features": np.full((4, 24), np.inf)}, "infinity"),
        ({"logit_scale": -1.0}, "above 0"),
        ({"logit_scale": [1.0, 2.0]}, "above 0"),
        ({"logit_scale": "a"}, "above 0"),
        ({"text_features": {"Cat": np.ones(24)}}, "none of the labels: its keys are as \\['Cat'\\]"),
        ({"text_features": {"cat": ["a"] * 24}}, "text_features\\['cat'\\] holds no numbers"),
    ],
)
def test_what_is_wrong_is_named(given, said):
    X, y, _ = drawn()
    with pytest.raises(InputError, match=said):
        EvidenceClassifier(**given).fit(X, y)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"groups": [0, 1]}, "groups has 2 rows, and X 24"),
        ({"sample_weight": ["a"] * 24}, "sample_weight holds no numbers"),
    ],
)
def test_what_is_wrong_with_rows_is_named(given, said):
    X, y, _ = drawn()
    with pytest.raises(InputError, match=said):
        EvidenceClassifier().fit(X, y, **given)


@pytest.mark.parametrize("coverage", [0, 1, float("nan"), "0.9", [0.8, 0.9], None])
def test_a_coverage_is_a_share(coverage):
    X, y, _ = drawn()
    with pytest.raises(InputError, match=r"coverage is .*: give a share"):
        EvidenceClassifier().fit(X, y).predict_sets(X, coverage)


def test_unfitted_says_how_to_load_one(tmp_path):
    with pytest.raises(Exception, match=r"call fit, or load one with load$"):
        EvidenceClassifier().predict(np.eye(3))


def test_series_are_held_out_whole(tmp_path):
    """Rows that are twins vouch for each other, unless it is said that they are of one series."""
    chance = np.random.default_rng(3)
    X, y, centres = drawn(5, noise=2.5)
    X, y, groups = (part.repeat(3, axis=0) for part in (X, y, np.arange(len(y))))
    X = X + 1e-3 * chance.normal(size=X.shape)
    Z, truth, _ = drawn(100, seed=4, noise=2.5)
    honest, fooled = (EvidenceClassifier(centres).fit(X, y, groups=each) for each in (groups, None))
    own = np.searchsorted(honest.classes_, y)

    def right(classifier):
        return (classifier.left_out_.argmax(1) == own).mean()

    assert right(fooled) == 1 and abs(right(honest) - honest.score(Z, truth)) < 0.2
    truths = np.arange(len(Z)), np.searchsorted(honest.classes_, truth)
    inside = [each.predict_sets(Z, 0.8)[truths].mean() for each in (honest, fooled)]
    assert inside[0] > 0.7 > inside[1]
    honest.save(tmp_path / "c.safetensors")
    again = EvidenceClassifier.load(tmp_path / "c.safetensors")
    np.testing.assert_array_equal(again.predict_sets(Z), honest.predict_sets(Z))
    single = np.where(y == "cat", 0, groups)  # a class of a single series cannot be judged
    assert np.isnan(EvidenceClassifier().fit(X, y, groups=single).left_out_[y == "cat"]).all()


@pytest.mark.parametrize("classes", [2, 4])
def test_decisions_are_log_probabilities(classes):
    X, y, centres = drawn(classes=classes)
    fitted = EvidenceClassifier(centres).fit(X, y)
    decided, said = fitted.decision_function(X), fitted.predict_proba(X)
    if classes == 2:
        np.testing.assert_allclose(1 / (1 + np.exp(-decided)), said[:, 1])
    else:
        np.testing.assert_allclose(np.exp(decided), said)
