"""How well known an image looks, and what a name without photographs may take, against loops."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_posterior import PlainGaussians, best_log_weights, familiarity_statistic, normal, problem
from scipy.special import logsumexp

from pbprompt.evidence.evidence import Statistics
from pbprompt.evidence.expert import HeldOutPhotographs, Seen
from pbprompt.evidence.experts.gaussian import fit_gaussians, whitened
from pbprompt.evidence.novelty import (
    FEWEST,
    USUAL,
    Novelty,
    against_others,
    fit_novelty,
    openness,
    reluctance,
)


def novelty_of(familiar: torch.Tensor, odds=USUAL) -> Novelty:
    reference = torch.tensor([[-30.0, 5.0], [0.4, 0.1]], dtype=torch.float64)
    return Novelty(reference, familiar, torch.tensor(odds).double(), torch.zeros(0).double())


BEYOND = [True, False]  # distances, and kernel regression


class Tables(NamedTuple):
    left: HeldOutPhotographs
    distances: torch.Tensor
    by_kernel: torch.Tensor
    without_class: torch.Tensor
    """by kernel regression"""
    logits: torch.Tensor
    cosines: torch.Tensor
    by_name: torch.Tensor

    def fitted(self, cosines: torch.Tensor | None = None) -> Novelty:
        cosines = self.cosines if cosines is None else cosines
        return fit_novelty(self.left, BEYOND, self.logits, cosines, self.by_name)


def closeness(distances: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return torch.stack([-distances.amin(1), scores.amax(1)])


def judged(counts=(8, 6, 1, 7), seed: int = 0) -> Tables:
    """Held-out photographs: near and like their own class, and fitting its name."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    n, k = len(labels), len(counts)
    own = torch.eye(k, dtype=torch.float64)[labels]
    by_kernel = 0.5 * own + 0.1 * normal(n, k, seed=seed + 1)
    distances, without_class = 30 - 12 * own + 3 * normal(n, k, seed=seed), 0.1 * normal(n, k, seed=seed + 2)
    left = HeldOutPhotographs(
        labels=labels,
        shares=torch.ones(n, dtype=torch.float64),
        left=torch.ones(n, dtype=torch.float64),
        several=torch.tensor(counts)[labels] > 1,
        scores=torch.zeros(4, n, k, dtype=torch.float64),
        closeness=closeness(distances, by_kernel),
        without_class=closeness(distances + 1e9 * own, without_class - 1e9 * own),
        looks=torch.zeros(n, dtype=torch.float64),
    )
    logits, cosines = 6 * own + normal(n, k, seed=seed + 3), 4 * own + normal(n, k, seed=seed + 4)
    by_name = 2 * own + normal(n, k, seed=seed + 5)
    return Tables(left, distances, by_kernel, without_class, logits, cosines, by_name)


def reference_of(tables: Tables) -> list[float]:
    rows = tables.left.several.nonzero().squeeze(1).tolist()
    best = [float(tables.by_kernel[i].max()) for i in rows]
    nearest = [float(tables.distances[i].min()) for i in rows]
    return [np.mean(best), np.std(best, ddof=1), np.mean(nearest), np.std(nearest, ddof=1)]


# F and its rank


def test_statistic_against_loops():
    tables = judged()
    left = tables.left
    novelty = tables.fitted(torch.zeros_like(tables.cosines))  # no name is read
    expected = reference_of(tables)
    (far, far_deviation), by_kernel = novelty.reference.tolist()
    np.testing.assert_allclose([*by_kernel, -far, far_deviation], expected, rtol=1e-8)
    by_loop = familiarity_statistic(tables.distances.numpy(), tables.by_kernel.numpy(), expected)
    np.testing.assert_allclose(novelty.statistic(left.closeness, BEYOND), by_loop, atol=1e-8)
    np.testing.assert_allclose(novelty.familiar, sorted(by_loop[left.several.numpy()]), atol=1e-8)
    assert novelty.odds.tolist() == pytest.approx(USUAL) and len(novelty.found) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 50), st.floats(0, 2))
