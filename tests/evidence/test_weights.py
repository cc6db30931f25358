"""The experts' weights, against a general optimiser and second derivatives by differences."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_posterior import best_log_weights, curvature, normal, weights_loss

from pbprompt.evidence.weights import DOUBT, WORTH, Weights, fit_weights

USUAL = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)


def judged(images: int = 30, classes: int = 4, seed: int = 0):
    """Three experts: one that knows, one that knows a little, one that is wrong."""
    labels = torch.arange(images) % classes
    truth = torch.eye(classes, dtype=torch.float64)[labels]
    tables = normal(3, images, classes, seed=seed)
    return torch.stack([3 * truth + tables[0], truth + tables[1], tables[2] - truth]), labels


def plainly(scores, labels, usual, shares=None):
    shares = np.ones(len(labels)) if shares is None else shares.numpy()
    return scores.numpy(), labels.numpy(), usual.numpy(), shares


def same(found: Weights, problem) -> None:
    """The least loss, and the curvature there, where w⁰ counts for more than in the fit."""
    best = best_log_weights(*problem)
    np.testing.assert_allclose(found.log, best, atol=1e-5)
    assert weights_loss(found.log.numpy(), *problem) <= weights_loss(best, *problem) + 1e-8
    hessian = curvature(lambda at: weights_loss(at, *problem), found.log.numpy())
    hessian += (DOUBT - WORTH) * np.eye(len(hessian))
    np.testing.assert_allclose(found.root @ found.root.T, np.linalg.inv(hessian), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_against_an_optimiser(seed):
    scores, labels = judged(seed=seed)
    shares = 0.2 + torch.rand(len(labels), generator=torch.Generator().manual_seed(seed)).double()
    same(fit_weights(scores, labels, USUAL), plainly(scores, labels, USUAL))
    same(fit_weights(scores, labels, USUAL, shares), plainly(scores, labels, USUAL, shares))


def test_an_expert_that_misleads_is_left_and_surely_so():
    """Its weight is small, and no draw of it is large."""
    scores, labels = judged(400)
    scores[2] *= 5
    fitted = fit_weights(scores, labels, USUAL)
    assert fitted.best[2] < 0.02 * USUAL[2]
    same(fitted, plainly(scores, labels, USUAL))
    assert fitted.draws(64)[:, 2].max() < 0.2 * USUAL[2]


def test_experts_that_tell_perfectly_stay_finite():
    labels = torch.arange(40) % 4
    scores = 1000 * torch.eye(4, dtype=torch.float64)[labels].expand(3, -1, -1)
    fitted = fit_weights(scores, labels, USUAL)
    assert fitted.log.isfinite().all() and (fitted.root @ fitted.root.T).isfinite().all()


def test_nothing_judged_leaves_the_usual_weights():
    fitted = fit_weights(torch.zeros(3, 0, 4).double(), torch.zeros(0, dtype=torch.long), USUAL)
    torch.testing.assert_close(fitted.best, USUAL)
    torch.testing.assert_close(fitted.root, torch.eye(3, dtype=torch.float64) / DOUBT**0.5)


def test_a_share_counts_a_photograph_so_often():
    scores, labels = judged()
    often = torch.arange(len(labels)) % 3 + 1
    weighted = fit_weights(scores, labels, USUAL, often.double())
    more = fit_weights(scores.repeat_interleave(often, 1), labels.repeat_interleave(often), USUAL)
    torch.testing.assert_close(weighted.log, more.log)
    torch.testing.assert_close(weighted.root, more.root)


def test_what_all_classes_share_does_not_matter():
    scores, labels = judged()
    lifted = scores + 100 * normal(3, len(labels), 1, seed=9)
    torch.testing.assert_close(fit_weights(scores, labels, USUAL).log, fit_weights(lifted, labels, USUAL).log)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 100.0))
@example(844, 87.0)
def test_there_is_one_least_loss(seed, scale):
    """The loss is convex in w: no other weights are better, however large the scores."""
    scores, labels = judged(12, 3, seed)
    problem = plainly(scale * scores, labels, USUAL)
    fitted = fit_weights(scale * scores, labels, USUAL)
    least = weights_loss(fitted.log.numpy(), *problem)
    for other in normal(5, 3, seed=seed):
        assert weights_loss((fitted.log + other).numpy(), *problem) >= least - 1e-9
    ends = [np.exp((fitted.log + other).numpy()) for other in normal(2, 3, seed=seed + 1)]
    middle = weights_loss(np.log((ends[0] + ends[1]) / 2), *problem)
    assert middle <= (weights_loss(np.log(ends[0]), *problem) + weights_loss(np.log(ends[1]), *problem)) / 2


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 300), st.integers(1, 4), st.integers(0, 100))
def test_draws_are_positive_and_the_same_again(samples, experts, seed):
    root = torch.linalg.cholesky(torch.eye(experts).double() + 0.1)
    weights = Weights(normal(experts, seed=seed), root)
    drawn = weights.draws(samples)
    assert drawn.shape == (samples, experts) and (drawn > 0).all() and drawn.isfinite().all()
    assert torch.equal(drawn, weights.draws(samples))
    if samples == 1:
        torch.testing.assert_close(drawn[0], weights.best)


def test_many_draws_are_of_the_normal_distribution():
    root = torch.tensor([[0.5, 0.0, 0.0], [0.2, 0.3, 0.0], [-0.1, 0.1, 0.2]], dtype=torch.float64)
    weights = Weights(torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64), root)
    logs = weights.draws(4096).log()
    torch.testing.assert_close(logs.mean(0), weights.log, rtol=0, atol=0.005)
    torch.testing.assert_close(logs.T.cov(), root @ root.T, rtol=0, atol=0.01)
    torch.testing.assert_close(weights.draws(20).log().mean(0), weights.log, rtol=0, atol=0.1)
