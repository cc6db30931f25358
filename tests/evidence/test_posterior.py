"""The fitted model against its equations, computed plainly from photographs and texts."""

import math

import numpy as np
import pytest
import torch
from experts import expert, photographs
from experts import scores as scores_of
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_posterior import (
    PlainGaussians,
    PlainKernel,
    best_log_weights,
    familiarity_statistic,
    normal,
    problem,
)
from scipy.special import log_softmax

from pbprompt.evidence import expert as expert_module
from pbprompt.evidence.answers import NewNames
from pbprompt.evidence.expert import HeldOutPhotographs, Seen
from pbprompt.evidence.experts import gaussian
from pbprompt.evidence.posterior import Posterior, fit_posterior
from pbprompt.evidence.text_map import learn_text_map, move

SCALE = 20.0
CASES = {
    "equal": (6, [4, 4, 4]),
    "unequal": (6, [3, 1, 6, 2]),
    "single": (6, [1, 1, 1, 1]),
    "wider than many": (24, [2, 3, 1]),
    "two classes": (6, [3, 5]),
    "two photographs": (6, [1, 1]),
    "one class": (6, [4]),
    "many": (8, [10, 12, 9, 11]),
}
cases = pytest.mark.parametrize(("width", "counts"), CASES.values(), ids=CASES)


def fitted(images, labels, texts, weights=None) -> tuple[Posterior, HeldOutPhotographs]:
    return fit_posterior(photographs(images, labels, texts, SCALE, weights))


def moved_texts(images, labels, texts) -> torch.Tensor:
    k = len(texts)
    means = torch.stack([images[labels == c].double().mean(0) for c in range(k)])
    counts = torch.tensor([float((labels == c).sum()) for c in range(k)], dtype=torch.float64)
    return learn_text_map(means, counts, texts.double())[1]


class Plain:
    """`evidence/posterior.py` from the slow parts."""

    def __init__(self, images, labels, texts):
        self.x, self.y, self.t = images.double().numpy(), labels.numpy(), texts.double().numpy()
        self.k = len(self.t)
        self.gaussians = PlainGaussians(images, labels, moved_texts(images, labels, texts))
        self.kernel = PlainKernel(images, labels, self.k)
        self.names = SCALE * (self.t - self.t.mean(0))
        one_out = np.stack([self.gaussians.left_out()[0], *self.kernel.left_out(), self.x @ self.names.T])
        self.left, share = self._by_folds(images, labels, texts, one_out)
        n = np.bincount(self.y)[self.y]
        self.several = n > 1
        self.reference = None
        # ψ₀ and I
        ones = np.ones(len(self.y))
        if self.k > 1:
            self.psi = math.exp(best_log_weights(self.left[3:], self.y, np.array([0.5]), ones)[0])
            told = log_softmax(self.psi * self.left[3], axis=1)[np.arange(len(self.y)), self.y].mean()
            self.information = max(0.0, 1 + told / math.log(self.k))
        else:
            self.psi, self.information = 1.0, 0.0
        # w
        rows = self.several if self.several.any() else np.ones_like(self.several)
        if self.k > 2 or (self.k == 2 and self.several.any()):
            spread = lambda table: math.sqrt(table[rows].var(1, ddof=1).mean())  # noqa: E731
            sure = spread(self.left[3]) / spread(self.left[0])
        else:
            sure = 0.1
        many = len(self.y) / (len(self.y) + 20)
        useful = self.information * min(1, self.psi)
        by_photographs = (1 - 0.75 * many * useful**2) * many * np.array([0.75 * sure, 2, 1])
        usual = np.array([*by_photographs, max(1 - many, useful) * self.psi])
        grown = self.left.copy()
        grown[0] *= (share**0.25)[:, None]
        judged = grown[:, self.several], self.y[self.several]
        self.log_weights = best_log_weights(*judged, usual, ones[self.several])

    def _by_folds(self, images, labels, texts, tables):
        """What is said of photographs whose class has others, everything fitted again without their fold, at
        the spread of the whole; and the share of their class that is left."""
        shown, tables, share = photographs(images, labels, texts, SCALE), tables.copy(), np.ones(len(self.y))
        places, own = shown.places.numpy(), np.eye(self.k, dtype=bool)[self.y]
        n = np.bincount(self.y)[self.y]
        for fold in range(16):
            most = np.minimum(n, 16)
            gone = (n > 1) & (places % most == fold % most)
            rest = ~torch.from_numpy(gone)
            asked = np.nonzero((n > 1) & (places % 16 == fold))[0]
            if not len(asked):
                continue
            moved = moved_texts(images[rest], labels[rest], texts)
            again = PlainGaussians(images[rest], labels[rest], moved)
            tables[0, asked] = again.judged(images[asked])[0]
            for i in asked:
                tables[1, i] = self.kernel.regression(self.x[i], np.nonzero(~gone)[0])
                tables[2, i] = self.kernel.nearest(self.x[i], np.nonzero(~gone)[0])
                share[i] = again.n[self.y[i]] / n[i]
        rows = n > 1
        if self.k > 2 and rows.any():
            whole = self.gaussians.judged(images)[0]
            spreads = [
                math.sqrt(np.mean([each[i, ~own[i]].var(ddof=1) for i in np.nonzero(rows)[0]]))
                for each in (whole, tables[0])
            ]
            tables[0, rows] *= spreads[0] / spreads[1]
        return tables, share

    def experts(self, images):
        x = images.double().numpy()
        return np.stack([self.gaussians.judged(images)[0], *self.kernel.scores(x), x @ self.names.T])