def test_it_never_rises_with_distance_or_with_less_likeness(seed, farther, less):
    novelty = novelty_of(torch.zeros(0))
    distances, scores = 30 + 10 * normal(9, 4, seed=seed), 0.5 * normal(9, 4, seed=seed + 1)
    before = novelty.statistic(closeness(distances, scores), BEYOND)
    after = novelty.statistic(closeness(distances + farther, scores - less), BEYOND)
    assert (after <= before).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_it_never_rises_along_a_ray_away_from_all_photographs(seed):
    """Far out single photographs say nothing more, and the distance to the nearest class only grows."""
    images, labels, texts = problem(5, [4, 3, 5], seed=seed)
    gaussians = fit_gaussians(whitened(Statistics.of(images, labels, 3), texts))
    plain = PlainGaussians(images, labels, texts)
    way = normal(5, seed=seed + 1)
    precise = np.linalg.solve(plain.sigma, way.numpy())
    # each class's distance is least, along the ray, where it passes its centre
    centres = [(2 * plain.prior[c] + plain.n[c] * plain.mean[c]) / (2 + plain.n[c]) for c in range(3)]
    passed = max(0.0, *(precise @ (centre - plain.b) / (precise @ way.numpy()) for centre in centres))
    steps = passed + torch.linspace(0, 40, 60, dtype=torch.float64)
    ray = torch.from_numpy(plain.b) + steps.unsqueeze(1) * way
    near = gaussians.closeness(gaussians.scores(Seen(ray)))
    looks = novelty_of(torch.zeros(0)).statistic(torch.stack([near, torch.zeros_like(near)]), BEYOND)
    assert (looks.diff() <= 1e-9 * looks.abs().max()).all() and looks[-1] < looks[0]


def test_familiarity_is_a_rank():
    familiar, looks = normal(40).sort().values, normal(30, seed=1)
    looks[:2] = familiar[[3, 20]]  # ties count as no less known
    found = novelty_of(familiar).familiarity(looks)
    expected = [(1 + sum(1 for one in familiar if one <= f)) / 41 for f in looks]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_few_left_out_photographs_have_no_ranks():
    looks = normal(5)
    few = novelty_of(normal(FEWEST - 1).sort().values)
    assert few.familiarity(looks) is None and (few.unlike(looks) == 0).all()
    enough = novelty_of(normal(FEWEST).sort().values)
    assert enough.familiarity(torch.tensor([-99.0]).double()).item() == pytest.approx(0.05)


def test_unlike_begins_at_a_tenth_and_is_whole_at_a_hundredth():
    familiar = torch.linspace(0, 100, 1001, dtype=torch.float64)
    looks = torch.tensor([-50.0, 0.9, 1.0, 5.5, 10.0, 10.1, 80.0], dtype=torch.float64)
    found = novelty_of(familiar).unlike(looks)
    torch.testing.assert_close(found, torch.tensor([1, 1, 1, 0.5, 0, 0, 0]).double())
    equal = novelty_of(torch.zeros(30, dtype=torch.float64)).unlike(looks)
    assert ((equal >= 0) & (equal <= 1)).all()


def test_where_nothing_can_be_left_out_all_look_alike():
    tables = judged((1, 1, 1))
    novelty = tables.fitted()
    assert novelty.statistic(tables.left.closeness, BEYOND).abs().max() < 1e-20
    assert len(novelty.familiar) == 0
    assert (novelty.odds > 0).all() and novelty.odds.isfinite().all()


# new names


@pytest.mark.parametrize("counts", [(8, 6, 1, 7), (3, 3, 3), (1, 1, 1, 1)], ids=str)
def test_odds_are_fitted_by_leaving_classes_out(counts):
    tables = judged(counts)
    left_out, logits, cosines = tables.left, tables.logits, tables.cosines
    novelty, labels = tables.fitted(), left_out.labels
    rows = [i for i in range(len(labels)) if left_out.several[i] or not left_out.several.any()]
    each = [sum(1 for j in rows if labels[j] == labels[i]) for i in range(len(labels))]
    (far, far_deviation), by_kernel = novelty.reference.tolist()
    reference = [*by_kernel, -far, far_deviation]
    asked, own, shares, found = [], [], [], {}
    pick = lambda table, i, columns: [table[i, columns].tolist()]  # noqa: E731
    for i in rows:
        every = list(range(len(counts)))
        for c in every:
            left = [other for other in every if other != c] if c == labels[i] else every
            scores = tables.without_class if c == labels[i] else tables.by_kernel
            look = familiarity_statistic(
                pick(tables.distances, i, left), pick(scores, i, left), reference
            ).item()
            others = [float(tables.by_name[i, other]) for other in every if other != c]
            asked.append([-1.0, -look, float(cosines[i, c]), float(tables.by_name[i, c]) - logsumexp(others)])
            own.append(int(c == labels[i]))
            shares.append(1 / each[i])
            if c == labels[i]:
                known = logits[i, left].numpy()
                odds = float(np.dot(novelty.odds.numpy(), asked[-1]))
                found.setdefault(c, []).append(logsumexp(known) + odds > known.max())
    scores = np.stack([np.zeros_like(np.array(asked)), np.array(asked)], axis=2).transpose(1, 0, 2)
    best = best_log_weights(scores, np.array(own), np.array(USUAL), np.array(shares))
    np.testing.assert_allclose(novelty.odds.log(), best, atol=1e-5)
    assert float(novelty.found) == pytest.approx(np.mean([np.mean(told) for told in found.values()]))


