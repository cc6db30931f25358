"""Photographs without labels: each step against its equations, computed plainly; when they are used."""

import numpy as np
import pytest
import torch
from experts import expert, photographs, scores
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_posterior import PlainGaussians, PlainKernel, normal, problem
from scipy.special import softmax

from pbprompt.evidence import unlabelled
from pbprompt.evidence.evidence import Evidence
from pbprompt.evidence.expert import Photographs, Seen
from pbprompt.evidence.posterior import fit_posterior
from pbprompt.evidence.text_map import learn_text_map
from pbprompt.evidence.unlabelled import absorb, absorb_by_names, seen, shared_out, with_pool

SCALE = 20.0


def labelled(width, counts, pool, seed=0, noise=0.4):
    """Of one draw: some photographs with labels, the others without, and texts."""
    images, labels, texts = problem(width, [n + pool for n in counts], seed, noise)
    taken = torch.cat([(labels == c).nonzero().squeeze(1)[:n] for c, n in enumerate(counts)])
    rest = torch.ones(len(labels), dtype=torch.bool)
    rest[taken] = False
    return photographs(images[taken], labels[taken], texts, SCALE), images[rest], labels[rest]


def plainly_shared_out(logits: np.ndarray, useful: float) -> np.ndarray:
    pool, classes = logits.shape
    often = lambda shares: np.log((shares.sum(0) + 1) / ((pool + classes) / classes))  # noqa: E731
    said = softmax(logits, axis=1)
    spread = often(said).var(ddof=1)
    explained = min(1.0, (1 - np.mean([row.max() for row in said])) ** 2 / spread)
    shares = []
    for table, share in ((2 * logits, 0.5), (logits, explained)):
        pull = np.zeros(classes)
        for _ in range(8):
            pull = share * (pull - often(softmax(table + pull, axis=1)))
        shares.append(softmax(table + pull, axis=1))
    return (1 - useful) * shares[0] * said + useful * shares[1]