@cases
def test_experts_weights_and_names(width, counts):
    inputs = problem(width, counts)
    (model, left), plain = fitted(*inputs), Plain(*inputs)
    new = problem(width, [6], seed=9)[0]
    np.testing.assert_allclose(scores_of(model, new), plain.experts(new), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(left.scores, plain.left, rtol=1e-8, atol=1e-8)
    assert left.several.tolist() == plain.several.tolist()
    np.testing.assert_allclose(float(model.name_scale), plain.psi, rtol=1e-5)
    np.testing.assert_allclose(model.information, plain.information, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.weights.log, plain.log_weights, atol=1e-5)


@cases
def test_how_well_known_images_look(width, counts):
    inputs = problem(width, counts)
    (model, left), plain = fitted(*inputs), Plain(*inputs)
    distances, scores = plain.gaussians.left_out()[1], plain.kernel.left_out()[0]
    best, nearest = scores.max(1)[plain.several], distances.min(1)[plain.several]
    if len(best) < 2:
        assert left.looks.abs().max() < 1e-20
        return
    reference = (best.mean(), max(1e-9, best.std(ddof=1)), nearest.mean(), nearest.std(ddof=1))
    expected = familiarity_statistic(distances, scores, reference)
    np.testing.assert_allclose(left.looks, expected, rtol=1e-7, atol=1e-6)
    np.testing.assert_allclose(model.novelty.familiar, sorted(expected[plain.several]), rtol=1e-7, atol=1e-6)
    new = problem(width, [6], seed=9)[0]
    expected = familiarity_statistic(plain.gaussians.judged(new)[1], plain.experts(new)[1], reference)
    np.testing.assert_allclose(model.strangeness(scores_of(model, new)), expected, rtol=1e-7, atol=1e-6)


def test_log_odds_of_new_names():
    images, labels, texts = problem(8, [10, 12, 9, 11])
    model, left = fitted(images, labels, texts)
    new_texts = torch.nn.functional.normalize(normal(3, 8, seed=5))
    names = NewNames(model, [new_texts], [SCALE])
    moved = moved_texts(images, labels, texts)
    place = SCALE * (move(model.views[0].text_map, new_texts) - moved.mean(0))
    torch.testing.assert_close(names.directions[0], place)
    new = problem(8, [6], seed=9)[0]
    looks = model.strangeness(scores_of(model, new))
    u, v, fit, beside = model.novelty.odds
    assert (names.reluctance >= u).all()
    mean = texts.double().mean(0)
    alone = float(model.name_scale) * SCALE * new @ (torch.cat([texts, new_texts]).double() - mean).T
    centre = torch.stack([images[labels == c].double().mean(0) for c in range(4)]).mean(0)
    found = names.log_odds([Seen(new)], looks, model.by_name(scores_of(model, new)))
    for i in range(6):
        for n in range(3):
            expected = -names.reluctance[n] - v * looks[i] + fit * (new[i] - centre) @ place[n]
            expected += beside * (alone[i, 4 + n] - alone[i, :4].logsumexp(0))
            torch.testing.assert_close(found[i, n], expected, rtol=1e-8, atol=1e-8)
    # of the left-out photographs themselves each takes no more than one in a hundred
    logits = torch.tensordot(model.weights.best, left.scores, dims=1)
    by_name = model.names_alone(Seen(images.double()))
    torch.testing.assert_close(by_name, model.by_name(left.scores))
    odds = names.log_odds([Seen(images.double())], left.looks, by_name) + logits.logsumexp(1, keepdim=True)
    assert ((odds > logits.amax(1, keepdim=True) + 1e-9).double().mean(0) <= 0.01).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.floats(0.01, 30))
