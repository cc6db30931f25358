"""The closed-form classifier against float64 computations from its docstring, and how it is lived with."""

import numpy as np
import pytest
import scipy.stats
import torch
from pbprompt.core.conjugate import make_frame
from pbprompt.core.evidence_choice import choose
from pbprompt.core.look_alikes import look_alikes

from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.core import evidence
from pbprompt.core.likelihood import Uncertainty, unit
from pbprompt.core.statistics import Statistics
from pbprompt.core.text_map import learn_text_map, move
from pbprompt.errors import InputError
from pbprompt.features.bank import Features
from pbprompt.methods import conjugate
from pbprompt.methods.abilities import LeavesOut, Streams, can
from pbprompt.methods.base import Batch, build_method
from pbprompt.methods.conjugate import Conjugate, ConjugateConfig
from pbprompt.methods.zeroshot import ENSEMBLE, sentence_features
from pbprompt.model.folder import describe_model, load_model, save_model
from pbprompt.model.predictor import predictive
from pbprompt.train.loop import Run, train

NAMES = ("cat", "golden_retriever", "Ångström", "traffic light")
TEMPLATE = "a photo of a {}."
COUNTS = (4, 2, 5, 3)


def texts_of(backbone: Backbone, names) -> torch.Tensor:
    return unit(sentence_features(backbone, names, TEMPLATE).float())


def photographs(backbone: Backbone, names, labels, seed: int, noise: float = 0.6) -> Encoded:
    """Near what the names say, of any length."""
    generator = torch.Generator().manual_seed(seed)
    texts = texts_of(backbone, names)
    texts = unit(texts - texts.mean(0))
    noises = torch.randn(len(labels), backbone.embed_dim, generator=generator) / backbone.embed_dim**0.5
    x = 0.5 + 2 * texts[labels] + noise * 6 * noises
    x = x * (1 + torch.rand(len(labels), 1, generator=generator))
    return with_patches(x)


def with_patches(x: torch.Tensor) -> Encoded:
    return Encoded(x, x.unsqueeze(1).repeat(1, 3, 1))


def labels_of(counts=COUNTS) -> torch.Tensor:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))]


def rows(images: Encoded, index) -> Encoded:
    return Encoded(images.global_[index], images.patches[index])


def fit(backbone: Backbone, images: Encoded, labels, names=NAMES, **settings) -> Conjugate:
    method = build_method(Conjugate, ConjugateConfig(**{"prior": "sentence", **settings}), backbone, seed=0)
    method.prepare(names, TEMPLATE)
    method.begin(images, labels, seed=0)
    method.finish()
    return method


def usual(backbone: Backbone, counts=COUNTS, names=NAMES, **settings) -> Conjugate:
    labels = labels_of(counts)
    return fit(backbone, photographs(backbone, names, labels, seed=1), labels, names, **settings)


