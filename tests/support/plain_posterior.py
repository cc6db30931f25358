"""The closed-form model computed slowly, in float64 and by its equations: inverses, loops and real refits."""

import math

import numpy as np
import scipy.optimize
import scipy.special
import scipy.stats
import torch

GAMMA, KAPPA = 2.0, 2.0


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(width: int, counts: list[int], seed: int = 0, noise: float = 0.4):
    """Photographs of length 1 near their names, shuffled; their labels; texts of length 1."""
    unit = torch.nn.functional.normalize
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    texts = unit(normal(len(counts), width, seed=seed + 1000))
    images = 0.7 * texts[labels] + noise * normal(len(labels), width, seed=seed + 2000) + 0.5
    return unit(images), labels, texts


def repeated(images, labels, times):
    return images.repeat_interleave(times, 0), labels.repeat_interleave(times)


class PlainGaussians:
    """`evidence/experts/gaussian.py`, term by term; `weights`: how often each photograph counts."""

    def __init__(self, images, labels, texts, weights=None):
        self.x, self.y, t = images.double().numpy(), labels.numpy(), texts.double().numpy()
        self.w = np.ones(len(self.y)) if weights is None else weights.double().numpy()
        self.classes, self.d = len(t), self.x.shape[1]
        self.n, self.mean = self._means(np.ones(len(self.y), dtype=bool))
        self.S = self._scatter(np.ones(len(self.y), dtype=bool))
        self.b = self.mean.mean(0)
        freedom = max(0.0, self.w.sum() - self.classes)
        spread = np.sum((self.mean - self.b) ** 2) / max(1, self.classes - 1)
        variance = (np.trace(self.S) + 0.5 * spread) / (self.d * (freedom + 1))
        self.a = self.d * max(variance, 1e-8 / self.d)  # images have length 1
        self.M = freedom + self.d
        self.sigma = self._sigma(self.S, self.M)
        tilde = t - t.mean(0)
        length = sum(row @ self.sigma @ row for row in tilde)
        along = sum(row @ (mean - self.b) for row, mean in zip(tilde, self.mean, strict=True))
        small = length <= 1e-12 * np.trace(self.sigma) / self.d
        self.slope = 0.0 if small else max(0.0, along / length)
        self.prior = np.array([self.b + GAMMA * self.slope * self.sigma @ row for row in tilde])

    def _means(self, rows):
        n, mean = np.zeros(self.classes), np.zeros((self.classes, self.d))
        for c in range(self.classes):
            own = rows & (self.y == c)
            n[c] = self.w[own].sum()
            mean[c] = self.w[own] @ self.x[own] / n[c] if n[c] else 0.0
        return n, mean

    def _scatter(self, rows):
        mean, total = self._means(rows)[1], np.zeros((self.d, self.d))
        for i in rows.nonzero()[0]:
            r = self.x[i] - mean[self.y[i]]
            total += self.w[i] * np.outer(r, r)
        return total

    def _sigma(self, scatter, size):
        return (scatter + self.a * np.eye(self.d)) / size

    def _judged(self, x, n, mean, sigma):
        """(L_c less what is common to all, D_c) of one image."""
        densities, distances = np.zeros(self.classes), np.zeros(self.classes)
        common = -0.5 * np.linalg.slogdet(2 * math.pi * sigma)[1]
        for c in range(self.classes):
            centre = (KAPPA * self.prior[c] + n[c] * mean[c]) / (KAPPA + n[c])
            iota = 1 + 1 / (KAPPA + n[c])
            distances[c] = (x - centre) @ np.linalg.solve(iota * sigma, x - centre)
            densities[c] = scipy.stats.multivariate_normal(centre, iota * sigma).logpdf(x) - common
        return densities, distances

    def judged(self, images):
        """L and D of new images."""
        pairs = [self._judged(x, self.n, self.mean, self.sigma) for x in images.double().numpy()]
        return tuple(np.array(values) for values in zip(*pairs, strict=True))

    def left_out(self):
        """L and D of each photograph, refitted without it under the same prior."""
        pairs = []
        for i in range(len(self.y)):
            rest = np.arange(len(self.y)) != i
            alone = not (rest & (self.y == self.y[i])).any()
            n, mean = self._means(rest)
            size = self.M - (0 if alone else self.w[i])
            pairs.append(self._judged(self.x[i], n, mean, self._sigma(self._scatter(rest), size)))
        return tuple(np.array(values) for values in zip(*pairs, strict=True))