def test_log_odds_fall_with_how_well_known_an_image_looks(seed, more):
    model, _ = fitted(*problem(6, [4, 3, 5], seed=seed))
    names = NewNames(model, [torch.nn.functional.normalize(normal(2, 6, seed=seed))], [SCALE])
    new, looks = torch.nn.functional.normalize(normal(5, 6, seed=seed + 1)), normal(5, seed=seed + 2)
    by_name = model.names_alone(Seen(new))
    nearer, farther = (names.log_odds([Seen(new)], looks + step, by_name) for step in (more, 0))
    assert (nearer < farther).all()


def test_images_far_from_all_are_left_to_the_names():
    images, labels, texts = problem(16, [10, 12, 9, 11], noise=0.2)
    model, _ = fitted(images, labels, texts)
    assert 0.1 < model.information <= 1
    new = torch.nn.functional.normalize(torch.cat([images[:20].double(), normal(20, 16, seed=3)]))
    experts = scores_of(model, new)
    looks = model.strangeness(experts)
    logits = model.weights.draws(3).double() @ experts.flatten(1)
    logits = logits.view(3, *experts.shape[1:])
    share = (model.information * model.novelty.unlike(looks)).unsqueeze(1)
    assert (share == 0).any() and (share > 0.5 * model.information).any()
    found = model.mixed_with_names(logits, model.by_name(experts), looks)
    expected = (1 - share) * logits.softmax(-1) + share * (model.name_scale * experts[3]).softmax(-1)
    torch.testing.assert_close(found.exp(), expected, rtol=1e-8, atol=1e-12)
    alike = (share == 0).squeeze(1)
    torch.testing.assert_close(found[:, alike], logits.log_softmax(-1)[:, alike], rtol=1e-6, atol=1e-6)


def test_the_order_of_images_and_classes_does_not_matter():
    images, labels, texts = problem(8, [6, 4, 7, 5])
    new = problem(8, [6], seed=9)[0]
    model, _ = fitted(images, labels, texts)
    rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    columns = torch.tensor([2, 0, 3, 1])
    other, _ = fitted(images[rows], columns.argsort()[labels[rows]], texts[columns])
    torch.testing.assert_close(
        scores_of(other, new), scores_of(model, new)[:, :, columns], rtol=1e-7, atol=1e-7
    )
    for name in ("weights/log", "weights/root", "novelty/familiar", "novelty/odds", "novelty/found"):
        torch.testing.assert_close(other.tensors()[name], model.tensors()[name], rtol=1e-5, atol=1e-6)


def test_tensors_are_all_of_it():
    model, _ = fitted(*problem(8, [6, 4, 7, 5]))
    flat = model.tensors()
    assert all(isinstance(value, torch.Tensor) for value in flat.values())
    assert {"gaussians/whiten", "kernel/bandwidth", "names/directions", "novelty/odds", "open"} <= set(flat)
    assert set(flat) == set(Posterior.saved())
    again = Posterior.from_tensors(
        {name: value.clone() for name, value in flat.items()}, [model.views[0].photographs], model.labels, 4
    )
    assert (
        type(expert(again, "kernel")) is type(expert(model, "kernel"))
        and again.weights._fields == model.weights._fields
    )
    for name, value in again.tensors().items():
        assert torch.equal(value, flat[name])
    new = problem(8, [6], seed=9)[0]
    assert torch.equal(scores_of(again, new), scores_of(model, new))
    named, named_again = (NewNames(each, [normal(2, 8)], [SCALE]) for each in (model, again))
    assert torch.equal(named.reluctance, named_again.reluctance)


