"""How the simulation of `next` counts labels and what they save."""

import numpy as np
import pytest

from benchmarks.label_next import DATASETS, RULES, SEEDS, labels_needed, paired_interval, report

CURVE = [[10, 0.5, 0.4], [60, 0.7, 0.6], [110, 0.9, 0.65]]


def test_labels_needed_lie_on_a_line_between_rounds():
    assert labels_needed(CURVE, 1, 0.8) == pytest.approx(85)
    assert labels_needed(CURVE, 1, 0.4) == 10
    assert labels_needed(CURVE, 2, 0.9) == 110  # never reached: at least all


def test_the_interval_resamples_seeds_within_datasets():
    mean, low, high = paired_interval(np.array([[0.5, 0.5], [0.1, 0.1]]), resamples=100)
    assert mean == pytest.approx(0.3) and low == pytest.approx(0.3) and high == pytest.approx(0.3)
    mean, low, high = paired_interval(np.array([[0.0, 1.0]]), resamples=1000)
    assert mean == 0.5 and low == 0 and high == 1


def test_the_report_has_every_rule_and_dataset():
    curves = {f"{name} all labels 0": [[500, 0.9, 0.9]] for name in DATASETS}
    for name in DATASETS:
        for by in RULES:
            for seed in SEEDS:
                gain = 0.0 if by == "random" else 0.1
                curves[f"{name} {by} {seed}"] = [[10, 0.5, 0.5], [60, 0.8 + gain, 0.8 + gain]]
    text = report({"commit": "abc", "curves": curves})
    assert all(f"`{by}`" in text for by in RULES) and all(name in text for name in DATASETS)
    assert "commit abc" in text
    lines = [line for line in text.splitlines() if line.startswith("| `random`")]
    assert "> 60" in lines[0] and "10.0 (10.0 to 10.0)" in text  # random choice never gets there
