"""What left-out photographs choose, against refitting without each of them in float64."""

import math

import numpy as np
import pytest
import torch

from pbprompt.core import left_out_tables
from pbprompt.core.conjugate import make_frame
from pbprompt.core.evidence_choice import KAPPAS, NEGLIGIBLE, TEMPERS, Choice, choose
from pbprompt.core.look_alikes import Alike
from pbprompt.core.names_alone import HALVINGS, background_density, known_odds
from pbprompt.core.statistics import Statistics

SCALE = 30.0
CASES = {
    "equal": (6, [4, 4, 4]),
    "unequal": (6, [3, 1, 5, 2]),
    "a class without": (6, [3, 0, 2, 4]),
    "singles": (6, [1, 1, 1, 1]),
    "wider than many": (20, [2, 3, 1]),
    "two classes": (6, [3, 4]),
    "two classes, one single": (6, [1, 3]),
}
cases = pytest.mark.parametrize(("width", "counts"), CASES.values(), ids=CASES)
unit = torch.nn.functional.normalize


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(width: int, counts: list[int], seed: int = 0, noise: float = 0.4):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    texts = unit(normal(len(counts), width, seed=seed + 1000))
    images = 0.7 * texts[labels] + noise * normal(len(labels), width, seed=seed + 2000) + 0.5
    return unit(images), labels, texts


def chosen(images, labels, texts, scale: float = SCALE) -> Choice:
    frame = make_frame(Statistics.of(images, labels, len(texts)), texts)
    return choose(frame, images @ frame.basis, labels, scale)


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


class Refits:
    """For each image the model without it, by the equations of `core/conjugate.py`, plainly."""

    def __init__(self, images, labels, texts):
        self.x, self.y, self.t = images.numpy(), labels.numpy(), texts.numpy()
        self.d, self.seen = self.x.shape[1], sorted(set(self.y.tolist()))
        self.column = np.array([self.seen.index(c) for c in self.y])
        self.several = np.array([(self.y == c).sum() > 1 for c in self.y])
        self.models = [self.fit(np.arange(len(self.y)) != i) for i in range(len(self.y))]

    def fit(self, rows):
        x, y, d = self.x[rows], self.y[rows], self.d
        seen = sorted(set(y.tolist()))
        mean = {c: x[y == c].mean(0) for c in seen}
        b, tbar = np.mean([*mean.values()], 0), self.t[seen].mean(0)
        r = x - np.array([mean[c] for c in y])
        between = sum(np.sum((mean[c] - b) ** 2) for c in seen) / max(1, len(seen) - 1)
        freedom = len(x) - len(seen)
        variance = max(1e-8 / d, (np.sum(r * r) + between / 2) / (d * (freedom + 1)))
        sigma = (r.T @ r + d * variance * np.eye(d)) / (freedom + d)
        along = sum((self.t[c] - tbar) @ (mean[c] - b) for c in seen)
        length = sum((self.t[c] - tbar) @ sigma @ (self.t[c] - tbar) for c in seen)
        slope = max(0.0, along / length) if len(seen) > 1 else 0.0
        return x, y, mean, b, tbar, sigma, slope

    def squared(self, i: int, kappa: float) -> tuple[np.ndarray, np.ndarray]:
        """To each class seen in the whole: squared distance over ι, and ι."""
        _, y, mean, b, tbar, sigma, slope = self.models[i]
        far, iota = [], []
        for c in self.seen:
            n = (y == c).sum()
            m = b + 2 * slope * sigma @ (self.t[c] - tbar)
            centre = (kappa * m + (n * mean[c] if n else 0)) / (kappa + n)
            iota.append(1 + 1 / (kappa + n))
            off = self.x[i] - centre
            far.append(off @ np.linalg.solve(sigma, off) / iota[-1])
        return np.array(far), np.array(iota)

    def table(self, kappa: float) -> np.ndarray:
        both = [self.squared(i, kappa) for i in range(len(self.y))]
        return np.array([-0.5 * far - 0.5 * self.d * np.log(iota) for far, iota in both])

    def nearest(self) -> np.ndarray:
        return np.array([self.squared(i, 2.0)[0].min() for i in range(len(self.y))])

    def tail(self) -> np.ndarray:
        """What a Student t's tail takes off, 2d/(d + u)."""
        return 2 * self.d / (self.d + self.nearest())

    def growth(self) -> float:
        """T at n photographs against T at one less."""
        n = np.array([(self.y == c).sum() for c in self.y])[self.several]
        return math.exp(np.mean(np.log(n / (n - 1))) / 4) if len(n) else 1.0

    def own(self, logits: np.ndarray) -> np.ndarray:
        return log_softmax(logits)[np.arange(len(self.y)), self.column]

    def names(self) -> tuple[np.ndarray, np.ndarray]:
        """(x − b)·(t_c − t̄) and ‖x − b‖²_P, with the image's class out of b and t̄, and it alone out of P."""
        cosines, ground = [], []
        for i, (x, c) in enumerate(zip(self.x, self.y, strict=True)):
            others = [k for k in self.seen if k != c]
            off = x - np.mean([self.x[self.y == k].mean(0) for k in others], 0)
            cosines.append((self.t[self.seen] - self.t[others].mean(0)) @ off)
            ground.append(off @ np.linalg.solve(self.models[i][5], off))
        return np.array(cosines), np.array(ground)