def ask(method: Conjugate, images: Encoded) -> Uncertainty:
    return predictive(method)(images)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Plain:
    """p(c | x) by the equations, from photographs and texts in float64 and the chosen numbers."""

    def __init__(self, method: Conjugate, images: Encoded, labels, texts):
        x, y, t = unit(images.global_).double().numpy(), labels.numpy(), texts.double().numpy()
        self.choice = {
            name: getattr(method, f"choice_{name}").numpy()
            for name in ("kappa", "temper", "weight", "name_scale", "background", "offset")
        }
        self.d, seen = x.shape[1], sorted(set(y.tolist()))
        self.n = np.bincount(y, minlength=len(t))
        self.mean = {c: x[y == c].mean(0) for c in seen}
        self.b, self.tbar = np.mean([*self.mean.values()], 0), t[seen].mean(0)
        r = x - np.array([self.mean[c] for c in y])
        between = sum(np.sum((self.mean[c] - self.b) ** 2) for c in seen) / max(1, len(seen) - 1)
        freedom = len(x) - len(seen)
        variance = (np.sum(r * r) + between / 2) / (self.d * (freedom + 1))
        self.sigma = (r.T @ r + self.d * variance * np.eye(self.d)) / (freedom + self.d)
        self.plain = {c: t[c] for c in seen}
        self.texts = {c: self.moved(t[c], c) for c in seen}
        self.centre = np.mean([*self.texts.values()], 0)
        away = np.array([self.texts[c] for c in seen]) - self.centre
        along = sum(a @ (self.mean[c] - self.b) for a, c in zip(away, seen, strict=True))
        self.slope = max(0.0, along / np.sum(away @ self.sigma * away))

    def moved(self, text, label: int) -> np.ndarray:
        """A text where the photographs of the other classes put it."""
        every = [*self.plain]
        names = np.array([self.plain[c] for c in every]) - self.tbar
        means = np.array([self.mean[c] for c in every]) - self.b
        size = np.sum(names**2) / len(every)
        gain = np.sum(names * means) / np.sum(names**2)
        if gain <= 0:
            return text
        worth = 40 * (1 + 2 * np.mean([1 / self.n[c] for c in every])) * size
        others = [row for row, c in enumerate(every) if c != label]
        names, left = names[others], (means - gain * names)[others]
        ridge = np.linalg.solve(names.T @ names + worth * np.eye(self.d), names.T @ left)
        direction = gain * (text - self.tbar) + (text - self.tbar) @ ridge
        return self.tbar + np.sqrt(size) * direction / np.linalg.norm(direction)

    def tail(self, x) -> np.ndarray:
        """2d/(d + u)."""
        return 2 * self.d / (self.d + self.nearest(x))

    def nearest(self, x) -> np.ndarray:
        return np.min([self.density(x, self.texts[c], c, 2.0)[1] for c in self.texts], axis=0)

    def density(self, x, text, label: int, kappa: float) -> tuple[np.ndarray, np.ndarray]:
        """L_c and ‖x − μ̂_c‖²_P/ι_c."""
        n = self.n[label]
        name = self.b + 2 * self.slope * self.sigma @ (text - self.centre)
        off = x - (kappa * name + n * self.mean[label]) / (kappa + n)
        iota = 1 + 1 / (kappa + n)
        far = np.sum(off @ np.linalg.inv(self.sigma) * off, axis=1) / iota
        return -0.5 * far - 0.5 * self.d * np.log(iota), far

    def logits(self, x, text, label: int, kappa: float, temper: float) -> np.ndarray:
        temper = temper * self.tail(x)
        text = self.moved(text, label)
        if label >= 0 and self.n[label]:
            return temper * self.density(x, text, label, kappa)[0]
        wide, off = self.choice["background"], x - self.b
        far = np.sum(off @ np.linalg.inv(self.sigma) * off, axis=1)
        ground = temper * (-0.5 * far / wide - 0.5 * self.d * np.log(wide))
        return ground + self.choice["name_scale"] * off @ (text - self.centre) + self.choice["offset"]

    def probabilities(self, images: Encoded, texts, labels) -> np.ndarray:
        x, t = unit(images.global_).double().numpy(), texts.double().numpy()
        total = 0.0
        triples = zip(*(self.choice[name] for name in ("weight", "kappa", "temper")), strict=True)
        for weight, kappa, temper in triples:
            columns = [self.logits(x, t[c], label, kappa, temper) for c, label in enumerate(labels)]
            total = total + weight * softmax(np.stack(columns, 1))
        return total


def plain(backbone: Backbone, method: Conjugate, counts=COUNTS, names=NAMES) -> Plain:
    labels = labels_of(counts)
    images = photographs(backbone, names, labels, seed=1)
    return Plain(method, images, labels, texts_of(backbone, names))


def close(found, expected, tolerance: float = 2e-4) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


# predictions


@pytest.mark.parametrize("counts", [COUNTS, (1, 1, 1, 1), (9, 1, 30, 2)], ids=str)
def test_probabilities(tiny_vit, counts):
    method = usual(tiny_vit, counts, gate=False)
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    expected = plain(tiny_vit, method, counts).probabilities(new, texts_of(tiny_vit, NAMES), range(4))
    close(ask(method, new).probabilities, expected)
    assert expected.max(1).mean() < 0.999 and len(method.choice_weight) > 1


def test_the_choice_is_that_of_the_core(tiny_vit):
    method, labels = usual(tiny_vit), labels_of()
    x = unit(photographs(tiny_vit, NAMES, labels, seed=1).global_).double()
    texts = texts_of(tiny_vit, NAMES).double()
    statistics = Statistics.of(x, labels, 4)
    text_map = learn_text_map(statistics.sums / statistics.counts[:, None], statistics.counts, texts)
    frame = make_frame(statistics, move(text_map, texts, torch.arange(4)))
    rotated = x @ frame.basis
    alike = look_alikes(rotated, labels)
    expected = choose(frame, rotated, labels, float(tiny_vit.logit_scale), texts @ frame.basis, alike)
    for name, value in expected._asdict().items():
        torch.testing.assert_close(getattr(method, f"choice_{name}"), value.reshape(-1), rtol=1e-6, atol=1e-6)


