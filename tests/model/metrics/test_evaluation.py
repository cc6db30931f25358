"""Answers image by image: examples, thinned curves, and all of it as JSON."""

import json

import numpy as np
import pytest

from pbprompt.model.metrics.evaluation import MOST_POINTS, Evaluation
from pbprompt.model.metrics.selective import risk_coverage


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
