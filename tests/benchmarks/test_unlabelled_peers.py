"""The peers against their equations, computed slowly."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import root
from scipy.special import digamma
from scipy.stats import dirichlet, multivariate_normal

from benchmarks import unlabelled_peers as peers

CLASSES, WIDTH, POOL = 3, 4, 12


def made(shots: int = 2, seed: int = 0) -> peers.Given:
    """Classes around their names."""
    chance = torch.Generator().manual_seed(seed)
    texts = F.normalize(torch.randn(CLASSES, WIDTH, generator=chance).double(), dim=1)

    def near(labels):
        return F.normalize(texts[labels] + 0.3 * torch.randn(len(labels), WIDTH, generator=chance), dim=1)

    labels = torch.arange(CLASSES).repeat(shots)
    return peers.Given(near(labels), labels, near(torch.arange(POOL) % CLASSES), texts, 5.0)


def slow_graph(given: peers.Given) -> tuple[np.ndarray, np.ndarray]:
    """w of the pool among itself, and of the labelled images to it."""
    found = []
    for images, itself in ((given.pool, True), (given.images, False)):
        table = np.zeros((len(images), POOL))
        for i, image in enumerate(images):
            cosines = {
                j: float(image @ other) for j, other in enumerate(given.pool) if not (itself and i == j)
            }
            for j in sorted(cosines, key=cosines.__getitem__)[-3:]:
                table[i, j] = max(cosines[j], 0)
        found.append(table)
    return found[0], found[1]


@pytest.mark.parametrize("shots", [0, 2])
def test_transclip_is_its_equations_image_by_image(shots):
    given, temper, gamma = made(shots), 2.0, 0.02
    w, w_labelled = slow_graph(given)
    f, s, y = given.pool.numpy(), given.images.numpy(), given.labels.numpy()
    cosines = np.exp(given.scale * f @ given.texts.numpy().T)
    names = cosines / cosines.sum(1, keepdims=True)
    power = 0.5 if shots else 1.0
    z, mu, variance = names.copy(), np.zeros((CLASSES, WIDTH)), np.full(WIDTH, 1 / WIDTH)
    for k in range(CLASSES):
        best = np.argsort(-names[:, k])[:8]
        mean = s[y == k].mean(0) if shots else (names[best, k, None] * f[best]).mean(0)
        mu[k] = mean / np.linalg.norm(mean)
    for step in range(11):
        density = np.array(
            [[multivariate_normal.logpdf(x, mu[k], np.diag(variance)) for k in range(CLASSES)] for x in f]
        )
        for _ in range(5):
            new = np.zeros_like(z)
            for i in range(POOL):
                pull = sum((w[i, j] + w[j, i]) * z[j] for j in range(POOL))
                pull = pull + sum(w_labelled[a, i] * np.eye(CLASSES)[y[a]] for a in range(len(s)))
                new[i] = names[i] ** power * np.exp(density[i] / temper + pull / 6)
            z = new / new.sum(1, keepdims=True)
        if step == 10:
            break
        every = np.concatenate([f, s])
        a = np.concatenate([z / POOL, np.eye(CLASSES)[y] * 50 * gamma / max(len(s), 1)])
        for k in range(CLASSES):
            mean = (a[:, k, None] * every).sum(0) / a[:, k].sum()
            mu[k] = mean / np.linalg.norm(mean)
        variance = sum((a[:, k, None] * (every - mu[k]) ** 2).sum(0) for k in range(CLASSES)) / a.sum()
    graph = peers.affinity(given.pool, given.pool, itself=True).to_dense()
    found = peers.fit_transclip(given, (graph + graph.T).to_sparse(), temper, gamma)
    np.testing.assert_allclose(found.shares, z, atol=1e-9)

    new = F.normalize(torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(9)).double(), dim=1)
    by_name = np.exp(given.scale * new.numpy() @ given.texts.numpy().T)
    by_name /= by_name.sum(1, keepdims=True)
    density = np.array(
        [
            [multivariate_normal.logpdf(x, mu[k], np.diag(variance)) for k in range(CLASSES)]
            for x in new.numpy()
        ]
    )
    wanted = by_name**power * np.exp(density / temper)
    np.testing.assert_allclose(found.answers(new), wanted / wanted.sum(1, keepdims=True), atol=1e-9)


def test_the_fitted_dirichlet_has_the_mean_logarithms():
    chance = np.random.default_rng(0)
    alpha = np.array([[0.3, 2.0, 5.0, 0.05], [40.0, 1.0, 1.0, 8.0]])
    means = torch.tensor(digamma(alpha) - digamma(alpha.sum(1, keepdims=True)))
    for start in (torch.ones(2, 4).double(), torch.tensor(chance.uniform(0.01, 50, (2, 4)))):
        np.testing.assert_allclose(peers.fit_dirichlets(means, start), alpha, rtol=1e-6)


def test_a_single_image_has_no_largest_dirichlet_but_a_bound():
    q = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    found = peers.fit_dirichlets(q.log(), torch.ones_like(q))
    assert float(found.sum()) == pytest.approx(peers.SUREST)
    np.testing.assert_allclose(found / found.sum(), q, atol=1e-3)


def test_densities_are_those_of_scipy():
    alpha = torch.tensor([[0.5, 2.0, 1.0], [3.0, 3.0, 0.7]], dtype=torch.float64)
    q = torch.tensor([[0.2, 0.3, 0.5], [0.7, 0.1, 0.2]], dtype=torch.float64)
    wanted = [[dirichlet.logpdf(x, a) for a in alpha.numpy()] for x in q.numpy()]
    np.testing.assert_allclose(peers.log_dirichlet(q.log(), alpha), wanted)


@pytest.mark.parametrize("penalty", [1.0, 3.0])
def test_em_dirichlet_is_its_equations(penalty):
    given = made()
    features = [(0.3 * given.scale * x @ given.texts.T).softmax(1) for x in (given.pool, given.images)]
    q, labelled = (x.numpy() + 1e-15 for x in features)
    known, z = np.eye(CLASSES)[given.labels.numpy()], q.copy()
    for _ in range(20):
        alpha = []
        for k in range(CLASSES):
            weights = np.concatenate([z[:, k], known[:, k]])
            mean = (weights[:, None] * np.log(np.concatenate([q, labelled]))).sum(0) / weights.sum()
            alpha.append(slow_dirichlet(mean))
        sizes = z.mean(0)
        density = np.array([[dirichlet.logpdf(x / x.sum(), a) for a in alpha] for x in q])
        z = np.exp(density) * (sizes + 1e-15) ** penalty
        z /= z.sum(1, keepdims=True)
    found = peers.fit_em_dirichlet(given, 0.3, penalty)
    np.testing.assert_allclose(found.shares, z, atol=1e-5)
    np.testing.assert_allclose(found.answers(given.pool), z, atol=1e-5)


def slow_dirichlet(mean: np.ndarray) -> np.ndarray:
    """By the root of ψ(α) − ψ(Σ α) − mean."""
    found = root(
        lambda log: digamma(np.exp(log)) - digamma(np.exp(log).sum()) - mean, np.zeros_like(mean), tol=1e-12
    )
    assert np.abs(found.fun).max() < 1e-9
    return np.exp(found.x)


def test_without_labels_clusters_get_the_names_that_fit_all_of_them_best():
    features = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]]).double()
    shares = torch.eye(3).double()[[2, 0, 1]]  # the first image is in cluster 2, …
    assert peers.matched(shares, features).tolist() == [2, 0, 1]


def test_a_setting_is_chosen_by_labelled_images_that_were_left_out():
    given = made(shots=4)
    given = given._replace(labels=given.labels.sort().values)
    out = F.one_hot(given.labels[1::2], CLASSES).double()
    asked = []

    def fit(some, setting):
        asked.append(some.labels.bincount().tolist())
        return peers.Found(out, lambda images: out if setting == "good" else out.roll(1, 1))

    assert peers.chosen(given, ["bad", "good"], fit) == "good" and asked == [[2, 2, 2]] * 2
    alone = given._replace(images=given.images[::4], labels=given.labels[::4])
    assert peers.chosen(alone, ["bad", "good"], fit) == "bad" and len(asked) == 2  # nothing to spare


@pytest.mark.parametrize("name", peers.PEERS)
def test_every_peer_answers_for_any_image(name):
    given = made(shots=2)
    found = peers.PEERS[name](given._replace(pool=made(seed=0).pool.repeat(3, 1)))
    for said, count in ((found.shares, 3 * POOL), (found.answers(given.images), len(given.images))):
        assert said.shape == (count, CLASSES)
        torch.testing.assert_close(said.sum(1), torch.ones(count).double())
    assert (found.answers(given.images).argmax(1) == given.labels).double().mean() > 0.6


def test_a_class_without_labels_has_no_probability():
    given = made()
    few = given.labels != 1
    found = peers.label_spreading(given._replace(images=given.images[few], labels=given.labels[few]))
    assert not found.shares[:, 1].any()
