"""Answers image by image: examples, thinned curves, and all of it as JSON."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    log_loss,
    precision_score,
    recall_score,
    top_k_accuracy_score,
)

from pbprompt.model.metrics.classification import confidence_bins
from pbprompt.model.metrics.evaluation import (
    LOG_FLOOR,
    MOST_POINTS,
    Evaluation,
    MultiLabelEvaluation,
    average_precision,
    harmonic_mean,
    mean_average_precision,
    summary,
)
from pbprompt.model.metrics.selective import area_under_risk_coverage, risk_coverage


def answers(probabilities, labels):
    rows = np.asarray(probabilities)
    return Evaluation.of(
        rows, labels, [f"c{n}" for n in range(rows.shape[1])], [f"{n}.jpg" for n in range(len(rows))]
    )


def test_the_surest_mistake_of_a_pair_is_its_first_example():
    said = answers([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [1, 1, 1, 0])
    (pair,) = said.confused
    assert (pair.images, pair.share) == (2, pytest.approx(2 / 3))
    assert [said.paths[row] for row in said.examples(pair)] == ["1.jpg", "0.jpg"]
    assert said.examples(pair, 1) == [1]


def test_a_long_curve_is_thinned_to_its_ends():
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(3), 5000)
    said = answers(rows, rng.integers(0, 3, 5000))
    coverage, risk = said.risk_coverage
    whole = risk_coverage(said.confidence, said.right)
    assert len(coverage) == MOST_POINTS
    assert (coverage[-1], risk[-1]) == (1.0, whole[1][-1])
    assert set(zip(coverage, risk, strict=True)) <= set(zip(*whole, strict=True))


def test_json_holds_all_of_it_without_nan():
    values = json.loads(json.dumps(answers([[0.6, 0.4], [0.9, 0.1]], [1, 0]).to_dict(), allow_nan=False))
    assert set(values) == {"per_class", "confusion", "confused_pairs", "reliability", "risk_coverage"}
    assert values["confusion"] == {"classes": ["c0", "c1"], "matrix": [[1, 0], [1, 0]]}
    assert values["confused_pairs"] == [
        {
            "true": "c1",
            "taken_for": "c0",
            "images": 1,
            "share": 1.0,
            "examples": [{"path": "0.jpg", "probability": 0.6}],
        }
    ]
    assert sum(values["reliability"]["images"]) == 2
    assert values["reliability"]["accuracy"][0] is None


def test_paths_and_names_must_fit():
    with pytest.raises(ValueError, match="a path for each image"):
        Evaluation.of([[0.5, 0.5]], [0], ["a", "b"], [])


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
    found = summary(rows, labels)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert found["nll"] == pytest.approx(log_loss(labels, np.exp(rows)))
    assert found["top5"] == pytest.approx(top_k_accuracy_score(labels, rows, k=5))


def test_brier_is_the_squared_distance_to_the_label_summed_over_classes():
    rows, labels = drawn(3)
    expected = ((np.exp(rows) - np.eye(8)[labels]) ** 2).sum(axis=1).mean()
    assert summary(rows, labels)["brier"] == pytest.approx(expected)
    assert summary([[-np.inf, 0.0]], [0])["brier"] == 2.0
    assert summary(np.log([[0.25] * 4]), [2])["brier"] == pytest.approx(0.75)


def test_the_argument_stays_as_it_was():
    rows = np.log([[0.2, 0.8]])
    summary(rows, [1])
    np.testing.assert_array_equal(rows, np.log([[0.2, 0.8]]))


def test_uniform_predictions_cost_log_c():
    uniform = np.full((5, 10), -math.log(10))
    assert summary(uniform, np.arange(5))["nll"] == pytest.approx(math.log(10))


def test_a_true_class_without_probability_costs_the_floor():
    rows = [[0.0, -np.inf], [0.0, -np.inf]]
    assert summary(rows, [0, 1])["nll"] == pytest.approx(-LOG_FLOOR / 2)
    assert summary(rows, [0, 1])["nll"] > 350


def test_a_tie_goes_to_the_lowest_class():
    even = np.log(np.full((2, 6), 1 / 6))
    assert summary(even, [0, 1])["accuracy"] == 0.5
    assert summary(even, [4, 5])["top5"] == 0.5


def test_macro_f1_runs_over_the_classes_present_or_predicted():
    # Class 0: 1/2; class 1, present and never predicted: 0; class 2, predicted and absent: 0.
    rows, labels = log_softmax(9 * np.eye(4)[[0, 0, 2]], axis=1), [0, 1, 0]
    found = summary(rows, labels)["macro_f1"]
    assert found == pytest.approx((0.5 + 0 + 0) / 3)
    assert found == pytest.approx(f1_score(labels, [0, 0, 2], average="macro"))


def test_harmonic_mean():
    assert harmonic_mean(0.6, 0.3) == pytest.approx(0.4)
    assert harmonic_mean(80.47, 71.69) == pytest.approx(75.83, abs=0.005)
    assert harmonic_mean(0, 0.9) == 0
    assert harmonic_mean(0, 0) == 0
    for pair in [(-0.1, 0.5), (0.5, math.nan), (math.inf, 0.5)]:
        with pytest.raises(ValueError, match="base and new"):
            harmonic_mean(*pair)


def test_summary_gathers_the_standard_set():
    rows, labels = drawn(4)
    found = summary(rows, labels)
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
    assert "top5" not in summary(*drawn(5, classes=5))
    assert "top5" in summary(*drawn(5, classes=6))


def test_summary_takes_half_precision_rows():
    rows, labels = drawn(6)
    half = summary(rows.astype(np.float16), labels)
    assert half == pytest.approx(summary(rows, labels), abs=0.02)


@QUICK
@given(predictions(), st.randoms(use_true_random=False))
def test_order_of_items_does_not_matter_and_figures_stay_in_bounds(items, random):
    rows, labels = items
    found = summary(rows, labels)
    order = random.sample(range(len(labels)), len(labels))
    assert summary(rows[order], labels[order]) == pytest.approx(found, abs=1e-12)
    assert found.pop("nll") >= -1e-12
    assert -1e-12 <= found.pop("brier") <= 2
    assert all(0 <= value <= 1 + 1e-12 for value in found.values())


@QUICK
@given(predictions())
def test_top_k_counts_the_labels_among_a_stable_descending_order(items):
    rows, labels = items
    found = summary(rows, labels)
    for k, name in ((1, "accuracy"), (5, "top5")):
        ranked = [sorted(range(len(row)), key=lambda c: (-row[c], c))[:k] for row in rows]
        hits = [label in best for label, best in zip(labels, ranked, strict=True)]
        assert found.get(name, 1.0) == pytest.approx(np.mean(hits))


@QUICK
@given(predictions())
def test_macro_f1_agrees_with_scikit_learn_where_classes_are_absent(items):
    rows, labels = items
    expected = f1_score(labels, rows.argmax(axis=1), average="macro")
    assert summary(rows, labels)["macro_f1"] == pytest.approx(expected)


def evaluated(probabilities, labels):
    return Evaluation.of(probabilities, labels, ["a", "b"], ["1.jpg"])


@pytest.mark.parametrize("figure", [summary, evaluated])
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
        summary(probabilities, labels)
    with pytest.raises(ValueError, match="must sum to 1 in every row"):
        summary([[1000.0, 0.0]], labels)
    with pytest.raises(ValueError, match="must not be negative"):
        evaluated(np.log(probabilities), labels)
    with pytest.raises(ValueError, match=r"not 1\.2 as in row 1"):
        evaluated([[0.5, 0.5], [0.5, 0.7]], [0, 1])


NAMES = ("beach", "dog", "cat", "snow")
LEVELS = (0.3, 0.5, 0.5, 0.9)


def figures_of(said, has):
    paths = tuple(f"{row}.jpg" for row in range(len(has)))
    return MultiLabelEvaluation(NAMES[: has.shape[1]], paths, has, said, LEVELS[: has.shape[1]]).figures


@pytest.fixture(scope="module")
def label_answers():
    """Probabilities with many ties, what is there, and what was given."""
    generator = torch.Generator().manual_seed(3)
    said = (torch.rand(50, 4, generator=generator) * 10).round() / 10
    has = torch.rand(50, 4, generator=generator) < torch.tensor([0.1, 0.3, 0.5, 0.7])
    return said, has, said >= torch.tensor(LEVELS)


def test_as_scikit_learn_has_them(label_answers):
    said, has, given = label_answers
    figures = figures_of(said, has)
    y, p, g = (part.numpy() for part in (has, said, given))
    for c, one in enumerate(figures["labels"]):
        assert one["average_precision"] == pytest.approx(average_precision_score(y[:, c], p[:, c]))
        assert one["f1"] == pytest.approx(f1_score(y[:, c], g[:, c]))
    assert figures["map"] == pytest.approx(average_precision_score(y, p, average="macro"))
    assert mean_average_precision(said, has) == pytest.approx(figures["map"])
    for mean in ("micro", "macro"):
        for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
            assert figures[mean][name] == pytest.approx(score(y, g, average=mean)), (mean, name)
    assert figures["exact"] == pytest.approx((y == g).all(1).mean())
    assert (figures["labels_there"], figures["labels_given"]) == (int(y.sum()), int(g.sum()))


def test_a_label_of_no_image_is_in_no_mean(label_answers):
    said, has, _ = label_answers
    fewer = has.clone()
    fewer[:, 1] = False
    figures = figures_of(said, fewer)
    shown = [one for one in figures["labels"] if one["class"] != "dog"]
    assert figures["labels"][1]["average_precision"] is None and figures["labels_without_image"] == 1
    assert figures["map"] == pytest.approx(sum(one["average_precision"] for one in shown) / 3)
    assert figures["macro"]["f1"] == pytest.approx(sum(one["f1"] for one in shown) / 3)


def test_nothing_there_and_nothing_given():
    empty = torch.zeros(3, 2, dtype=torch.bool)
    figures = figures_of(torch.zeros(3, 2), empty)
    assert figures["map"] is None and figures["micro"]["f1"] is None and figures["macro"]["f1"] is None
    assert figures["exact"] == 1


def test_equal_scores_rank_nothing():
    has = torch.tensor([True, False, False, False])
    assert average_precision(torch.ones(4), has) == average_precision(torch.ones(4), has.flip(0)) == 0.25