def spread(table: np.ndarray) -> float:
    return math.sqrt(table.var(1, ddof=1).mean())


def posterior(refits: Refits) -> list[tuple[float, float, float]]:
    """(weight, κ, T), the best first."""
    zero_shot = spread(SCALE * refits.x @ refits.t[refits.seen].T)
    rows = []
    for kappa in KAPPAS:
        table = refits.tail()[:, None] * refits.table(kappa)
        usual = table[refits.several] if len(refits.seen) == 2 else table
        for ratio in TEMPERS:
            temper = ratio * zero_shot / spread(usual)
            prior = -0.5 * math.log(kappa / 2) ** 2 - 0.5 * (math.log(ratio) / 0.5) ** 2
            rows.append((prior + refits.own(temper * table)[refits.several].sum(), kappa, temper))
    top = max(rows)[0]
    kept = [(math.exp(score - top), kappa, temper) for score, kappa, temper in rows]
    kept = sorted((row for row in kept if row[0] > NEGLIGIBLE), reverse=True)
    total = sum(row[0] for row in kept)
    return [(weight / total, kappa, temper * refits.growth()) for weight, kappa, temper in kept]


@cases
def test_pairs_are_the_posterior(width, counts):
    inputs = problem(width, counts)
    choice = chosen(*inputs)
    expected = posterior(Refits(*inputs))
    assert len(choice.weight) == len(expected)
    found = torch.stack([choice.weight, choice.kappa, choice.temper], 1)
    np.testing.assert_allclose(choice.weight, [row[0] for row in expected], rtol=1e-7)
    # pairs of equal weight may change places
    of_pair = lambda row: (round(float(row[1]), 6), round(float(row[2]), 6))  # noqa: E731
    np.testing.assert_allclose(sorted(found.tolist(), key=of_pair), sorted(expected, key=of_pair), rtol=1e-7)


@cases
def test_weights(width, counts):
    weight = chosen(*problem(width, counts)).weight
    assert float(weight.sum()) == pytest.approx(1)
    assert (weight[1:] <= weight[:-1] + 1e-15).all() and (weight > 0).all()
    assert (weight >= NEGLIGIBLE * weight[0] * (1 - 1e-9)).all()


@cases
def test_name_scale_and_information(width, counts):
    inputs = problem(width, counts)
    choice, refits = chosen(*inputs), Refits(*inputs)
    cosines, _ = refits.names()

    def score(scale: float) -> float:
        return refits.own(scale * cosines).sum() - 0.5 * (math.log(scale / SCALE) / 0.5) ** 2

    fine = SCALE * np.exp(np.arange(-3, 1, 1 / 64))
    best = fine[np.argmax([score(scale) for scale in fine])]
    assert abs(math.log(float(choice.name_scale) / best)) <= 1 / 16 + 1 / 64  # half a step of its grid
    told = refits.own(float(choice.name_scale) * cosines).mean()
    information = max(0.0, 1 + told / math.log(len(refits.seen)))
    assert float(choice.information) == pytest.approx(information, abs=1e-9)