def test_other_classes_are_asked(tiny_vit):
    method = usual(tiny_vit, gate=False)
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    reference = plain(tiny_vit, method)
    asked = {
        (NAMES[2], NAMES[0], NAMES[3], NAMES[1]): [2, 0, 3, 1],
        (NAMES[3], NAMES[1]): [3, 1],
        ("tree", NAMES[1], "house", NAMES[0]): [-1, 1, -1, 0],
        ("tree", "house", "owl"): [-1, -1, -1],
        (NAMES[2],): [2],
    }
    for names, labels in asked.items():
        method.prepare(names, TEMPLATE)
        expected = reference.probabilities(new, texts_of(tiny_vit, names), labels)
        close(ask(method, new).probabilities, expected)


def test_new_names_alone_are_told_by_their_text(tiny_vit):
    """Background, width and offset are common to all of them."""
    method = usual(tiny_vit)
    names = ("tree", "house", "owl")
    method.prepare(names, TEMPLATE)
    new = photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=2)
    reference = plain(tiny_vit, method)
    x = unit(new.global_).double() - torch.from_numpy(reference.b)
    moved = [
        torch.from_numpy(reference.moved(text.double().numpy(), -1)) for text in texts_of(tiny_vit, names)
    ]
    expected = (method.choice_name_scale * x @ torch.stack(moved).T).softmax(1)
    close(ask(method, new).probabilities, expected)


def test_a_class_without_photographs(tiny_vit):
    counts = (4, 0, 5, 3)
    method = usual(tiny_vit, counts)
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    found = ask(method, new).probabilities
    expected = plain(tiny_vit, method, counts).probabilities(new, texts_of(tiny_vit, NAMES), range(4))
    close(found, expected)  # the gate is shut where a class is known by its name alone
    assert found[1::4, 1].mean() > found[[0, 2, 3, 4, 6, 7], 1].mean()


def test_two_classes_of_one_name(tiny_vit):
    labels = labels_of((4, 4, 4))
    images = photographs(tiny_vit, ("cat", "golden_retriever", "x"), labels, seed=1)
    method = fit(tiny_vit, images, labels, ("crane", "dog", "crane"))
    said = ask(method, images).probabilities
    assert (said.argmax(1) == labels).float().mean() > 0.9
    method.prepare(("crane", "crane", "dog"), TEMPLATE)
    torch.testing.assert_close(ask(method, images).probabilities, said[:, [0, 2, 1]], rtol=0, atol=1e-5)


def test_images_of_any_length(tiny_vit):
    method, new = usual(tiny_vit), photographs(tiny_vit, NAMES, torch.arange(4), seed=2)
    longer = Encoded(new.global_ * torch.tensor([[1.0], [30.0], [0.01], [5.0]]), new.patches)
    torch.testing.assert_close(
        ask(method, longer).probabilities, ask(method, new).probabilities, rtol=0, atol=1e-4
    )


def test_sources_are_what_name_and_photographs_add(tiny_vit):
    method, reference = usual(tiny_vit), plain(tiny_vit, usual(tiny_vit))
    names, labels = (NAMES[2], "tree", NAMES[0]), (2, -1, 0)
    method.prepare(names, TEMPLATE)
    new = photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=2)
    predictive(method)
    found = method.sources(new)
    off = unit(new.global_).double().numpy() - reference.b
    kappa, temper = reference.choice["kappa"][0], reference.choice["temper"][0]
    temper = temper * reference.tail(unit(new.global_).double().numpy())
    for c, label in enumerate(labels):
        text = reference.moved(texts_of(tiny_vit, names)[c].double().numpy(), label) - reference.centre
        if label < 0:
            by_name, by_photographs = reference.choice["name_scale"] * off @ text, np.zeros(8)
        else:
            n = reference.n[label]
            scale = temper / (1 + 1 / (kappa + n)) / (kappa + n)
            by_name = scale * kappa * 2 * reference.slope * (off @ text)
            precise = np.linalg.solve(reference.sigma, reference.mean[label] - reference.b)
            by_photographs = scale * n * (off @ precise)
        close(found["name"][:, c], by_name, 1e-4)
        close(found["photographs"][:, c], by_photographs, 1e-4)


# the gate


