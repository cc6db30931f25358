"""The figures against scikit-learn, closed forms and plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from sklearn.metrics import accuracy_score, f1_score, log_loss, recall_score, top_k_accuracy_score

from pbprompt.model.metrics import metrics
from pbprompt.model.metrics.evaluation import Evaluation
from pbprompt.model.metrics.reliability import confidence_bins
from pbprompt.model.metrics.selective import area_under_risk_coverage

QUICK = settings(deadline=None, max_examples=40)


def drawn(seed: int, n: int = 300, classes: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities that lean towards the labels, and labels of every class."""
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), generator.integers(0, classes, n - classes)])
    logits = generator.normal(size=(n, classes)) + 1.5 * np.eye(classes)[labels]
    return log_softmax(logits, axis=1), labels


@st.composite
def predictions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Few items and coarse logits, so that ties and absent classes are common."""
    n, classes = draw(st.integers(1, 12)), draw(st.integers(1, 7))
    logits = draw(st.lists(st.integers(-3, 3), min_size=n * classes, max_size=n * classes))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n))
    return log_softmax(np.reshape(logits, (n, classes)).astype(float), axis=1), np.array(labels)


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_scikit_learn(seed):
    rows, labels = drawn(seed)
    predicted = rows.argmax(axis=1)
    found = metrics.summary(rows, labels)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert found["nll"] == pytest.approx(log_loss(labels, np.exp(rows)))
    assert found["top5"] == pytest.approx(top_k_accuracy_score(labels, rows, k=5))


def test_brier_is_the_squared_distance_to_the_label_summed_over_classes():
    rows, labels = drawn(3)
    expected = ((np.exp(rows) - np.eye(8)[labels]) ** 2).sum(axis=1).mean()
    assert metrics.summary(rows, labels)["brier"] == pytest.approx(expected)
    assert metrics.summary([[-np.inf, 0.0]], [0])["brier"] == 2.0
    assert metrics.summary(np.log([[0.25] * 4]), [2])["brier"] == pytest.approx(0.75)


def test_the_argument_stays_as_it_was():
    rows = np.log([[0.2, 0.8]])
    metrics.summary(rows, [1])
    np.testing.assert_array_equal(rows, np.log([[0.2, 0.8]]))


def test_uniform_predictions_cost_log_c():
    uniform = np.full((5, 10), -math.log(10))
    assert metrics.summary(uniform, np.arange(5))["nll"] == pytest.approx(math.log(10))


def test_a_true_class_without_probability_costs_the_floor():
    rows = [[0.0, -np.inf], [0.0, -np.inf]]
    assert metrics.summary(rows, [0, 1])["nll"] == pytest.approx(-metrics.LOG_FLOOR / 2)
    assert metrics.summary(rows, [0, 1])["nll"] > 350


def test_a_tie_goes_to_the_lowest_class():
    even = np.log(np.full((2, 6), 1 / 6))
    assert metrics.summary(even, [0, 1])["accuracy"] == 0.5
    assert metrics.summary(even, [4, 5])["top5"] == 0.5


def test_macro_f1_runs_over_the_classes_present_or_predicted():
    # Class 0: 1/2; class 1, present and never predicted: 0; class 2, predicted and absent: 0.
    rows, labels = log_softmax(9 * np.eye(4)[[0, 0, 2]], axis=1), [0, 1, 0]
    found = metrics.summary(rows, labels)["macro_f1"]
    assert found == pytest.approx((0.5 + 0 + 0) / 3)
    assert found == pytest.approx(f1_score(labels, [0, 0, 2], average="macro"))


def test_harmonic_mean():
    assert metrics.harmonic_mean(0.6, 0.3) == pytest.approx(0.4)
    assert metrics.harmonic_mean(80.47, 71.69) == pytest.approx(75.83, abs=0.005)
    assert metrics.harmonic_mean(0, 0.9) == 0
    assert metrics.harmonic_mean(0, 0) == 0
    for pair in [(-0.1, 0.5), (0.5, math.nan), (math.inf, 0.5)]:
        with pytest.raises(ValueError, match="base and new"):
            metrics.harmonic_mean(*pair)


def test_summary_gathers_the_standard_set():
    rows, labels = drawn(4)
    found = metrics.summary(rows, labels)
    probabilities = np.exp(rows)
    surely = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    assert found == pytest.approx(
        {
            "accuracy": accuracy_score(labels, rows.argmax(axis=1)),
            "top5": top_k_accuracy_score(labels, rows, k=5),
            "macro_f1": f1_score(labels, rows.argmax(axis=1), average="macro"),
            "macro_recall": recall_score(labels, rows.argmax(axis=1), average="macro"),
            "nll": log_loss(labels, probabilities),
            "brier": ((probabilities - np.eye(8)[labels]) ** 2).sum(axis=1).mean(),
            "ece": confidence_bins(*surely, bins=15).error,
            "ece_adaptive": confidence_bins(*surely, bins=15, adaptive=True).error,
            "aurc": area_under_risk_coverage(*surely),
        }
    )
    assert all(type(value) is float for value in found.values())


def test_summary_has_no_top5_for_five_classes_or_fewer():
    assert "top5" not in metrics.summary(*drawn(5, classes=5))
    assert "top5" in metrics.summary(*drawn(5, classes=6))


def test_summary_takes_half_precision_rows():
    rows, labels = drawn(6)
    half = metrics.summary(rows.astype(np.float16), labels)
    assert half == pytest.approx(metrics.summary(rows, labels), abs=0.02)


@QUICK
@given(predictions(), st.randoms(use_true_random=False))
def test_order_of_items_does_not_matter_and_figures_stay_in_bounds(items, random):
    rows, labels = items
    found = metrics.summary(rows, labels)
    order = random.sample(range(len(labels)), len(labels))
    assert metrics.summary(rows[order], labels[order]) == pytest.approx(found, abs=1e-12)
    assert found.pop("nll") >= -1e-12
    assert -1e-12 <= found.pop("brier") <= 2
    assert all(0 <= value <= 1 + 1e-12 for value in found.values())


@QUICK
@given(predictions())
def test_top_k_counts_the_labels_among_a_stable_descending_order(items):
    rows, labels = items
    found = metrics.summary(rows, labels)
    for k, name in ((1, "accuracy"), (5, "top5")):
        ranked = [sorted(range(len(row)), key=lambda c: (-row[c], c))[:k] for row in rows]
        hits = [label in best for label, best in zip(labels, ranked, strict=True)]
        assert found.get(name, 1.0) == pytest.approx(np.mean(hits))


@QUICK
@given(predictions())
def test_macro_f1_agrees_with_scikit_learn_where_classes_are_absent(items):
    rows, labels = items
    expected = f1_score(labels, rows.argmax(axis=1), average="macro")
    assert metrics.summary(rows, labels)["macro_f1"] == pytest.approx(expected)


def answers(probabilities, labels):
    return Evaluation.of(probabilities, labels, ["a", "b"], ["1.jpg"])


@pytest.mark.parametrize("figure", [metrics.summary, answers])
@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (np.empty((0, 3)), [], "nothing to measure"),
        ([0.5, 0.5], [0, 1], r"shape \[items, classes\]"),
        ([[0.5, 0.5]], [0, 1], r"labels must have shape \(1,\)"),
        ([[0.5, 0.5]], [[0]], r"labels must have shape \(1,\)"),
        ([[0.5, 0.5]], [2], "label 2 is out of range"),
        ([[0.5, 0.5]], [-1], "label -1 is out of range"),
        ([[0.5, 0.5]], [0.0], "must be integers"),
        ([[0.5, np.nan]], [0], "NaN"),
        ([[0.5, np.inf]], [0], "inf"),
    ],
)
def test_wrong_arrays_are_refused(figure, scores, labels, message):
    with pytest.raises(ValueError, match=message):
        figure(scores, labels)


def test_values_of_the_wrong_kind_are_refused():
    probabilities, labels = np.array([[0.25, 0.75]]), [1]
    with pytest.raises(ValueError, match="must sum to 1 in every row"):
        metrics.summary(probabilities, labels)
    with pytest.raises(ValueError, match="must sum to 1 in every row"):
        metrics.summary([[1000.0, 0.0]], labels)
    with pytest.raises(ValueError, match="must not be negative"):
        answers(np.log(probabilities), labels)
    with pytest.raises(ValueError, match=r"not 1\.2 as in row 1"):
        answers([[0.5, 0.5], [0.5, 0.7]], [0, 1])