@cases
def test_background_and_nearest(width, counts):
    inputs = problem(width, counts)
    choice, refits = chosen(*inputs), Refits(*inputs)
    kappa = float(choice.kappa[0])
    _, squared = refits.names()
    wide = 4 * (1 + 1 / kappa) + squared[refits.several].sum() / width
    wide /= 4 + refits.several.sum()
    assert float(choice.background) == pytest.approx(wide, rel=1e-8)
    np.testing.assert_allclose(choice.nearest, refits.nearest(), rtol=1e-8)


@cases
def test_odds_are_those_of_the_model_without_the_image(width, counts):
    """As those of a new image are of the whole model: only then is their rank a p-value."""
    inputs = problem(width, counts)
    choice, refits = chosen(*inputs), Refits(*inputs)
    kappa, temper, scale = float(choice.kappa[0]), float(choice.temper[0]), float(choice.name_scale)
    wide, odds = float(choice.background), []
    for i, table in enumerate(refits.table(kappa)):
        sharp = temper * refits.tail()[i]
        photographs = sharp * table
        *_, b, tbar, sigma, _ = refits.models[i]
        off = refits.x[i] - b
        ground = -0.5 * off @ np.linalg.solve(sigma, off) / wide - 0.5 * width * math.log(wide)
        names = scale * (refits.t[refits.seen] - tbar) @ off
        odds.append(np.log(np.exp(photographs).sum()) - sharp * ground + np.log(np.exp(names).sum()))
    np.testing.assert_allclose(choice.odds, sorted(odds), rtol=1e-7, atol=1e-7)


@cases
def test_offset(width, counts):
    inputs = problem(width, counts)
    choice, refits = chosen(*inputs), Refits(*inputs)
    kappa, temper, scale = float(choice.kappa[0]), float(choice.temper[0]), float(choice.name_scale)
    cosines, squared = refits.names()
    alone = -math.log(np.exp(scale * cosines).mean())  # the tilt by a name is one on the average
    classes = len(refits.seen)
    if classes < 3 or not refits.several.any():
        assert float(choice.offset) == pytest.approx(alone, abs=1e-9)
        return
    wide = float(choice.background)
    sharp = temper * refits.tail()
    ground = sharp * (-0.5 * squared / wide - 0.5 * width * math.log(wide))
    names, photographs = ground[:, None] + scale * cosines, sharp[:, None] * refits.table(kappa)
    order = torch.rand(HALVINGS, classes, generator=torch.Generator().manual_seed(0)).argsort(1).numpy()
    masks = [*(order < classes / 2), *(order >= classes / 2)]
    each = np.array([(refits.y == c).sum() for c in refits.y])

    def score(extra: float) -> float:
        fits = [
            refits.own(np.where(mask, names + alone + extra, photographs))[refits.several] for mask in masks
        ]
        return sum((fit / each[refits.several]).sum() for fit in fits) / len(masks) - 0.5 * extra**2

    grid = np.arange(-6, 6, 0.01)
    best = grid[np.argmax([score(extra) for extra in grid])]
    assert abs(float(choice.offset) - alone - best) < 0.02


