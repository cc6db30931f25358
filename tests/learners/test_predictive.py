"""What is said of images: doubt against loops and bounds, temperatures, and rows as plain numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.learners.predictive import Prediction, Predictive, rounded

S, B, C = 5, 4, 6


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_doubt_by_loops():
    logits = random(S, B, C, seed=2) * 3
    p = logits.softmax(-1).numpy()
    doubt = Predictive.of_logits(logits)
    for b in range(B):
        mean = sum(p[s, b] for s in range(S)) / S
        entropy = -sum(x * math.log(x) for x in mean)
        expected = sum(-sum(x * math.log(x) for x in p[s, b]) for s in range(S)) / S
        winner = int(np.argmax(mean))
        np.testing.assert_allclose(doubt.probabilities[b], mean, rtol=1e-12)
        np.testing.assert_allclose(doubt.entropy[b], entropy, rtol=1e-12)
        np.testing.assert_allclose(doubt.expected_entropy[b], expected, rtol=1e-12)
        np.testing.assert_allclose(doubt.mutual_information[b], entropy - expected, rtol=1e-9)
        np.testing.assert_allclose(doubt.spread[b], np.std(p[:, b, winner]), rtol=1e-10)


@settings(deadline=None, max_examples=40)
@given(
    samples=st.integers(1, 6),
    classes=st.integers(1, 6),
    sharpness=st.sampled_from([0.0, 0.1, 1.0, 30.0, 1000.0]),
    seed=st.integers(0, 1000),
)
def test_bounds(samples, classes, sharpness, seed):
    doubt = Predictive.of_logits(random(samples, 3, classes, seed=seed, dtype=torch.float32) * sharpness)
    slack = 1e-5
    torch.testing.assert_close(doubt.probabilities.sum(-1), torch.ones(3))
    assert (doubt.entropy <= math.log(classes) + slack).all() and (doubt.entropy >= -slack).all()
    assert (doubt.mutual_information >= 0).all()
    assert (doubt.mutual_information <= min(math.log(classes), math.log(samples)) + slack).all()
    assert (doubt.expected_entropy >= -slack).all()
    assert (doubt.spread >= 0).all() and (doubt.spread <= 0.5 + slack).all()
    torch.testing.assert_close(
        doubt.entropy, doubt.expected_entropy + doubt.mutual_information, rtol=0, atol=1e-5
    )


def test_mutual_information_extremes():
    agreed = torch.tensor([[[0.0, 2.0, 1.0]]]).expand(4, 1, 3)
    assert Predictive.of_logits(agreed).mutual_information.item() < 1e-7
    assert Predictive.of_logits(agreed).spread.item() < 1e-7
    opposed = torch.tensor([[[1000.0, 0.0]], [[0.0, 1000.0]]])
    assert Predictive.of_logits(opposed).mutual_information.item() == pytest.approx(math.log(2))
    assert Predictive.of_logits(opposed).expected_entropy.item() == 0
    assert Predictive.of_logits(opposed).spread.item() == pytest.approx(0.5)


def test_independent_probabilities_and_entropy_are_those_of_separate_questions():
    logits = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(0)) * 4
    said = Predictive.of_independent((logits[0] - 2).sigmoid())
    p = 1 / (1 + np.exp(-(logits[0].double().numpy() - 2)))
    np.testing.assert_allclose(said.probabilities.numpy(), p, rtol=1e-5)
    doubt = -(p * np.log(p) + (1 - p) * np.log1p(-p)).sum(1)
    np.testing.assert_allclose(said.entropy.numpy(), doubt, rtol=1e-4)
    assert not said.mutual_information.any() and not said.spreads.any()


def test_a_name_keeps_its_probability_whatever_the_others_are():
    logits = torch.randn(1, 4, 6)
    p = logits[0].sigmoid()
    alone = Predictive.of_independent(p[:, :1]).probabilities
    assert torch.equal(alone, Predictive.of_independent(p).probabilities[:, :1])


def test_independent_certainty_is_no_doubt():
    said = Predictive.of_independent(torch.tensor([[200.0, -200.0]]).sigmoid())
    assert said.probabilities.tolist() == [[1.0, 0.0]] and said.entropy.tolist() == [0.0]


def test_tempered_answers_keep_their_order_and_add_up():
    logits = 3 * torch.randn(5, 40, 4, generator=torch.Generator().manual_seed(0))
    said = Predictive.of_logits(logits)
    assert said.tempered(1.0) is said
    for temperature in (0.5, 2.0):
        scaled = said.tempered(temperature)
        wanted = (said.probabilities.log() / temperature).softmax(-1)
        assert torch.allclose(scaled.probabilities, wanted, atol=1e-6)
        assert torch.equal(scaled.probabilities.argmax(-1), said.probabilities.argmax(-1))
        assert torch.allclose(scaled.expected_entropy + scaled.mutual_information, scaled.entropy, atol=1e-5)
        assert (scaled.expected_entropy >= 0).all()
        shares = scaled.mutual_information / scaled.entropy
        assert torch.allclose(shares, said.mutual_information / said.entropy, atol=1e-5)
        assert (scaled.spreads >= 0).all() and (scaled.spreads <= 0.5).all()


def test_tempered_spreads_are_those_of_tempered_draws_where_they_are_small():
    """Of two classes and draws close together, the first order is all there is."""
    logits = torch.tensor([0.7, 0.0]) + 1e-2 * torch.randn(
        200, 1, 2, generator=torch.Generator().manual_seed(0)
    )
    assert torch.allclose(
        Predictive.of_logits(logits).tempered(2.5).spreads,
        Predictive.of_logits(logits / 2.5).spreads,
        rtol=1e-2,
    )


def test_one_class_is_certain():
    doubt = Predictive.of_logits(random(S, B, 1, seed=1) * 100)
    assert (doubt.probabilities == 1).all()
    for values in (doubt.entropy, doubt.mutual_information, doubt.spreads):
        assert (values.abs() < 1e-15).all()


def test_extreme_logits_stay_finite():
    doubt = Predictive.of_logits(torch.tensor([[[0.0, 1e4, -1e4]]]))
    assert all(values.isfinite().all() for values in (doubt.probabilities, doubt.entropy, doubt.spreads))


def test_rows_are_the_same_numbers_as_arrays_slices_and_parts():
    whole = Predictive.of_logits(random(S, B, 3)).of_classes(["cat", "dog", "car"])
    rows = list(whole)
    assert rows == [whole[row] for row in range(B)] == list(whole.numpy()) and rows[-1] == whole[-1]
    assert rows == list(Predictive.concatenate([whole[:1], whole[1:]]))
    for row, one in enumerate(rows):
        assert isinstance(one, Prediction) and one.label == max(one.scores, key=one.scores.get)
        assert list(one.scores.values()) == pytest.approx(whole.probabilities[row].tolist(), abs=1e-6)
        assert one.epistemic == pytest.approx(whole.mutual_information[row].item(), abs=1e-6)
    with pytest.raises(IndexError):
        whole[B]


def test_columns_move_with_their_names():
    whole = Predictive.of_logits(random(S, B, 3)).of_classes(["cat", "dog", "car"])
    moved = whole.of_classes(["car", "cat"], [2, 0])
    assert moved.classes == ("car", "cat") and torch.equal(moved.spreads, whole.spreads[:, [2, 0]])
    assert torch.equal(moved.probabilities, whole.probabilities[:, [2, 0]])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0, 1.5, width=32), min_size=1, max_size=20))
def test_numbers_are_rounded_as_python_rounds_them(values):
    halves = [(2 * step + 1) / 2**7 for step in range(8)]  # so are those that lie between two
    values += halves
    assert rounded(torch.tensor(values)) == [min(1.0, round(value, 6)) for value in values]
    assert rounded(torch.tensor([values, values])) == [rounded(torch.tensor(values))] * 2