@pytest.mark.parametrize("information", [1.0, 0.3])
def test_gate(tiny_vit, information):
    method, shut = usual(tiny_vit), usual(tiny_vit, gate=False)
    method.choice_information.fill_(information)
    generator = torch.Generator().manual_seed(8)
    near = photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=2).global_
    path = near[:1] + torch.linspace(0, 12, 40)[:, None] * torch.randn(1, 32, generator=generator)
    new = with_patches(torch.cat([near, path]))
    reference, texts = plain(tiny_vit, method), texts_of(tiny_vit, NAMES)
    usual_far = method.choice_nearest.numpy()
    n = len(usual_far)
    far = reference.nearest(unit(new.global_).double().numpy())
    p = scipy.stats.t.sf((far - usual_far.mean()) / (usual_far.std(ddof=1) * np.sqrt(1 + 1 / n)), n - 1)
    share = np.sqrt(method.choice_information.numpy()) * (1 - np.minimum(1, p / 0.1))
    assert (share == 0).any() and (share > 0.3 * share.max()).any() and share.max() > 0.1
    assert ((share > 0.02) & (share < 0.9 * share.max())).any()
    x = unit(new.global_).double()
    names = (method.choice_name_scale * x @ texts.double().T).softmax(1).numpy()
    expected = (1 - share)[:, None] * reference.probabilities(new, texts, range(4)) + share[:, None] * names
    close(ask(method, new).probabilities, expected, tolerance=5e-3)
    untouched = torch.from_numpy(share == 0)
    found, without = ask(method, new).probabilities, ask(shut, new).probabilities
    torch.testing.assert_close(found[untouched], without[untouched], rtol=0, atol=1e-5)
    assert (found - without).abs().max() > 0.02


# learning more


def same(one: Conjugate, other: Conjugate, tolerance: float = 1e-6) -> None:
    assert one.seen == other.seen
    new = photographs(one.backbone, NAMES, torch.arange(12) % 4, seed=2)
    found, expected = ask(one, new), ask(other, new)
    torch.testing.assert_close(found.probabilities, expected.probabilities, rtol=0, atol=tolerance)
    for name, value in one.state_dict().items():
        if value.dtype == torch.float64:
            torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-6, atol=1e-9)


def test_learning_in_parts_is_fitting_on_all(tiny_vit):
    labels = labels_of((5, 4, 6, 3))
    images = photographs(tiny_vit, NAMES, labels, seed=1)
    whole = fit(tiny_vit, images, labels)
    parts = fit(tiny_vit, rows(images, slice(0, 9)), labels[:9])
    parts.learn(rows(images, slice(9, 10)), labels[9:10])
    parts.learn(rows(images, slice(10, 18)), labels[10:])
    same(parts, whole)


def test_classes_that_come_later(tiny_vit):
    labels = labels_of((5, 4, 6, 3)).sort().values
    images = photographs(tiny_vit, NAMES, labels, seed=1)
    whole = fit(tiny_vit, images, labels)
    parts = fit(tiny_vit, rows(images, slice(0, 9)), labels[:9], NAMES[:2])
    parts.prepare((NAMES[2], NAMES[0]), TEMPLATE)  # labels are of the present classes
    parts.learn(rows(images, slice(9, 15)), labels[9:15] - 2)
    assert parts.seen == NAMES[:3] and parts.classes == (NAMES[2], NAMES[0])
    parts.prepare(NAMES, TEMPLATE)
    parts.learn(rows(images, slice(15, 18)), labels[15:])
    assert parts.classes == NAMES
    same(parts, whole)


def test_a_name_with_no_photograph_yet_is_learned_later(tiny_vit):
    labels = labels_of((5, 4, 6, 3))
    images = photographs(tiny_vit, NAMES, labels, seed=1)
    later = labels == 1
    parts = fit(tiny_vit, rows(images, ~later), labels[~later])
    parts.learn(rows(images, later), labels[later])
    order = torch.cat([(~later).nonzero(), later.nonzero()]).squeeze(1)
    same(parts, fit(tiny_vit, rows(images, order), labels[order]))


def test_many_photographs_are_stood_for_by_some_in_any_order(tiny_vit, monkeypatch):
    monkeypatch.setattr(evidence, "KEPT", 10)
    labels = labels_of((5, 4, 6, 3))
    images = photographs(tiny_vit, NAMES, labels, seed=1)
    whole = fit(tiny_vit, images, labels)
    assert len(whole.kept) == 10 and whole.counts.sum() == 18
    back = torch.arange(17, -1, -1)
    same(fit(tiny_vit, rows(images, back), labels[back]), whole)
    parts = fit(tiny_vit, rows(images, slice(0, 7)), labels[:7])
    parts.learn(rows(images, slice(7, 18)), labels[7:])
    same(parts, whole)