def test_of_many_photographs_and_classes_some_are_judged(monkeypatch):
    images, labels, texts = problem(8, [6, 4, 7, 5])
    whole, _ = fitted(images, labels, texts)
    monkeypatch.setattr(expert_module, "CELLS", 4 * 8)
    some, left = fitted(images, labels, texts)
    assert left.labels.tolist() == labels[::3].tolist()
    assert len(expert(some, "kernel").photographs) == len(some.open) == 8
    for mine, theirs in zip(
        expert(some, "gaussians"), expert(whole, "gaussians"), strict=True
    ):  # by the sums of all
        torch.testing.assert_close(mine, theirs)


def test_the_blocks_it_is_judged_in_do_not_matter(monkeypatch):
    inputs = problem(8, [6, 4, 7, 5])
    whole, _ = fitted(*inputs)
    monkeypatch.setattr(gaussian, "BLOCK", 3 * 8)
    parts, _ = fitted(*inputs)
    for name, value in parts.tensors().items():
        torch.testing.assert_close(value, whole.tensors()[name], rtol=1e-6, atol=1e-8)


def test_names_tell_what_they_tell():
    images, labels, texts = problem(16, [8] * 6, noise=0.1)
    good, _ = fitted(images, labels, texts)
    bad, _ = fitted(images, labels, texts.roll(1, 0))
    silent, _ = fitted(images, labels, torch.zeros_like(texts))
    assert good.information > 0.3 and bad.information < 0.1
    assert float(silent.information) == pytest.approx(0, abs=1e-9)
    assert good.weights.best[3] > bad.weights.best[3]


def test_weighted_photographs_count_so_often_in_gaussians_and_sums():
    images, labels, texts = problem(8, [4, 3, 5])
    often = torch.arange(len(labels)) % 3 + 1
    model, left = fitted(images, labels, texts, often.double())
    twice, _ = fitted(images.repeat_interleave(often, 0), labels.repeat_interleave(often), texts)
    new = problem(8, [6], seed=9)[0]
    torch.testing.assert_close(scores_of(model, new)[0], scores_of(twice, new)[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(model.name_scale, twice.name_scale, rtol=1e-6, atol=0)
    assert left.scores.shape == (4, len(labels), 3)


@pytest.mark.parametrize("counts", [[1, 1], [2, 1], [2, 2], [1, 1, 1], [1], [3], [2, 2, 2]], ids=str)
@pytest.mark.parametrize("kind", ["usual", "equal images", "equal names", "no names", "copies"])
def test_whatever_comes_stays_finite(counts, kind):
    images, labels, texts = problem(6, counts)
    if kind == "equal images":
        images = images[:1].expand(len(labels), -1)
    elif kind == "copies":
        images = torch.stack([images[labels == c][0] for c in labels])
    elif kind == "equal names":
        texts = texts[:1].expand(len(counts), -1)
    elif kind == "no names":
        texts = torch.zeros_like(texts)
    model, left = fitted(images, labels, texts)
    for name, value in model.tensors().items():
        assert value.float().isfinite().all(), name  # files hold nothing else
    assert (model.weights.best > 0).all()
    assert 0 <= model.information <= 1 + 1e-12
    new = torch.cat([problem(6, [5], seed=9)[0], images[:1]]).double()
    experts = scores_of(model, new)
    looks = model.strangeness(experts)
    assert experts.isfinite().all() and looks.isfinite().all() and left.scores.isfinite().all()
    names = NewNames(model, [torch.nn.functional.normalize(normal(2, 6, seed=4))], [SCALE])
    assert names.log_odds([Seen(new)], looks, model.by_name(experts)).isfinite().all()