@given(st.integers(1, 20), st.integers(2, 6), st.integers(0, 99), st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_shares(pool, classes, seed, useful):
    logits = 3 * normal(pool, classes, seed=seed)
    shares = shared_out(logits, useful)
    np.testing.assert_allclose(shares, plainly_shared_out(logits.numpy(), useful), rtol=1e-9, atol=1e-12)
    assert (shares >= 0).all() and (shares.sum(1) <= 1 + 1e-12).all()


def test_shares_are_pulled_to_equal_sizes():
    logits = 0.5 * normal(400, 4) + torch.tensor([1.0, 0.0, 0.0, 0.0])
    pulled = shared_out(logits, 0.0) / logits.softmax(1)  # s
    plain = (2 * logits).softmax(1)
    assert float(pulled.sum(0).max()) < float(plain.sum(0).max())
    torch.testing.assert_close(pulled.sum(1), torch.ones(400, dtype=torch.float64))


def test_sizes_that_errors_do_not_explain_stay():
    """Sure answers that differ in number are believed; unsure ones are taken for equal numbers."""
    truly = torch.arange(400) % 10 // 9  # nine in ten are of the first class
    sure, unsure = (shared_out(scale * torch.eye(2)[truly].double(), 1.0) for scale in (6.0, 0.5))
    torch.testing.assert_close(sure.sum(1), torch.ones(400).double())
    assert sure.sum(0)[0] > 350
    assert unsure.sum(0)[0] == pytest.approx(200, abs=5)


@given(st.integers(2, 6), st.integers(1, 30), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_sums_with_a_pool_are_those_of_weighted_photographs(classes, pool, seed):
    shown, images, _ = labelled(5, [2] * classes, pool, seed)
    statistics = shown.statistics
    shares = torch.rand(len(images), classes, generator=torch.Generator().manual_seed(seed)).double()
    most = 4 * statistics.counts
    found, weight = with_pool(statistics, images, shares, most)
    factor = (most / shares.sum(0)).clamp(max=1)
    each = images.repeat_interleave(classes, 0), torch.arange(classes).repeat(len(images))
    expected = statistics.merged(Evidence.of(*each, classes, (shares * factor).flatten()).statistics)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
    assert weight == pytest.approx(float((shares * factor).sum()))
    assert (found.counts <= 5 * statistics.counts + 1e-9).all()


class Plain:
    """Three passes by the equations, with real refits of Gaussians on weighted photographs: the last shares,
    and what the Gaussians `said` that they are made of."""

    def __init__(self, shown: Photographs, pool, weights, experts, useful):
        self.pool, self.k, statistics = pool, shown.classes, shown.statistics
        self.moved = learn_text_map(statistics.means, statistics.counts, shown.texts)[1]
        self.fixed = sum(w * e for w, e in zip(weights[1:], experts[1:], strict=True)).numpy()
        self.first = float(weights[0])
        said = experts[0].numpy()
        for _ in range(4):
            self.shares = plainly_shared_out(self.first * said + self.fixed, useful)
            limit = 4 * statistics.counts.numpy() / self.shares.sum(0)
            capped = torch.from_numpy(self.shares * np.minimum(1, limit))
            self.gaussians = PlainGaussians(
                torch.cat([shown.images, pool.repeat_interleave(self.k, 0)]),
                torch.cat([shown.labels, torch.arange(self.k).repeat(len(pool))]),
                self.moved,
                torch.cat([shown.shares, capped.flatten()]),
            )
            self.said, said = said, self.gaussians.judged(pool)[0]


def useful(base) -> float:
    return float(base.information) * min(1.0, float(base.name_scale))


@pytest.mark.parametrize("counts", [[1, 1, 1, 1, 1], [3, 3, 2]], ids=["single", "several"])
def test_passes_against_real_refits(counts, monkeypatch):
    monkeypatch.setattr(unlabelled, "STRANGE", 0.0)  # all are of a class
    evidence, pool, _ = labelled(6, counts, 7)
    base, left = fit_posterior(evidence)
    near, gaussians = left.closeness[0].min(), expert(base, "gaussians")
    pool = pool[gaussians.closeness(gaussians.scores(Seen(pool))) >= near]
    weights = base.weights.best * torch.tensor([1.5, 1.5, 1.5, 1.0])
    said = scores(base, pool)
    (gaussians,), shares, _ = unlabelled._passes(
        base, said, weights, [evidence.statistics], [pool], [evidence.placed[1]]
    )
    plain = Plain(evidence, pool, weights, said, useful(base))
    np.testing.assert_allclose(shares, plain.shares, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(gaussians.scores(Seen(pool)), plain.said, rtol=1e-7, atol=1e-6)


def test_folds_are_refits_without_their_photographs():
    evidence, pool, _ = labelled(6, [4, 3, 5], 10)
    kept, texts = evidence, evidence.texts
    base, left = fit_posterior(evidence)
    together = unlabelled._Together.of(expert(base, "kernel"), left.shares, pool)
    joint, _ = unlabelled._by_folds(base, left, [evidence], [together], [pool])
    gone, asked = evidence.dealt(4)[3]  # of the class of three, one is gone that was asked about before
    assert len(gone) == len(asked) + 1
    rest = ~torch.isin(torch.arange(12), gone)
    out = asked
    fewer = photographs(kept.images[rest], kept.labels[rest], texts, SCALE)
    moved = fewer.placed[1]
    h = float(expert(base, "kernel").bandwidth)
    kernel = PlainKernel(kept.images[rest], kept.labels[rest], 3, bandwidth=h)
    gaussians = PlainGaussians(kept.images[rest], kept.labels[rest], moved)
    by_name = pool @ expert(base, "names").directions.T
    tables = np.stack([gaussians.judged(pool)[0], *kernel.scores(pool.numpy()), by_name])
    plain = Plain(fewer, pool, base.weights.best, torch.from_numpy(tables), useful(base))
    targets = np.concatenate(
        [np.eye(3)[kept.labels[rest]], plain.shares + (1 - plain.shares.sum(1, keepdims=True)) / 3]
    )
    every = np.concatenate([kept.images[rest].double(), pool])
    near = lambda a, b: np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * h))  # noqa: E731
    ridge = np.diag(np.concatenate([np.full(int(rest.sum()), 0.1), np.full(len(pool), 0.1 / 0.3)]))
    alpha = np.linalg.solve(near(every, every) + ridge, targets - 1 / 3)
    x = kept.images[out].double().numpy()
    np.testing.assert_allclose(joint.scores[1, out], near(x, every) @ alpha, rtol=1e-6, atol=1e-8)
    likely = np.concatenate([kept.labels[rest].numpy(), plain.shares.argmax(1)])
    closest = np.stack([np.log(near(x, every[likely == c]).max(1)) for c in range(3)], axis=1)
    np.testing.assert_allclose(joint.scores[2, out], closest, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(joint.scores[3], left.scores[3])


def accuracy(posterior, images, labels) -> float:
    said = torch.tensordot(posterior.weights.best, scores(posterior, images), dims=1)
    return float((said.argmax(1) == labels).double().mean())


@pytest.mark.parametrize("shots", [1, 3, 4])
def test_helps_where_classes_are_clusters(shots):
    evidence, pool, _ = labelled(12, [shots] * 25, 20, seed=3, noise=0.3)
    _, new, labels = labelled(12, [shots] * 25, 20, seed=3, noise=0.3)
    found = absorb([evidence], [pool])
    base, _ = fit_posterior(evidence)
    assert found.weight > 0 and found.familiar.double().mean() > 0.6
    assert (found.verdict is None) == (shots == 1)
    assert accuracy(found.posterior, new, labels) > accuracy(base, new, labels)
    assert len(found.posterior.labels) == 25 * shots + len(found.kernel_rows)


def test_what_shows_none_of_the_classes_takes_no_part():
    evidence, pool, _ = labelled(12, [4] * 10, 15, seed=3, noise=0.3)
    foreign = torch.nn.functional.normalize(normal(100, 12, seed=77) - 2.0)
    found = absorb([evidence], [torch.cat([pool, foreign])])
    alone = absorb([evidence], [pool])
    assert not found.familiar[len(pool) :].any()
    assert found.familiar[: len(pool)].tolist() == alone.familiar.tolist()
    new = problem(12, [5] * 10, seed=8)[0]
    torch.testing.assert_close(scores(found.posterior, new), scores(alone.posterior, new))


def test_not_used_where_left_out_photographs_gain_nothing():
    """Labels that have nothing to do with what is seen."""
    images, _, texts = problem(12, [20] * 5, seed=3)
    labels = torch.arange(100) % 5
    evidence = photographs(images[:40], labels[:40], texts, SCALE)
    found = absorb([evidence], [images[40:]])
    assert found.verdict is not None and not found.verdict.helps and found.weight == 0
    base, left = fit_posterior(evidence)
    for mine, theirs in zip(found.posterior.tensors().values(), base.tensors().values(), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(found.left.scores, left.scores)


@pytest.mark.parametrize("pool", [0, 1, 20])
def test_few_or_none(pool):
    """Of twenty photographs for as many classes nothing can be told, nor of none."""
    evidence, images, _ = labelled(8, [1] * 12, 3)
    found = absorb([evidence], [images[:pool]])
    assert found.weight == 0 and len(found.familiar) == pool and not len(found.kernel_rows)


def test_one_class_and_equal_images():
    one = torch.eye(4).double()[:1]
    alone = photographs(one.repeat(3, 1), torch.zeros(3, dtype=torch.long), one, SCALE)
    found = absorb([alone], [one.repeat(9, 1)])
    assert found.weight == 0
    same = torch.eye(4).double()[:1].repeat(6, 1)
    found = absorb([photographs(same, torch.arange(6) % 2, torch.eye(4)[:2], SCALE)], [same])
    assert all(torch.isfinite(value).all() for value in found.posterior.tensors().values())


def test_by_names_alone():
    images, labels, texts = problem(12, [30] * 6, seed=3, noise=0.35)
    found, statistics = absorb_by_names([texts], [SCALE], [images[:120]])
    names = images[120:] @ (texts - texts.mean(0)).T
    zero_shot = float((names.argmax(1) == labels[120:]).double().mean())
    assert accuracy(found.posterior, images[120:], labels[120:]) >= zero_shot
    assert (statistics.counts > 0).all() and (statistics.counts <= 4 + 1e-9).all()
    assert found.weight == pytest.approx(float(statistics.counts.sum()))
    assert all(torch.isfinite(value).all() for value in found.posterior.tensors().values())


def test_images_that_are_asked_for_do_not_vouch_for_themselves():
    evidence, pool, _ = labelled(12, [4] * 25, 20, seed=3, noise=0.3)
    found = absorb([evidence], [pool], in_kernel=0)
    base, _ = fit_posterior(evidence)
    assert found.weight > 0 and not len(found.kernel_rows)
    torch.testing.assert_close(
        expert(found.posterior, "kernel").coefficients, expert(base, "kernel").coefficients
    )
    assert not torch.allclose(
        expert(found.posterior, "gaussians").direction, expert(base, "gaussians").direction
    )


def test_a_pool_is_bounded():
    assert seen(10) == 1 << 16 and seen(21_000) == (1 << 24) // 21_000


def test_more_labelled_photographs_than_are_judged(monkeypatch):
    """The sums of all, and folds of those that are kept."""
    shown, pool, _ = labelled(8, [1, 1, 1], 40)
    images, labels, _ = problem(8, [30, 30, 30])
    everything = Evidence.of(images, labels, 3)
    few = everything.kept.at(torch.arange(30))
    found = absorb([Photographs.of(everything.statistics, few, shown.texts, SCALE)], [pool])
    assert found.verdict is not None and found.verdict.photographs == 30
