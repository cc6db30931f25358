"""The closed-form classifier: its answers are those of its posterior, and how it is lived with."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from experts import expert, scores
from experts import photographs as shown
from gather import gather

from pbprompt.errors import InputError
from pbprompt.evidence import evidence
from pbprompt.evidence import expert as expert_module
from pbprompt.evidence.answers import NewNames
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.evidence.evidence import feature_keys
from pbprompt.evidence.learners import Streams
from pbprompt.evidence.posterior import Posterior, fit_posterior
from pbprompt.evidence.unlabelled import absorb
from pbprompt.learners.fitted import Fitted, LeavesOut
from pbprompt.learners.method import Batch, build_method
from pbprompt.learners.predictive import Predictive
from pbprompt.learners.trained import Trained
from pbprompt.learners.zeroshot import ENSEMBLE, sentence_features
from pbprompt.model.folder import describe_model
from pbprompt.model.predictor import SAMPLES, predictive
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone, Encoded

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
    method.begin(images, labels)
    return method


def usual(backbone: Backbone, counts=COUNTS, names=NAMES, **settings) -> Conjugate:
    labels = labels_of(counts)
    return fit(backbone, photographs(backbone, names, labels, seed=1), labels, names, **settings)


def ask(method: Conjugate, images: Encoded) -> Predictive:
    return predictive(method)(images)


def fitted_core(backbone: Backbone, images: Encoded, labels, texts) -> Posterior:
    """What the core makes of the same photographs, in float64, of classes that all have some."""
    return fit_posterior(shown(unit(images.global_), labels, texts, float(backbone.logit_scale)))[0]


def usual_core(backbone: Backbone, counts=COUNTS, names=NAMES, texts=None) -> Posterior:
    labels = labels_of(counts)
    images = photographs(backbone, names, labels, seed=1)
    known = [c for c, n in enumerate(counts) if n]
    texts = texts_of(backbone, names) if texts is None else texts
    places = torch.tensor([known.index(c) for c in labels.tolist()])
    return fitted_core(backbone, images, places, texts[known])


def answers(model: Posterior, images: Encoded, columns: list[int], texts, scale: float) -> np.ndarray:
    """p(c | x) by the equations: columns of known classes, −1 for one known by its text alone."""
    x = unit(images.global_).double()
    experts = scores(model, x)
    looks, (_, v, psi, rho) = model.strangeness(experts), model.novelty.odds
    new = [place for place, column in enumerate(columns) if column < 0]
    named = NewNames(model, [texts[new]], [scale])
    cosines = (x - model.views[0].centre) @ named.directions[0].T
    known = [column for column in columns if column >= 0]
    alone = scale * x @ (texts[new].double() - model.views[0].text_map.centre).T * model.name_scale
    if known:
        alone = alone - (model.name_scale * experts[3][:, known]).logsumexp(1, keepdim=True)
    fit = psi * cosines + rho * alone
    total = 0.0
    for draw in model.weights.draws(SAMPLES):
        table = sum(weight * expert[:, known] for weight, expert in zip(draw, experts, strict=True))
        if not known:
            by_place = dict(zip(new, fit.T, strict=True))
        else:
            odds = fit - v * looks.unsqueeze(1) - named.reluctance
            joined = iter(torch.cat([table.logsumexp(1, keepdim=True) + odds], 1).T)
            columns_of = iter(table.T)
            by_place = {c: next(columns_of if at >= 0 else joined) for c, at in enumerate(columns)}
        said = torch.stack([by_place[c] for c in range(len(columns))], 1).softmax(1)
        if not new:
            share = (model.information * model.novelty.unlike(looks)).unsqueeze(1)
            said = (1 - share) * said + share * (model.name_scale * experts[3][:, known]).softmax(1)
        total = total + said / SAMPLES
    return total.numpy()


def mixed_images(backbone: Backbone) -> Encoded:
    """Some like the photographs, some like nothing known."""
    near = photographs(backbone, NAMES, torch.arange(12) % 4, seed=2).global_
    far = torch.randn(6, backbone.embed_dim, generator=torch.Generator().manual_seed(8))
    return with_patches(torch.cat([near, far]))


def close(found, expected, tolerance: float = 2e-4) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


# predictions


@pytest.mark.parametrize("counts", [COUNTS, (1, 1, 1, 1), (9, 1, 30, 2)], ids=str)
def test_probabilities(tiny_vit, counts):
    method, new = usual(tiny_vit, counts), mixed_images(tiny_vit)
    expected = answers(usual_core(tiny_vit, counts), new, [0, 1, 2, 3], texts_of(tiny_vit, NAMES), 1.0)
    close(ask(method, new).probabilities, expected)
    assert expected.max(1).mean() < 0.999


def test_the_fit_is_that_of_the_core(tiny_vit):
    found, expected = usual(tiny_vit).fitted.posterior.tensors(), usual_core(tiny_vit).tensors()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name].to(value), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        ((NAMES[2], NAMES[0], NAMES[3], NAMES[1]), [2, 0, 3, 1]),
        ((NAMES[3], NAMES[1]), [3, 1]),
        (("tree", NAMES[1], "house", NAMES[0]), [-1, 1, -1, 0]),
        (("tree", "house", "owl"), [-1, -1, -1]),
        ((NAMES[2],), [2]),
        (("tree",), [-1]),
    ],
)
def test_other_classes_are_asked(tiny_vit, names, columns):
    counts = (9, 8, 1, 9)  # a class of one photograph cannot say how open it is to new names
    method, model, new = usual(tiny_vit, counts), usual_core(tiny_vit, counts), mixed_images(tiny_vit)
    method.prepare(names, TEMPLATE)
    expected = answers(model, new, columns, texts_of(tiny_vit, names), float(tiny_vit.logit_scale))
    close(ask(method, new).probabilities, expected)


def test_a_class_without_photographs(tiny_vit):
    counts = (9, 0, 8, 7)
    method, model, new = usual(tiny_vit, counts), usual_core(tiny_vit, counts), mixed_images(tiny_vit)
    texts, scale = texts_of(tiny_vit, NAMES), float(tiny_vit.logit_scale)
    found = ask(method, new).probabilities
    close(found, answers(model, new, [0, -1, 1, 2], texts, scale))
    assert found[1:12:4, 1].mean() > found[[0, 2, 3, 4, 6, 7], 1].mean()


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


def test_photographs_that_count_unequally(tiny_vit):
    """What rests on sums is as if each were there so often."""
    labels = labels_of()
    images, often = photographs(tiny_vit, NAMES, labels, seed=1), torch.arange(len(labels)) % 3 + 1
    weighted = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=0)
    weighted.prepare(NAMES, TEMPLATE)
    weighted.begin(images, labels, weights=often.double())
    index = torch.arange(len(labels)).repeat_interleave(often)
    more = fit(tiny_vit, rows(images, index), labels[index])
    kept = weighted.fitted.shown.evidence.kept
    assert torch.equal(kept.weights, often.double()) and weighted.fitted.left_out() is not None
    x = unit(photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=2).global_)
    mine, theirs = (scores(each.fitted.posterior, x)[0] for each in (weighted, more))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


# broad classes, and names of other things


def kinds_of_things(per_kind: int, seed: int, of: int, spread: float):
    """Features about a centre for each of 24 kinds, the same for one `of`; and the kind of each."""
    centres = 2 * torch.randn(24, 32, generator=torch.Generator().manual_seed(of))
    kinds = torch.arange(24 * per_kind) % 24
    noise = torch.randn(len(kinds), 32, generator=torch.Generator().manual_seed(seed))
    return centres[kinds] + spread * noise, kinds


@pytest.mark.parametrize(
    ("per_kind", "spread", "short"),
    [(16, 3.2, 0.0), (8, 3.2, 0.0), (5, 3.2, 0.0), (16, 4.0, 0.0), (16, 2.4, 0.01), (5, 2.4, 0.015)],
)
def test_classes_of_many_kinds_each_are_told_as_well_as_by_neighbours(tiny_vit, per_kind, spread, short):
    """Three classes of eight kinds drawn at random, whose means say little; `short`: by so much less."""
    right, by_neighbours = [], []
    for of in range(10, 16):
        classes = torch.randperm(24, generator=torch.Generator().manual_seed(of)) % 3
        x, kinds = kinds_of_things(per_kind, 100 + of, of, spread)
        new, new_kinds = kinds_of_things(20, 200 + of, of, spread)
        labels, truth = classes[kinds], classes[new_kinds]
        method = fit(tiny_vit, with_patches(x), labels, NAMES[:3])
        right.append(ask(method, with_patches(new)).probabilities.argmax(1) == truth)
        nearest = (unit(new) @ unit(x).T).topk(5).indices
        votes = torch.nn.functional.one_hot(labels[nearest], 3).sum(1).argmax(1)
        by_neighbours.append(votes == truth)
    neighbours = torch.cat(by_neighbours).double().mean()
    assert torch.cat(right).double().mean() >= neighbours - short and neighbours > 0.6


@pytest.mark.parametrize("seed", range(3))
def test_a_name_of_something_else_takes_hardly_any_known_image(tiny_vit, seed):
    """Its text lies anywhere: of images of the known classes at most two in a hundred go to it."""
    names = tuple(f"thing {letter}" for letter in "abcdef")
    labels = torch.arange(6 * 16) % 6
    method = fit(tiny_vit, photographs(tiny_vit, names, labels, seed=10 + seed, noise=1.0), labels, names)
    new = photographs(tiny_vit, names, torch.arange(600) % 6, seed=100 + seed, noise=1.0)
    alone = ask(method, new).probabilities.argmax(1)
    for foreign in ("owl", "submarine", "a grand piano"):
        method.prepare((foreign, *names), TEMPLATE)
        said = ask(method, new).probabilities.argmax(1)
        assert (said == 0).double().mean() <= 0.02
        assert (said - 1 == alone).double().mean() > 0.97  # the others stay where they were


def test_found_by_name(tiny_vit):
    """Of at least three classes, and where names are read."""
    found = usual(tiny_vit, (8, 8, 8, 8)).fitted.found_by_name()
    assert found == pytest.approx(float(usual_core(tiny_vit, (8, 8, 8, 8)).novelty.found)) and 0 <= found <= 1
    assert usual(tiny_vit, (8, 8), NAMES[:2]).fitted.found_by_name() is None
    assert usual(tiny_vit, (8, 8, 8, 8), prior="none").fitted.found_by_name() is None


# what it shows of itself


@pytest.mark.parametrize(
    "names", [NAMES, NAMES[::-1][1:], (NAMES[2], "tree", NAMES[0], "owl"), ("tree", "owl")]
)
def test_sources_sum_up(tiny_vit, names):
    """To the logits by the best weights, up to what all classes share."""
    method = usual(tiny_vit, (9, 8, 7, 9))
    method.prepare(names, TEMPLATE)
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    logits = method.sample_logits(new, method.class_features(1, torch.Generator()))[0]
    looks = method.fitted.posterior.strangeness(scores(method.fitted.posterior, unit(new.global_)))
    alike = method.fitted.posterior.novelty.unlike(looks) == 0  # others are left to the names
    assert alike.sum() > 5
    parts = method.fitted.sources(new)
    known = {*names} <= {*NAMES}
    gate = {"unlike the photographs"} if known else set()
    assert set(parts) == {"name", "class mean", "photographs"} | gate
    rest = sum(parts.values()) - logits
    rest = rest if known else rest[alike]
    torch.testing.assert_close(rest, rest[:, :1].expand_as(rest), rtol=0, atol=1e-3)
    for place, name in enumerate(names):
        assert (name in NAMES) == bool((parts["class mean"][:, place] != 0).all())


def test_directions_are_slopes_at_the_centre(tiny_vit):
    method, model = usual(tiny_vit), usual_core(tiny_vit)
    names, columns = (NAMES[3], "tree", NAMES[0]), [3, 0]
    method.prepare(names, TEMPLATE)
    bank = method.class_features(3, torch.Generator())
    found = method.directions(bank)
    x = model.views[0].centre.clone().requires_grad_()
    experts = scores(model, x.unsqueeze(0))[:, 0]
    for draw, weights in enumerate(bank[:, 0].double()):
        logits = sum(weight * expert for weight, expert in zip(weights, experts, strict=True))
        for place, column in zip((0, 2), columns, strict=True):
            (slope,) = torch.autograd.grad(logits[column], x, retain_graph=True)
            torch.testing.assert_close(found[draw, place].double(), slope, rtol=1e-3, atol=1e-3)
    texts = texts_of(tiny_vit, ("tree",))
    named = NewNames(model, [texts], [float(tiny_vit.logit_scale)])
    alone = float(tiny_vit.logit_scale) * (texts[0] - model.views[0].text_map.centre) * model.name_scale
    by_name = model.name_scale * experts[3][columns]
    others = torch.autograd.grad(by_name.logsumexp(0), x)[0]
    expected = model.novelty.odds[2] * named.directions[0][0] + model.novelty.odds[3] * (alone - others)
    torch.testing.assert_close(found[0, 1].double(), expected, rtol=1e-3, atol=1e-3)


def test_prompts_are_the_texts_of_every_draw(tiny_vit):
    method = usual(tiny_vit)
    prompts = method.prompts_of(method.class_features(3, torch.Generator()))
    torch.testing.assert_close(prompts, texts_of(tiny_vit, NAMES).expand(3, -1, -1))


# learning more


def same(one: Conjugate, other: Conjugate, tolerance: float = 1e-5) -> None:
    assert one.seen == other.seen
    new = photographs(one.backbone, NAMES, torch.arange(12) % 4, seed=2)
    found, expected = ask(one, new), ask(other, new)
    torch.testing.assert_close(found.probabilities, expected.probabilities, rtol=0, atol=tolerance)
    for name, value in one.state_dict().items():
        if value.dtype == torch.float64 and not name.startswith("kept"):
            torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-6, atol=1e-9)
    for mine, theirs in zip(one.fitted.posterior.novelty, other.fitted.posterior.novelty, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)


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
    statistics, kept = whole.fitted.shown.evidence
    assert len(kept.images) == 10 and statistics.counts.sum() == 18
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
        gather([(images.global_[rows], labels[rows])], tiny_vit.embed_dim, len(NAMES))
        for rows in order.split(7)
    ]
    streamed = build_method(Conjugate, whole.config, tiny_vit, seed=0)
    streamed.prepare(NAMES, TEMPLATE)
    streamed.begin_with(shares[2].merged(shares[0]).merged(shares[1]))
    new = photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=2)
    torch.testing.assert_close(
        streamed.class_features(1, torch.Generator()),
        whole.class_features(1, torch.Generator()),
        rtol=1e-5,
        atol=1e-5,
    )
    for _ in range(2):  # and after one more image
        found, expected = ask(streamed, new), ask(whole, new)
        torch.testing.assert_close(found.probabilities, expected.probabilities, rtol=1e-5, atol=1e-5)
        for method in (streamed, whole):
            method.learn(rows(new, slice(0, 1)), torch.tensor([2]))


def test_it_streams(tiny_vit):
    assert (
        issubclass(Conjugate, Streams)
        and isinstance(usual(tiny_vit), Streams)
        and isinstance(usual(tiny_vit).fitted, LeavesOut)
        and isinstance(usual(tiny_vit).fitted, Fitted)
    )


def test_a_small_table_is_made_of_some_photographs(tiny_vit, monkeypatch):
    monkeypatch.setattr(expert_module, "CELLS", 4 * 5)
    method = usual(tiny_vit)
    rows = torch.arange(0, 14, 3)  # of 14, since 5 rows of 4 classes fit
    kept = method.fitted.shown.evidence.kept.images[rows]
    assert torch.equal(expert(method.fitted.posterior, "kernel").photographs, kept)
    monkeypatch.setattr(expert_module, "CELLS", 5)
    few = usual(tiny_vit, (5, 4), NAMES[:2])  # every fourth of nine
    kept = few.fitted.shown.evidence.kept.images[[0, 4, 8]]
    assert torch.equal(expert(few.fitted.posterior, "kernel").photographs, kept)
    monkeypatch.setattr(expert_module, "CELLS", 4 * 5)
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


@pytest.mark.parametrize("prior", ["sentence", "none", "sentences"])
@pytest.mark.parametrize("counts", [COUNTS, (4, 1, 5, 3), (1, 1, 1, 1), (3, 3, 0, 0), (4, 0, 0, 0)], ids=str)
def test_model_folder(tiny_vit, tmp_path, prior, counts):
    method = usual(tiny_vit, counts, prior=prior)
    if prior == "none" and 0 in counts:
        method.prepare([name for name, n in zip(NAMES, counts, strict=True) if n], TEMPLATE)
    TunedModel(method, describe_model(method, seed=0, shots=2)).save(tmp_path / "model")
    loaded = TunedModel.load(tmp_path / "model", tiny_vit).method
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    assert torch.equal(ask(loaded, new).probabilities, ask(method, new).probabilities)


# priors


def read(method: Conjugate) -> torch.Tensor:
    return method.prompts_of(method.class_features(1, torch.Generator()))[0]


def test_ensemble(tiny_vit):
    method = usual(tiny_vit, prior="ensemble")
    each = [sentence_features(tiny_vit, NAMES, sentence) for sentence in ENSEMBLE]
    texts = unit(torch.stack([unit(features) for features in each]).mean(0))
    torch.testing.assert_close(read(method), texts)
    new = mixed_images(tiny_vit)
    expected = answers(usual_core(tiny_vit, texts=texts), new, [0, 1, 2, 3], texts, 1.0)
    close(ask(method, new).probabilities, expected)


def test_the_datas_sentence_and_general_ones(tiny_vit):
    """The usual prior: the mean of both kinds, each of length 1."""
    labels = labels_of()
    method = fit(
        tiny_vit, photographs(tiny_vit, NAMES, labels, seed=1), labels, prior=ConjugateConfig().prior
    )
    general = unit(torch.stack([unit(sentence_features(tiny_vit, NAMES, s)) for s in ENSEMBLE]).mean(0))
    torch.testing.assert_close(read(method), unit(texts_of(tiny_vit, NAMES) + general))


def test_without_names(tiny_vit):
    method = usual(tiny_vit, prior="none")
    new = photographs(tiny_vit, NAMES, torch.arange(12) % 4, seed=2)
    found = ask(method, new).probabilities
    assert (found.argmax(1) == torch.arange(12) % 4).float().mean() > 0.7
    assert float(method.fitted.posterior.information) == pytest.approx(0, abs=1e-9)
    assert not method.takes_new_names
    with pytest.raises(InputError, match="'tree' is none of them"):
        method.prepare((*NAMES, "tree"), TEMPLATE)
    labels = labels_of()
    images = photographs(tiny_vit, NAMES, labels, seed=1)
    renamed = fit(tiny_vit, images, labels, ("a", "b", "c", "e"), prior="none")
    torch.testing.assert_close(ask(renamed, new).probabilities, found)


def test_a_prior_that_is_none_of_them(tiny_vit):
    for prior in ("pbprompt", "nonsense"):
        with pytest.raises(
            InputError, match=f"'prior' is '{prior}': use sentence, ensemble, sentences or none"
        ):
            ConjugateConfig(prior=prior)


# whatever comes


def test_no_number_is_refused(tiny_vit):
    images = photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=1)
    for bad in (float("nan"), float("inf")):
        broken = images.global_.clone()
        broken[3, 2] = bad
        method = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=0)
        method.prepare(NAMES, TEMPLATE)
        with pytest.raises(InputError, match="NaN or infinity"):
            method.begin(with_patches(broken), torch.arange(8) % 4)
        with pytest.raises(InputError, match="fit it"):  # as before
            predictive(method)


def test_unfitted_says_so(tiny_vit):
    method = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=0)
    method.prepare(NAMES, TEMPLATE)
    with pytest.raises(InputError, match="fit it"):
        predictive(method)


def test_no_step_can_be_taken(tiny_vit):
    method = usual(tiny_vit)
    assert not isinstance(method, Trained) and method.counted_parameters() == 0


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
    assert all(value.isfinite().all() for value in (said.probabilities, said.entropy, said.spreads))
    close(said.probabilities.sum(1), np.ones(10), 1e-5)
    assert method.fitted.familiarity(new) is None  # of so few photographs


def test_fitted_at_once_and_again(tiny_vit):
    labels = labels_of()
    data = Batch(photographs(tiny_vit, NAMES, labels, seed=1), labels)
    new = photographs(tiny_vit, NAMES, torch.arange(8) % 4, seed=2)
    results = []
    for _ in range(2):
        method = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=0)
        method.prepare(NAMES, TEMPLATE)
        method.begin_on(lambda epoch: data, seed=0)
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
        values.append(method.fitted.familiarity(new))
    p = torch.cat(values)
    for alpha in (0.05, 0.1, 0.3):
        assert (p <= alpha).double().mean() <= alpha + 0.04
    assert (p <= 0.5).double().mean() > 0.3  # and it says something


def test_familiarity_is_a_rank_that_unknown_images_fail(tiny_vit):
    method = usual(tiny_vit, (12, 12, 12, 12))
    predictive(method)
    known = photographs(tiny_vit, NAMES, torch.arange(40) % 4, seed=2)
    other = torch.randn(40, 32, generator=torch.Generator().manual_seed(3))
    p = method.fitted.familiarity(known)
    assert ((p * 49 - (p * 49).round()).abs() < 1e-4).all() and (p >= 1 / 49 - 1e-6).all()
    strange = method.fitted.familiarity(with_patches(other))
    assert strange.median() < p.median()


@pytest.mark.parametrize("names", [NAMES[::-1], (*NAMES, "tree"), ("tree", *NAMES[:2]), NAMES[:1], ("tree",)])
def test_familiarity_does_not_depend_on_what_is_asked(tiny_vit, names):
    """It is that of all known classes."""
    method = usual(tiny_vit, (6, 6, 6, 6))
    new = photographs(tiny_vit, NAMES, torch.arange(40) % 4, seed=2, noise=1.0)
    predictive(method)
    whole = method.fitted.familiarity(new)
    method.prepare(names, TEMPLATE)
    predictive(method)
    torch.testing.assert_close(method.fitted.familiarity(new), whole)


@pytest.mark.parametrize("asked", [NAMES, ("traffic light", "owl", "cat", "moon"), NAMES[::-1][1:]])
@pytest.mark.parametrize("counts", [COUNTS, (4, 1, 5, 3)])
def test_left_out_answers_are_nearly_those_of_fits_without_each_image(tiny_vit, counts, asked):
    """By folds, where the other classes lose as many; a class's only photograph is not judged."""
    labels = labels_of(counts)
    images = photographs(tiny_vit, NAMES, labels, seed=0)
    method = fit(tiny_vit, images, labels)
    method.prepare(asked, TEMPLATE)
    found, own = method.fitted.left_out()[:2]
    judged = [i for i, label in enumerate(labels.tolist()) if counts[label] > 1 and NAMES[label] in asked]
    assert [asked[place] for place in own.tolist()] == [NAMES[labels[i]] for i in judged]
    apart = []
    for row, i in enumerate(judged):
        rest = [j for j in range(len(labels)) if j != i]
        without = fit(tiny_vit, rows(images, rest), labels[rest])
        without.prepare(asked, TEMPLATE)
        refitted = ask(without, rows(images, [i])).probabilities[0]
        kept = ask(method, rows(images, [i])).probabilities[0]
        mine = own[row]
        apart.append([float((found[row] - refitted).abs().max()), float(found[row][mine]), float(kept[mine])])
    to_refitted, held_out, vouched = np.mean(apart, axis=0)
    assert to_refitted < 0.1 and held_out < vouched