class PlainKernel:
    """`evidence/experts/kernel.py`, refitted for whatever is left out."""

    def __init__(self, images, labels, classes: int, weights=None, bandwidth: float | None = None):
        self.x, self.y, self.classes = images.double().numpy(), labels.numpy(), classes
        self.w = np.ones(len(self.y)) if weights is None else weights.double().numpy()
        n = len(self.y)
        pairs = [np.sum((self.x[i] - self.x[j]) ** 2) for i in range(n) for j in range(i)]
        middle = sorted(pairs)[(len(pairs) - 1) // 2] if pairs else 0.0  # the lower one of two
        self.h = max(0.2 * middle, 1e-6) if bandwidth is None else bandwidth

    def regression(self, x, rows):
        """R of one image by the photographs at `rows`."""
        near = lambda one, others: np.exp(-np.sum((one - others) ** 2, axis=-1) / (2 * self.h))  # noqa: E731
        known = np.array([near(self.x[i], self.x[rows]) for i in rows]).reshape(len(rows), len(rows))
        targets = np.eye(self.classes)[self.y[rows]] - 1 / self.classes
        return near(x, self.x[rows]) @ np.linalg.solve(known + np.diag(0.1 / self.w[rows]), targets)

    def nearest(self, x, rows):
        """Q of one image by the photographs at `rows`: of a class without any, the others' mean."""
        best: dict[int, float] = {}
        for i in rows:
            close, c = -np.sum((x - self.x[i]) ** 2) / (2 * self.h), int(self.y[i])
            best[c] = max(best.get(c, close), close)
        mean = sum(best.values()) / max(1, len(best))
        return np.array([best.get(c, mean) for c in range(self.classes)])

    def scores(self, images):
        """R and Q of new images."""
        rows = np.arange(len(self.y))
        return np.array([[by(x, rows) for x in images] for by in (self.regression, self.nearest)])

    def left_out(self):
        """R and Q of each photograph without it."""
        rows = np.arange(len(self.y))
        return np.array(
            [[by(self.x[i], rows[rows != i]) for i in rows] for by in (self.regression, self.nearest)]
        )

    def without_class(self):
        """R of each photograph without all of its class."""
        rows = np.arange(len(self.y))
        return np.array([self.regression(self.x[i], rows[self.y != self.y[i]]) for i in rows])


def weights_loss(log_weights, scores, labels, usual, shares) -> float:
    """What `evidence/weights.py` makes least, in ln w."""
    ratio = np.exp(log_weights) / usual
    total = np.sum(ratio - np.log(ratio))
    logits = sum(np.exp(w) * table for w, table in zip(log_weights, scores, strict=True))
    own = logits[np.arange(len(labels)), labels]
    return float(total - np.sum(shares * (own - scipy.special.logsumexp(logits, axis=1))))


def best_log_weights(scores, labels, usual, shares) -> np.ndarray:
    found = scipy.optimize.minimize(
        weights_loss, np.log(usual), (scores, labels, usual, shares), method="BFGS", options={"gtol": 1e-9}
    )
    polished = scipy.optimize.minimize(
        weights_loss,
        found.x,
        (scores, labels, usual, shares),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-13},
    )
    return polished.x


def curvature(function, at: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """Second derivatives by differences."""
    size, found = len(at), np.zeros((len(at), len(at)))
    for i in range(size):
        for j in range(size):
            e, f = step * np.eye(size)[i], step * np.eye(size)[j]
            parts = function(at + e + f), function(at + e - f), function(at - e + f), function(at - e - f)
            found[i, j] = (parts[0] - parts[1] - parts[2] + parts[3]) / (4 * step * step)
    return found


def familiarity_statistic(distances, scores, reference):
    """F of each image, from its row of D and of R."""
    best_mean, best_deviation, near_mean, near_deviation = reference
    return np.array(
        [
            (max(r) - best_mean) / best_deviation + min(0.0, 1 - (min(d) - near_mean) / near_deviation)
            for d, r in zip(distances, scores, strict=True)
        ]
    )