@pytest.mark.parametrize("kept", [100, 10])
def test_a_streamed_fit_is_the_fit(tiny_vit, monkeypatch, kept):
    monkeypatch.setattr(evidence, "KEPT", kept)
    labels = labels_of((5, 4, 6, 3))
    images = photographs(tiny_vit, NAMES, labels, seed=1)
    whole = fit(tiny_vit, images, labels)
    order = torch.randperm(18, generator=torch.Generator().manual_seed(3))
    shares = [
        evidence.gather([(images.global_[rows], labels[rows])], tiny_vit.embed_dim, len(NAMES))
        for rows in order.split(7)
    ]
    streamed = build_method(Conjugate, whole.config, tiny_vit, seed=0)
    streamed.prepare(NAMES, TEMPLATE)
    streamed.begin_with(shares[2].merged(shares[0]).merged(shares[1]))
    streamed.finish()
    new = photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=2)
    torch.testing.assert_close(
        streamed.class_features(1, torch.Generator()),
        whole.class_features(1, torch.Generator()),
        rtol=1e-6,
        atol=1e-6,
    )
    for _ in range(2):  # and after one more image
        found, expected = ask(streamed, new), ask(whole, new)
        torch.testing.assert_close(found.probabilities, expected.probabilities, rtol=1e-6, atol=1e-6)
        for method in (streamed, whole):
            method.learn(rows(new, slice(0, 1)), torch.tensor([2]))


def test_with_a_tuned_prior_there_is_no_streaming(tiny_vit):
    method = build_method(Conjugate, ConjugateConfig(beside="coop"), tiny_vit, seed=0)
    method.prepare(NAMES, TEMPLATE)
    assert not can(method, Streams) and can(Conjugate, Streams)
    with pytest.raises(InputError, match="leave coop out"):
        method.begin_with(evidence.gather([], tiny_vit.embed_dim, len(NAMES)))


def test_a_small_table_is_made_of_some_photographs(tiny_vit, monkeypatch):
    monkeypatch.setattr(conjugate, "TABLE", 4 * 8)
    method = usual(tiny_vit)
    assert len(method.choice_nearest) == 7  # every second of 14
    new = photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=2)
    assert (ask(method, new).probabilities.argmax(1) == torch.arange(8) % 4).float().mean() > 0.7


def test_learning_what_is_no_number_changes_nothing(tiny_vit):
    method = usual(tiny_vit)
    new = photographs(tiny_vit, NAMES, torch.arange(4), seed=2)
    method.prepare((*NAMES, "tree"), TEMPLATE)
    before = ask(method, new).probabilities
    broken = Encoded(new.global_ * float("nan"), new.patches)
    with pytest.raises(InputError, match="NaN"):
        method.learn(broken, torch.tensor([0, 1, 2, 4]))
    assert method.seen == NAMES
    torch.testing.assert_close(ask(method, new).probabilities, before)


def test_learning_from_nothing_is_a_fit(tiny_vit):
    labels = labels_of()
    images = photographs(tiny_vit, NAMES, labels, seed=1)
    method = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=0)
    method.prepare(NAMES, TEMPLATE)
    method.learn(images, labels)
    same(method, fit(tiny_vit, images, labels))


# what is kept


def test_state(tiny_vit):
    method = usual(tiny_vit)
    loaded = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=1)
    loaded.load_state_dict({name: value.clone() for name, value in method.state_dict().items()})
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    for names in (NAMES, ("tree", NAMES[1])):
        for each in (method, loaded):
            each.prepare(names, TEMPLATE)
        assert torch.equal(ask(loaded, new).probabilities, ask(method, new).probabilities)
    for each in (method, loaded):
        each.prepare(NAMES, TEMPLATE)
        each.learn(new, torch.arange(12) % 4)
    assert torch.equal(ask(loaded, new).probabilities, ask(method, new).probabilities)


@pytest.mark.parametrize("prior", ["sentence", "none", "coop"])
def test_model_folder(tiny_vit, tmp_path, prior):
    method = usual(tiny_vit, prior=prior)
    save_model(tmp_path / "model", method, describe_model(method, seed=0, shots=2))
    loaded, _ = load_model(tmp_path / "model", tiny_vit)
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    assert torch.equal(ask(loaded, new).probabilities, ask(method, new).probabilities)