@pytest.mark.parametrize("counts", [(5, 5), (9,)], ids=str)
def test_of_two_classes_none_can_be_left_out_whole(counts):
    novelty = judged(counts).fitted()
    assert novelty.odds.tolist() == pytest.approx(USUAL) and len(novelty.found) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.floats(0.01, 200))
def test_what_names_say_of_each_class_against_the_others(seed, classes, scale):
    table = scale * normal(4, classes, seed=seed)
    found = against_others(table)
    for i in range(4):
        for c in range(classes):
            others = [float(table[i, other]) for other in range(classes) if other != c]
            assert float(found[i, c]) == pytest.approx(float(table[i, c]) - logsumexp(others), abs=1e-7)


def test_strong_names_keep_the_odds_that_they_have_among_themselves():
    """Where nothing but names tells, left-out classes say ρ = 1 and that the rest is not needed."""
    chance = torch.Generator().manual_seed(0)
    by_name = 3 * normal(2000, 100, seed=1)
    labels = torch.multinomial(by_name.softmax(1), 1, generator=chance).squeeze(1)
    left = judged((20,) * 100).left._replace(
        labels=labels,
        closeness=torch.zeros(2, 2000).double(),
        without_class=torch.zeros(2, 2000).double(),
    )
    u, v, psi, rho = fit_novelty(left, BEYOND, by_name, 1e-3 * normal(2000, 100), by_name).odds.tolist()
    assert rho == pytest.approx(1, abs=0.1) and u < 0.5
    assert v == pytest.approx(USUAL[1]) and psi == pytest.approx(USUAL[2], rel=0.05)


def test_openness():
    tables = judged()
    novelty, logits, left = tables.fitted(), tables.logits, tables.left
    looks = novelty.statistic(left.closeness, BEYOND)
    for i, found in enumerate(openness(novelty, looks, logits).tolist()):
        row = logits[i].numpy()
        assert found == pytest.approx(logsumexp(row) - row.max() - float(novelty.odds[1] * looks[i]))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 400), st.sampled_from([1, 2, 3, 20, 60]), st.floats(0.1, 10))
def test_new_names_take_no_more_than_their_share(seed, photographs, names, scale):
    """Of the left-out photographs given: 1 % for one name, 3 % for twenty together."""
    novelty = novelty_of(torch.zeros(0))
    opened, fit = (
        scale * normal(photographs, seed=seed),
        scale * normal(photographs, names, seed=seed + 1),
    )
    reluctant = reluctance(novelty, opened, fit)
    taken = opened.unsqueeze(1) + fit > reluctant
    assert (reluctant >= novelty.odds[0]).all()
    assert (taken.double().mean(0) <= 0.01).all()
    most = 0.01 * names if names < 3 else 0.03 * max(1, names / 20)
    assert taken.any(1).double().mean() <= most + 1e-12


def test_few_photographs_bound_by_a_distribution():
    """Of ten none is beyond the largest: a name must be likelier than that by what Student's t says."""
    opened = normal(10)
    few = reluctance(novelty_of(torch.zeros(0)), opened, torch.zeros(10, 1).double())
    assert few > opened.max() + 0.5
    alone = reluctance(novelty_of(torch.zeros(0)), 5 + opened[:1], torch.zeros(1, 1).double())
    torch.testing.assert_close(alone, 5 + opened[:1])


def test_without_left_out_photographs_the_fitted_odds_stand():
    found = reluctance(novelty_of(torch.zeros(0)), torch.zeros(0).double(), torch.zeros(0, 3).double())
    assert found.tolist() == [2.0] * 3
    assert reluctance(novelty_of(torch.zeros(0)), normal(9), torch.zeros(9, 0).double()).shape == (0,)


def test_a_thousand_new_names():
    found = reluctance(novelty_of(torch.zeros(0)), normal(50), normal(50, 1000, seed=1))
    assert found.shape == (1000,) and found.isfinite().all()