def test_left_out_answers_know_what_is_left_to_the_names(tiny_vit):
    """An image far from all others is left to the names, as it would be in a prediction."""
    labels = labels_of((9, 8, 7, 9))
    images = photographs(tiny_vit, NAMES, labels, seed=0)
    images = with_patches(torch.cat([-images.global_[:1], images.global_[1:]]))
    said = []
    for information in (0.0, 1.0):
        found = fit(tiny_vit, images, labels).fitted
        given = {**found.fitted, "information": torch.tensor(information)}
        found = replace(found, fitted=given)
        said.append(found.left_out()[0])
    model = found.posterior
    by_name = (model.name_scale * unit(images.global_) @ expert(model, "names").directions.T).softmax(1)
    share = model.novelty.unlike(found.held_out.looks).unsqueeze(1)
    assert share[0] == 1 and (share == 0).sum() > 20
    close(said[1], (1 - share) * said[0] + share * by_name, 1e-4)
    assert (said[1][0] - said[0][0]).abs().max() > 1e-3


def test_left_out_answers_of_a_loaded_model_are_the_same(tiny_vit):
    method = usual(tiny_vit)
    loaded = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=1)
    loaded.load_state_dict(method.state_dict())
    loaded.prepare(NAMES, TEMPLATE)
    for mine, theirs in zip(loaded.fitted.left_out()[:2], method.fitted.left_out()[:2], strict=True):
        torch.testing.assert_close(mine, theirs)
    other = usual(tiny_vit, (5, 5, 5, 5))
    method.load_state_dict(other.state_dict())  # over what it left out when it was fitted
    assert len(method.fitted.left_out()[1]) == 20