# priors


def test_ensemble(tiny_vit):
    method = usual(tiny_vit, prior="ensemble", gate=False)
    each = [sentence_features(tiny_vit, NAMES, sentence) for sentence in ENSEMBLE]
    texts = unit(torch.stack([unit(features) for features in each]).mean(0))
    torch.testing.assert_close(method.texts, texts.double())
    labels = labels_of()
    reference = Plain(method, photographs(tiny_vit, NAMES, labels, seed=1), labels, texts)
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    close(ask(method, new).probabilities, reference.probabilities(new, texts, range(4)))


def test_the_datas_sentence_and_general_ones(tiny_vit):
    """The usual prior: the mean of both kinds, each of length 1."""
    labels = labels_of()
    method = fit(
        tiny_vit, photographs(tiny_vit, NAMES, labels, seed=1), labels, prior=ConjugateConfig().prior
    )
    general = unit(torch.stack([unit(sentence_features(tiny_vit, NAMES, s)) for s in ENSEMBLE]).mean(0))
    torch.testing.assert_close(method.texts, unit(texts_of(tiny_vit, NAMES) + general).double())


def test_without_names(tiny_vit):
    method = usual(tiny_vit, prior="none")
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    found = ask(method, new).probabilities
    assert (found.argmax(1) == torch.arange(12) % 4).float().mean() > 0.7
    assert float(method.choice_information) == pytest.approx(0, abs=1e-9)
    assert not method.takes_new_names
    with pytest.raises(InputError, match="'tree' is none of them"):
        method.prepare((*NAMES, "tree"), TEMPLATE)
    labels = labels_of()
    images = photographs(tiny_vit, NAMES, labels, seed=1)
    renamed = fit(tiny_vit, images, labels, ("a", "b", "c", "e"), prior="none")
    torch.testing.assert_close(ask(renamed, new).probabilities, found)


def tuned(backbone: Backbone, prior: str, steps: int = 3) -> Conjugate:
    labels = labels_of()
    data = Features(*photographs(backbone, NAMES, labels, seed=1), labels)
    method = build_method(Conjugate, ConjugateConfig(prior=prior), backbone, seed=0)
    method.prepare(NAMES, TEMPLATE)
    assert method.stepwise and method.trainable() and method.epochs_for(4) > 0
    run = Run(epochs=steps, seed=0, max_steps=steps, progress=False)
    terms = train(method, lambda epoch: data, len(labels), run)
    assert np.isfinite(terms["total"])
    return method


def test_a_tuned_prior(tiny_vit):
    method = tuned(tiny_vit, "coop")
    first = build_method(Conjugate, ConjugateConfig(prior="coop"), tiny_vit, seed=0)
    assert not torch.equal(method.prior.context, first.prior.context)
    with torch.no_grad():
        texts = unit(method.prior.class_features(1, torch.Generator())[0])
    torch.testing.assert_close(method.texts, texts.double())
    labels = labels_of()
    reference = Plain(method, photographs(tiny_vit, NAMES, labels, seed=1), labels, texts)
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    method.config = ConjugateConfig(prior="coop", gate=False)
    close(ask(method, new).probabilities, reference.probabilities(new, texts, range(4)))
    with pytest.raises(InputError, match="fit it again"):
        method.learn(new, torch.arange(12) % 4)


def test_a_prior_of_many_prompts(tiny_vit):
    method = tuned(tiny_vit, "pbprompt")
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    few, many = predictive(method, samples=5), predictive(method, samples=12)
    assert few.bank.shape[:2] == (5, 4) and many.bank.shape[:2] == (12, 4)
    assert not torch.equal(many.bank[0], many.bank[1])
    said = many(new)
    close(said.probabilities.sum(1), np.ones(12), 1e-5)
    assert (said.probabilities.argmax(1) == torch.arange(12) % 4).float().mean() > 0.7
    assert said.mutual_information.max() > 0
    again = predictive(method, samples=12)(new)
    assert torch.equal(said.probabilities, again.probabilities)


