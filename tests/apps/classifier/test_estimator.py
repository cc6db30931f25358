"""scikit-learn's own checks, its searches and pipelines, and life without it.

The checks fit on tables of 1 to 20 columns, while features of a backbone have one width. `AnyWidth` lays such
tables into the first columns of the joint space; all else is `PromptClassifier`'s own: every check applies.
"""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import (
    check_estimator,
    estimator_checks_generator,
    parametrize_with_checks,
)

from pbprompt import PromptClassifier
from pbprompt.apps.classifier.inputs import feature_table

BRIEF = {"epochs": 3, "warmup_epochs": 0, "train_samples": 1, "batch_size": 512}
# Those in which the method matters; with the fast method below all of them run.
ON_PBPROMPT = {
    "check_classifiers_train",
    "check_dict_unchanged",
    "check_estimators_pickle",
    "check_fit_idempotent",
    "check_methods_subset_invariance",
}


class AnyWidth(PromptClassifier):
    def fit(self, X, y=None):  # noqa: N803
        table = feature_table(X)
        super().fit(self._padded(table), y)
        self.n_features_in_ = table.shape[1]
        return self

    def _partial_fit(self, X, y, classes=None):  # noqa: N803
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        return super()._partial_fit(self._padded(feature_table(X, self.n_features_in_)), y, classes)

    def predict_uncertainty(self, X):  # noqa: N803
        self._check_is_fitted()
        return super().predict_uncertainty(self._padded(feature_table(X, self.n_features_in_)))

    def _padded(self, table):
        return np.pad(table, ((0, 0), (0, self._towers().embed_dim - table.shape[1])))


NO_WEIGHTS = {
    "check_class_weight_classifiers": "a class's mean is where it is, however much the class counts"
}


@parametrize_with_checks([AnyWidth("nearest-mean")], expected_failed_checks=lambda estimator: NO_WEIGHTS)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def brief_checks():
    pairs = estimator_checks_generator(AnyWidth("pbprompt", settings=BRIEF, samples=2))
    chosen = [pair for pair in pairs if pair[1].func.__name__ in ON_PBPROMPT]
    return [pytest.param(*pair, id=f"{n}-{pair[1].func.__name__}") for n, pair in enumerate(chosen)]


@pytest.mark.parametrize(("estimator", "check"), brief_checks())
def test_scikit_learns_checks_on_pbprompt(estimator, check):
    check(estimator)


@parametrize_with_checks([AnyWidth(samples=2)])
def test_scikit_learns_checks_on_the_default(estimator, check):
    check(estimator)


def test_nothing_but_the_width_keeps_a_check_from_passing():
    said = check_estimator(PromptClassifier(method="nearest-mean"), on_fail=None, on_skip=None)
    failed = [result for result in said if result["status"] == "failed"]
    assert failed
    assert all("features as input" in told(result["exception"]) for result in failed)


def told(error):
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


@pytest.fixture(scope="module")
def table(lite):
    """Features around three text-like directions, with their labels."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(3, lite.embed_dim))
    rows = np.repeat(np.arange(3), 4)
    noise = 0.1 * random.normal(size=(12, lite.embed_dim))
    return (centres[rows] + noise).astype(np.float32), np.array(["cat", "dog", "car"])[rows]


def test_parameters():
    asked = {"epochs": 2}
    classifier = PromptClassifier("coop", settings=asked, shots=4)
    assert repr(classifier) == "PromptClassifier(method='coop', settings={'epochs': 2}, shots=4)"
    assert "class_names=array(" in repr(PromptClassifier(class_names=np.array(["cat", "dog"])))
    assert classifier.get_params()["settings"] is asked
    assert clone(classifier).get_params() == classifier.get_params()
    assert classifier.set_params(method="pbprompt", samples=3) is classifier
    assert (classifier.method, classifier.samples) == ("pbprompt", 3)
    with pytest.raises(ValueError, match="Invalid parameter 'epochs' for estimator PromptClassifier"):
        classifier.set_params(epochs=2)


def test_a_search_over_methods_and_settings(table):
    x, y = table
    grid = [
        {"method": ["coop"], "settings": [{"epochs": 1}, {"epochs": np.int64(2), "learning_rate": 0.01}]},
        {"method": ["nearest-mean", "zeroshot"]},
    ]
    search = GridSearchCV(PromptClassifier(), grid, cv=2, error_score="raise").fit(x, y)
    tried, scores = search.cv_results_["params"], search.cv_results_["mean_test_score"]
    assert [row["method"] for row in tried] == ["coop", "coop", "nearest-mean", "zeroshot"]
    assert scores[2] == 1.0 > scores[3]  # clusters that are far apart, at places no text knows of
    assert search.best_estimator_.method == "nearest-mean"
    assert search.predict(x).tolist() == y.tolist()


def test_a_search_over_single_settings(table):
    x, y = table
    classifier = PromptClassifier("taskres", settings={"warmup_epochs": 0, "learning_rate": 0.1})
    grid = {"settings__epochs": np.array([1, 20]), "settings__alpha": [0.5]}
    search = GridSearchCV(classifier, grid, cv=2, error_score="raise").fit(x, y)
    assert search.best_params_ == {"settings__epochs": 20, "settings__alpha": 0.5}
    assert search.best_estimator_.method_.config.epochs == 20
    assert search.best_estimator_.method_.config.learning_rate == 0.1
    assert classifier.settings == {"warmup_epochs": 0, "learning_rate": 0.1}


def test_single_settings_are_parameters():
    asked = {"epochs": 2}
    classifier = PromptClassifier("coop", settings=asked)
    assert classifier.get_params()["settings__epochs"] == 2
    assert "settings__epochs" not in classifier.get_params(deep=False)
    classifier.set_params(settings__epochs=3, settings__words="", shots=2)
    assert classifier.settings == {"epochs": 3, "words": ""} and asked == {"epochs": 2}
    assert clone(classifier).settings == classifier.settings


def test_weights_through_scikit_learn(table):
    x, y = table
    search = GridSearchCV(PromptClassifier(), {"class_weight": [None, "balanced"]}, cv=2, error_score="raise")
    search.fit(x, y, sample_weight=np.linspace(1, 2, len(y)))
    assert search.score(x, y) == 1.0


def test_a_pipeline(table):
    x, y = table
    pipeline = make_pipeline(FunctionTransformer(lambda x: x * 2), PromptClassifier("nearest-mean"))
    alone = PromptClassifier("nearest-mean").fit(x, y)
    np.testing.assert_allclose(pipeline.fit(x, y).predict_proba(x), alone.predict_proba(x), atol=1e-5)
    assert pipeline.classes_.tolist() == ["car", "cat", "dog"]
    assert cross_val_score(pipeline, x, y, cv=2, scoring="neg_log_loss", error_score="raise").mean() > -0.5


def test_before_fit(table):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        PromptClassifier().predict(table[0])
    assert not hasattr(PromptClassifier(), "method_")


WITHOUT = """
import sys
sys.modules["sklearn"] = None
import numpy as np
from pbprompt import InputError, PromptClassifier
x, y = np.load(sys.argv[1]), ["cat", "dog", "car"] * 4
classifier = PromptClassifier("nearest-mean")
assert not hasattr(classifier, "method_")
try:
    classifier.predict(x)
except InputError as error:
    assert "not fitted yet" in str(error)
assert classifier.fit(x, y).score(x, y) == 1.0
"""


def test_without_scikit_learn(table, tmp_path):
    x, _ = table
    np.save(tmp_path / "x.npy", x[[0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]])
    subprocess.run([sys.executable, "-c", WITHOUT, tmp_path / "x.npy"], check=True)
