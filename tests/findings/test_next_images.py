"""Suggestions from predictions."""

import pytest
import torch

import pbprompt
from pbprompt.errors import InputError
from pbprompt.findings.next_images import next_images
from pbprompt.model.predictions import Prediction


def prediction(cat: float, epistemic: float) -> Prediction:
    scores = {"cat": cat, "dog": 1 - cat}
    label = max(scores, key=scores.__getitem__)
    return Prediction(label, scores, dict.fromkeys(scores, 0.0), 0.5, epistemic, None, None, None, None)


SAID = [prediction(0.9, 0.0), prediction(0.55, 0.1), prediction(0.2, 0.3)]
FEATURES = torch.eye(3)


def test_doubt_or_disagreement():
    first, second = next_images(FEATURES, SAID, 2, "margin")
    assert (first.row, first.label, first.probability) == (1, "cat", 0.55)
    assert first.score == pytest.approx(0.9) and second.row == 2 and second.label == "dog"
    assert [one.row for one in next_images(FEATURES, SAID, 3, "epistemic")] == [2, 1, 0]


def test_as_many_features_as_predictions():
    with pytest.raises(InputError, match="give as many"):
        next_images(FEATURES[:2], SAID, 1)


def test_more_than_there_are():
    with pytest.raises(InputError, match="give 1 to 3"):
        next_images(FEATURES, SAID, 4)


def test_it_is_a_public_name():
    assert pbprompt.next_images is next_images