def test_a_method_beside_it_is_averaged_in(tiny_vit):
    labels = labels_of()
    images = photographs(tiny_vit, NAMES, labels, seed=1)
    data = Features(images.global_, images.patches.half(), labels)
    pair = build_method(Conjugate, ConjugateConfig(beside="coop"), tiny_vit, seed=0)
    pair.prepare(NAMES, TEMPLATE)
    train(pair, lambda epoch: data, len(labels), Run(epochs=2, seed=0, max_steps=2, progress=False))
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    alone = ask(usual(tiny_vit), new).probabilities
    theirs = predictive(pair.beside)(new).probabilities
    close(ask(pair, new).probabilities, (alone + theirs) / 2, 0.02)  # κ and T are one middle draw here
    with pytest.raises(InputError, match="choose one"):
        build_method(Conjugate, ConjugateConfig(beside="coop", prior="coop"), tiny_vit, seed=0)


def test_a_prior_that_is_none(tiny_vit):
    for prior in ("tip-adapter", "cocoop", "conjugate"):
        with pytest.raises(InputError, match=rf"method '{prior}' has no text feature"):
            build_method(Conjugate, ConjugateConfig(prior=prior), tiny_vit, seed=0)
    with pytest.raises(InputError, match="'nonsense' is none of what the settings 'prior' and 'beside' take"):
        build_method(Conjugate, ConjugateConfig(prior="nonsense"), tiny_vit, seed=0)


# whatever comes


def test_no_number_is_refused(tiny_vit):
    images = photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=1)
    for bad in (float("nan"), float("inf")):
        broken = images.global_.clone()
        broken[3, 2] = bad
        method = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=0)
        method.prepare(NAMES, TEMPLATE)
        with pytest.raises(InputError, match="NaN or infinity"):
            method.begin(with_patches(broken), torch.arange(8) % 4, seed=0)
        with pytest.raises(InputError, match="fit it"):  # as before
            predictive(method)


def test_unfitted_says_so(tiny_vit):
    method = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=0)
    method.prepare(NAMES, TEMPLATE)
    with pytest.raises(InputError, match="fit it"):
        predictive(method)


def test_no_step_can_be_taken(tiny_vit):
    method = usual(tiny_vit)
    assert method.epochs_for(16) == 0 and method.trainable() == [] and method.counted_parameters() == 0
    with pytest.raises(InputError, match="nothing to train"):
        images = photographs(tiny_vit, NAMES, torch.arange(2), seed=1)
        method.loss(Batch(images, torch.arange(2)), torch.Generator(), examples=2)


@pytest.mark.parametrize("prior", ["sentence", "none"])
@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (NAMES[:1], (5,)),
        (NAMES[:1], (1,)),
        (NAMES[:2], (1, 1)),
        (NAMES[:2], (3, 1)),
        (NAMES, (1, 0, 0, 0)),
        (NAMES, (1, 0, 1, 0)),
        (NAMES, (1, 1, 1, 1)),
        (NAMES, (0, 0, 3, 0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("equal", [False, True], ids=["different", "equal"])
def test_little_stays_finite(tiny_vit, names, counts, equal, prior):
    labels = labels_of(counts)
    images = photographs(tiny_vit, NAMES, labels, seed=1)
    if equal:
        images = with_patches(images.global_[:1].expand(len(labels), -1))
    method = fit(tiny_vit, images, labels, names, prior=prior)
    new = photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=2)
    new = with_patches(torch.cat([new.global_, images.global_[:1], torch.zeros(1, 32)]))
    said = ask(method, new)
    assert all(value.isfinite().all() for value in said)
    close(said.probabilities.sum(1), np.ones(10), 1e-5)
    p = method.familiarity(new)
    assert ((p > 0) & (p <= 1)).all()


def test_trained_by_the_loop_and_resumed(tiny_vit, tmp_path):
    labels = labels_of()
    data = Features(*photographs(tiny_vit, NAMES, labels, seed=1), labels)
    new = photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=2)
    results = []
    for _ in range(2):  # the second run goes on from the first one's checkpoint
        method = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=0)
        method.prepare(NAMES, TEMPLATE)
        run = Run(epochs=0, seed=0, identity="one", folder=tmp_path, progress=False)
        assert train(method, lambda epoch: data, len(labels), run) == {}
        results.append(ask(method, new).probabilities)
    assert torch.equal(*results)
    assert torch.equal(results[0], ask(usual(tiny_vit), new).probabilities)


# is it known at all?