def test_the_order_of_images_does_not_matter():
    images, labels, texts = problem(6, [3, 1, 5, 2])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    one, other = chosen(images, labels, texts), chosen(images[order], labels[order], texts)
    for name, value in one._asdict().items():
        mine = value[order] if name == "nearest" else value
        torch.testing.assert_close(mine, getattr(other, name), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("counts", [[3, 1, 5, 2], [1, 1, 1, 1], [4, 3]])
def test_the_order_of_classes_does_not_matter(counts):
    images, labels, texts = problem(6, counts)
    order = torch.randperm(len(counts), generator=torch.Generator().manual_seed(3))
    one, other = chosen(images, labels, texts), chosen(images, order.argsort()[labels], texts[order])
    for name, value in one._asdict().items():
        if name != "offset":  # which halves of the classes it is fitted to goes by their order
            torch.testing.assert_close(value, getattr(other, name), rtol=1e-7, atol=1e-9)
    assert abs(float(one.offset - other.offset)) < 0.5


@cases
def test_the_blocks_it_is_made_in_do_not_matter(width, counts, monkeypatch):
    inputs = problem(width, counts)
    one = chosen(*inputs)
    monkeypatch.setattr(left_out_tables, "CELLS", 2 * len(counts))
    monkeypatch.setattr(left_out_tables, "IN_CACHE", 3 * len(counts))
    for name, value in chosen(*inputs)._asdict().items():
        torch.testing.assert_close(getattr(one, name), value, rtol=1e-9, atol=1e-9)


def test_look_alikes_make_it_less_sure():
    """Every photograph twice: judged without its copy, the model is no surer than by the photographs once."""
    images, labels, texts = problem(16, [3] * 6, noise=0.3)
    twice, both = images.repeat(2, 1), labels.repeat(2)
    frame = make_frame(Statistics.of(twice, both, 6), texts)
    rotated = twice @ frame.basis
    alone = choose(frame, rotated, both, SCALE)
    ones = rotated.new_ones(len(both))
    known = choose(frame, rotated, both, SCALE, alike=Alike(rotated, 2 * ones, ones))
    mean = lambda choice: float((choice.weight * choice.temper.log()).sum())  # noqa: E731
    assert mean(known) < mean(alone)


def test_the_texts_of_zero_shot_set_the_prior_of_the_temperature():
    """One photograph a class says nothing of T: it goes as decided as zero-shot is."""
    images, labels, texts = problem(6, [1, 1, 1, 1])
    frame = make_frame(Statistics.of(images, labels, 4), texts)
    usual = choose(frame, images @ frame.basis, labels, SCALE)
    tame = choose(frame, images @ frame.basis, labels, SCALE, plain=0.5 * texts @ frame.basis)
    torch.testing.assert_close(tame.temper, 0.5 * usual.temper)


def test_names_tell_what_they_tell():
    images, labels, texts = problem(16, [8] * 6, noise=0.1)
    assert chosen(images, labels, texts).information > 0.5
    strange = unit(normal(6, 16, seed=77))
    assert chosen(images, labels, strange).information < 0.2
    same = texts[:1].repeat(6, 1)
    nothing = chosen(images, labels, same)
    assert nothing.information.item() == pytest.approx(0, abs=1e-9)
    assert nothing.name_scale.item() == pytest.approx(SCALE)


def test_photographs_overrule_the_prior_of_the_name():
    """Names that fit are worth many photographs, names that mislead few."""
    images, labels, texts = problem(16, [6] * 6, noise=0.3)
    good = chosen(images, labels, texts)
    bad = chosen(images, labels, texts.roll(1, 0))
    mean = lambda choice: float((choice.weight * choice.kappa.log()).sum())  # noqa: E731
    assert mean(good) > mean(bad)


@pytest.mark.parametrize(
    "counts", [[1, 1], [2, 1], [2, 2], [1, 1, 1], [1], [3], [0, 3, 0], [1, 0, 1]], ids=str
)
@pytest.mark.parametrize("kind", ["usual", "equal images", "equal names", "no names", "copies"])
def test_whatever_comes_stays_finite(counts, kind):
    images, labels, texts = problem(6, counts)
    if kind == "equal images":
        images = images[:1].expand(len(labels), -1)
    elif kind == "copies":
        images = torch.stack([images[labels == c][0] if (labels == c).any() else images[0] for c in labels])
    elif kind == "equal names":
        texts = texts[:1].expand(len(counts), -1)
    elif kind == "no names":
        texts = torch.zeros_like(texts)
    choice = chosen(images, labels, texts)
    assert all(value.isfinite().all() for value in choice)
    assert float(choice.weight.sum()) == pytest.approx(1)
    assert (choice.kappa > 0).all() and (choice.temper > 0).all() and choice.background > 0
    assert 0 <= choice.information <= 1
    one = sum(n > 0 for n in counts) < 2
    assert len(choice.nearest) == len(choice.odds) == (0 if one else len(labels))


def test_background_density_and_odds():
    squared = torch.tensor([3.0, 8.0], dtype=torch.float64)
    found = background_density(squared, torch.tensor(1.5, dtype=torch.float64), 6)
    np.testing.assert_allclose(found, [-1 - 3 * math.log(1.5), -8 / 3 - 3 * math.log(1.5)])
    photographs, names = normal(2, 4, seed=0), normal(2, 4, seed=1)
    odds = photographs.exp().sum(1).log() - found + names.exp().sum(1).log()
    torch.testing.assert_close(known_odds(photographs, found, names), odds)