def test_nothing_to_leave_out(tiny_vit):
    assert usual(tiny_vit, counts=(1, 1, 1, 1)).fitted.left_out() is None
    assert usual(tiny_vit, counts=(5,), names=NAMES[:1]).fitted.left_out() is None


def test_familiarity_needs_nineteen_photographs_that_are_not_their_classs_only_one(tiny_vit):
    new = photographs(tiny_vit, NAMES, torch.arange(4), seed=2)
    few, enough = usual(tiny_vit, (6, 6, 6, 1)), usual(tiny_vit, (6, 6, 7, 1))
    assert few.fitted.familiarity(new) is None
    assert enough.fitted.familiarity(new).shape == (4,)


# images without labels


def with_pool(backbone: Backbone, counts=(2, 2, 2, 2), noise: float = 1.2) -> tuple[Conjugate, Encoded]:
    """A model with photographs beside it that have no label, and some of those."""
    labels = labels_of(counts)
    method = build_method(Conjugate, ConjugateConfig(prior="sentence"), backbone, seed=0)
    method.prepare(NAMES, TEMPLATE)
    others = photographs(backbone, NAMES, labels_of((30, 30, 30, 30)), seed=9, noise=noise)
    seen = photographs(backbone, NAMES, labels, seed=1, noise=noise)
    method.begin(seen, labels, unlabelled=others.global_)
    return method, others