@pytest.mark.parametrize("classes", [4, 8])
def test_familiarity_of_known_images_is_uniform_at_most(tiny_vit, classes):
    """Photographs drawn as those of training: a share α of them, or less, has a p-value of at most α."""
    names = tuple(f"thing {letter}" for letter in "abcdefgh"[:classes])
    values = []
    for seed in range(6):
        labels = torch.arange(classes * 12) % classes
        method = fit(tiny_vit, photographs(tiny_vit, names, labels, seed=10 + seed, noise=1.0), labels, names)
        predictive(method)
        new = photographs(tiny_vit, names, torch.arange(400) % classes, seed=100 + seed, noise=1.0)
        values.append(method.familiarity(new))
    p = torch.cat(values)
    for alpha in (0.05, 0.1, 0.3):
        assert (p <= alpha).double().mean() <= alpha + 0.04
    assert (p <= 0.5).double().mean() > 0.3  # and it says something


def test_familiarity_is_a_rank_that_unknown_images_fail(tiny_vit):
    method = usual(tiny_vit, (12, 12, 12, 12))
    predictive(method)
    known = photographs(tiny_vit, NAMES, torch.arange(40) % 4, seed=2)
    other = torch.randn(40, 32, generator=torch.Generator().manual_seed(3))
    p = method.familiarity(known)
    assert ((p * 49 - (p * 49).round()).abs() < 1e-4).all() and (p >= 1 / 49 - 1e-6).all()
    strange = method.familiarity(with_patches(other))
    assert strange.median() < p.median()


@pytest.mark.parametrize("names", [NAMES[::-1], (*NAMES, "tree"), ("tree", *NAMES[:2]), NAMES[:1], ("tree",)])
def test_familiarity_does_not_depend_on_what_is_asked(tiny_vit, names):
    """It is that of all known classes."""
    method = usual(tiny_vit, (6, 6, 6, 6))
    new = photographs(tiny_vit, NAMES, torch.arange(40) % 4, seed=2, noise=1.0)
    predictive(method)
    whole = method.familiarity(new)
    method.prepare(names, TEMPLATE)
    predictive(method)
    torch.testing.assert_close(method.familiarity(new), whole)


@pytest.mark.parametrize("asked", [NAMES, ("traffic light", "owl", "cat", "moon"), NAMES[::-1][1:]])
@pytest.mark.parametrize("counts", [COUNTS, (4, 1, 5, 3)])
def test_left_out_answers_are_nearly_those_of_fits_without_each_image(tiny_vit, counts, asked):
    """The choice and the place of names stay; a class's only photograph is not judged."""
    labels = labels_of(counts)
    images = photographs(tiny_vit, NAMES, labels, seed=0)
    method = fit(tiny_vit, images, labels)
    method.prepare(asked, TEMPLATE)
    found, own = method.left_out()
    judged = [i for i, label in enumerate(labels.tolist()) if counts[label] > 1 and NAMES[label] in asked]
    assert [asked[place] for place in own.tolist()] == [NAMES[labels[i]] for i in judged]
    apart = []
    for row, i in enumerate(judged):
        rest = [j for j in range(len(labels)) if j != i]
        without = fit(tiny_vit, rows(images, rest), labels[rest])
        without.prepare(asked, TEMPLATE)
        refitted = ask(without, rows(images, [i])).probabilities[0]
        kept = ask(method, rows(images, [i])).probabilities[0]
        apart.append([float((found[row] - other).abs().max()) for other in (refitted, kept)])
    to_refitted, to_kept = np.mean(apart, axis=0)
    assert to_refitted < 0.1 and to_refitted < 0.75 * to_kept


def test_left_out_answers_know_the_gate(tiny_vit):
    """An image far from all others is left to the names, as it would be in a prediction."""
    labels = labels_of()
    images = photographs(tiny_vit, NAMES, labels, seed=0)
    images = with_patches(torch.cat([-images.global_[:1], images.global_[1:]]))
    method, plain = (fit(tiny_vit, images, labels, gate=gate) for gate in (True, False))
    for one in (method, plain):
        one.choice_information.data = torch.ones_like(one.choice_information)
    changed = (method.left_out()[0] - plain.left_out()[0]).abs().amax(1)
    assert changed.argmax() == 0 and changed[0] > 1e-3


def test_methods_without_left_out_answers(tiny_vit):
    assert usual(tiny_vit, counts=(1, 1, 1, 1)).left_out() is None
    beside = build_method(Conjugate, ConjugateConfig(beside="coop"), tiny_vit, seed=1)
    assert not can(beside, LeavesOut) and beside.left_out() is None
