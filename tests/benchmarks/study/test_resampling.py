"""Resampled metrics against the plain ones on the very items that a resample holds."""

import numpy as np
import pytest

from benchmarks.study.resampling import resampled_auroc, resampled_ece
from pbprompt.model.metrics.classification import confidence_bins
from pbprompt.model.metrics.resampling import image_counts, resampled_mean
from pbprompt.model.metrics.selective import auroc


@pytest.fixture
def items():
    generator = np.random.default_rng(3)
    confidence = generator.uniform(0.1, 1, 80).astype(np.float32)
    correct = generator.uniform(size=80) < confidence
    return confidence, correct


def repeated(values, row):
    return np.repeat(np.asarray(values), row.astype(int))


def test_metrics_are_those_of_the_items_drawn(items):
    confidence, correct = items
    counts = image_counts(80, 20)
    scores = np.round(confidence, 1)  # with ties
    means, eces = resampled_mean(confidence, counts), resampled_ece(confidence, correct, counts)
    aurocs = resampled_auroc(scores, correct, counts)
    for number, row in enumerate(counts):
        drawn_confidence, drawn_correct = repeated(confidence, row), repeated(correct, row)
        assert means[number] == pytest.approx(drawn_confidence.mean(), rel=1e-5)
        bins = confidence_bins(drawn_confidence, drawn_correct)
        full = bins.count > 0
        gaps = np.abs(bins.accuracy - bins.confidence)[full]
        assert eces[number] == pytest.approx(np.average(gaps, weights=bins.count[full]), rel=1e-4)
        assert aurocs[number] == pytest.approx(auroc(repeated(scores, row), drawn_correct))


def test_a_score_that_says_nothing_has_an_auroc_of_one_half(items):
    assert resampled_auroc(np.zeros(80), items[1], image_counts(80, 5)) == pytest.approx([0.5] * 5)


def test_a_resample_without_negatives_has_no_auroc():
    counts = np.array([[2, 0], [1, 1]], dtype=np.float32)
    found = resampled_auroc([0.1, 0.9], [False, True], counts)
    assert np.isnan(found[0]) and found[1] == 1