def test_unlabelled_are_absorbed_as_the_core_does(tiny_vit):
    method, others = with_pool(tiny_vit)
    found = method.absorbed
    assert found is not None and found.verdict is not None
    labels = labels_of((2, 2, 2, 2))
    known = unit(photographs(tiny_vit, NAMES, labels, seed=1, noise=1.2).global_)
    features = unit(others.global_).float()
    order = feature_keys(features).argsort(stable=True)
    evidence = shown(known, labels, texts_of(tiny_vit, NAMES), float(tiny_vit.logit_scale))
    plain = absorb([evidence], [features[order]])
    assert found.weight == plain.weight and found.familiar[order].tolist() == plain.familiar.tolist()
    new = photographs(tiny_vit, NAMES, labels_of(), seed=4)
    x = unit(new.global_).double()
    torch.testing.assert_close(
        scores(method.fitted.posterior, x.float()).double(), scores(plain.posterior, x), rtol=1e-3, atol=1e-3
    )
    assert len(method.fitted.pool) == len(plain.kernel_rows)


def test_the_classes_that_unlabelled_ones_moved_are_saved_where_they_lie(tiny_vit):
    """The Gaussians lie about another centre than that of the labelled photographs, and both are needed."""
    method, others = with_pool(tiny_vit, (1, 1, 1, 1), 0.3)
    wanted = method.absorbed.posterior
    assert not torch.allclose(expert(wanted, "gaussians").centre, wanted.views[0].centre, atol=1e-3)
    x = unit(others.global_)
    state = method.state_dict()
    loaded = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=1)
    loaded.load_state_dict(state)
    for each in (method, loaded):
        each.prepare(NAMES, TEMPLATE)
        found = scores(each.fitted.posterior, x).double()
        torch.testing.assert_close(found, scores(wanted, x.double()), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(each.fitted.posterior.views[0].centre.double(), wanted.views[0].centre)
    older = {name: value for name, value in state.items() if name != "fitted_centre"}
    loaded.load_state_dict(older)  # has one for both
    assert ask(loaded, others).probabilities.isfinite().all()
    assert "fitted_centre" not in usual(tiny_vit).state_dict()


def test_a_model_with_unlabelled_ones_is_saved_and_lived_with(tiny_vit, tmp_path):
    method, others = with_pool(tiny_vit, (1, 1, 1, 1), 0.3)
    assert method.absorbed is not None and method.absorbed.weight > 0
    new = photographs(tiny_vit, NAMES, labels_of(), seed=4)
    TunedModel(method, describe_model(method)).save(tmp_path / "model")
    again = TunedModel.load(tmp_path / "model", tiny_vit).method
    assert torch.equal(ask(again, new).probabilities, ask(method, new).probabilities)
    assert again.fitted.left_out() is None  # every photograph is its class's only one
    again.prepare((*NAMES, "submarine"), TEMPLATE)
    assert ask(again, new).probabilities.shape[1] == 5
    again.prepare(NAMES, TEMPLATE)
    labels = labels_of((3, 3, 3, 3))
    again.learn(photographs(tiny_vit, NAMES, labels, seed=6, noise=0.3), labels)
    assert again.absorbed is not None and again.fitted.left_out() is not None  # the pool is weighed anew
    assert torch.isfinite(ask(again, new).probabilities).all()
    again.add_unlabelled(others.global_[:5])  # and more of them join it
    assert again.absorbed is not None and len(again.absorbed.familiar) == 5
    kept = len(method.fitted.pool)
    method.regroup({NAMES[0]: "hen"})  # they stay beside classes that are renamed
    assert "hen" in method.seen and method.absorbed is not None and 0 < len(method.fitted.pool) <= kept


def test_names_and_unlabelled_ones_alone(tiny_vit):
    method = build_method(Conjugate, ConjugateConfig(prior="sentence"), tiny_vit, seed=0)
    method.prepare(NAMES, TEMPLATE)
    labels = labels_of((20, 20, 20, 20))
    others = photographs(tiny_vit, NAMES, labels, seed=9, noise=0.3)
    nameless = build_method(Conjugate, ConjugateConfig(prior="none"), tiny_vit, seed=0)
    nameless.prepare(NAMES, TEMPLATE)
    with pytest.raises(InputError, match="without labels"):
        nameless.begin_by_names(others.global_)
    with pytest.raises(InputError, match="too few for 4 classes"):
        method.begin_by_names(others.global_[:7])
    method.begin_by_names(others.global_)
    said = ask(method, others).probabilities
    torch.testing.assert_close(said.sum(1), torch.ones(80), rtol=1e-4, atol=1e-4)
    assert (said.argmax(1) == labels).double().mean() > 0.5
    assert method.fitted.left_out() is None and method.fitted.familiarity(others) is None
    with pytest.raises(InputError, match="without any label"):
        method.add_unlabelled(others.global_)
    with pytest.raises(InputError, match="without any label"):
        method.regroup({"cat": "hen"})
    few = labels_of((2, 2, 2, 2))
    method.learn(photographs(tiny_vit, NAMES, few, seed=1, noise=0.3), few)
    assert torch.isfinite(ask(method, others).probabilities).all()


def test_unlabelled_that_are_no_numbers_are_refused(tiny_vit):
    method = build_method(Conjugate, ConjugateConfig(), tiny_vit, seed=0)
    method.prepare(NAMES, TEMPLATE)
    with pytest.raises(InputError, match="NaN"):
        method.begin_by_names(torch.full((20, tiny_vit.embed_dim), torch.nan))
