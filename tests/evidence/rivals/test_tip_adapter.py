"""Tip-Adapter against numpy loops, with sentences encoded over all 77 positions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.evidence.rivals import tip_adapter
from pbprompt.evidence.rivals.tip_adapter import TipAdapter, TipAdapterConfig
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.learners.trained import Trained
from pbprompt.model.folder import describe_model
from pbprompt.model.learn import tune
from pbprompt.model.predictor import predictive
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.loop.loop import Run, train
from pbprompt.vision.features.cache import Features
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.towers.backbone import Backbone, Encoded

NAMES = ("cat", "golden_retriever", "x")
TEMPLATE = "a photo of a {}, a thing."
COUNT = 7
LABELS = [0, 1, 1, 2, 0, 1, 2]


def encoded(backbone: Backbone, count: int, seed: int) -> Encoded:
    x = 7 * torch.randn(count, backbone.embed_dim, generator=torch.Generator().manual_seed(seed))
    x = x.to(backbone.dtype)
    return Encoded(x, x.new_zeros(count, 0, backbone.embed_dim))


def fitted(backbone: Backbone, **settings) -> TipAdapter:
    method = build_method(TipAdapter, TipAdapterConfig(**settings), backbone, seed=0).to(backbone.dtype)
    method.prepare(NAMES, TEMPLATE)
    method.begin(encoded(backbone, COUNT, seed=1), torch.tensor(LABELS))
    return method


def rows(x: torch.Tensor) -> np.ndarray:
    x = x.double().numpy()
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def sentence(backbone: Backbone, name: str) -> np.ndarray:
    tokenizer = backbone.tokenizer
    text = TEMPLATE.replace("{}", name.replace("_", " "))
    ids = [tokenizer.sos, *tokenizer.encode(text), tokenizer.eot]
    embedded = backbone.token_embedding(torch.tensor(ids))
    padding = embedded.new_zeros(backbone.context_length - len(ids), embedded.shape[1])
    return rows(backbone.text(torch.cat([embedded, padding])[None], torch.tensor([len(ids)])))[0]


def expected_logits(
    backbone: Backbone, images: Encoded, names: tuple[str, ...], alpha: float = 1.0, beta: float = 5.5
) -> np.ndarray:
    keys, x = rows(encoded(backbone, COUNT, seed=1).global_), rows(images.global_)
    logits = np.empty((len(x), len(names)))
    for c, name in enumerate(names):
        text = sentence(backbone, name)
        for i, row in enumerate(x):
            votes = [
                np.exp(-beta * (1 - row @ key))
                for key, label in zip(keys, LABELS, strict=True)
                if NAMES[label] == name
            ]
            logits[i, c] = 100 * row @ text + alpha * sum(votes)
    return logits


def logits(method: TipAdapter, images: Encoded) -> np.ndarray:
    bank = method.class_features(1, torch.Generator())
    return method.sample_logits(images, bank).squeeze(0).detach().numpy()


@pytest.mark.parametrize("settings", [{}, {"alpha": 3.0, "beta": 1.2}])
def test_logits(double_vit, settings, monkeypatch):
    method, images = fitted(double_vit, **settings), encoded(double_vit, 5, seed=2)
    expected = expected_logits(double_vit, images, NAMES, **settings)
    np.testing.assert_allclose(logits(method, images), expected, rtol=1e-9)
    monkeypatch.setattr(tip_adapter, "AFFINITIES", 2 * COUNT)  # two images at once, and one over
    np.testing.assert_allclose(logits(method, images), expected, rtol=1e-9)


def test_new_names_have_their_sentence_alone(double_vit):
    method, images = fitted(double_vit), encoded(double_vit, 5, seed=2)
    names = ("dog", "x", "cat", "tree")
    method.prepare(names, TEMPLATE)
    found = logits(method, images)
    np.testing.assert_allclose(found, expected_logits(double_vit, images, names), rtol=1e-9)
    plain = 100 * rows(images.global_) @ sentence(double_vit, "dog")
    np.testing.assert_allclose(found[:, 0], plain, rtol=1e-9)


def test_finetuned_keys_and_their_gradient(double_vit):
    method, images = fitted(double_vit, finetune=True), encoded(double_vit, 4, seed=2)
    y = torch.tensor([2, 0, 1, 1])
    np.testing.assert_allclose(logits(method, images), expected_logits(double_vit, images, NAMES), rtol=1e-9)
    terms = method.loss(Batch(images, y), torch.Generator(), examples=4)
    z = expected_logits(double_vit, images, NAMES)
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert terms["total"].item() == pytest.approx(-np.log(p[range(4), y]).mean())
    method.backward(terms)
    keys, x = rows(encoded(double_vit, COUNT, seed=1).global_), rows(images.global_)
    expected = np.zeros_like(keys)  # ∂/∂k_j = mean_i (p_i,y_j − [y_i = y_j])·β·exp(−β(1 − x_i·k_j))·x_i
    for j, label in enumerate(LABELS):
        for i in range(4):
            weight = p[i, label] - float(y[i] == label)
            expected[j] += weight * 5.5 * np.exp(-5.5 * (1 - x[i] @ keys[j])) * x[i] / 4
    np.testing.assert_allclose(method.keys.grad.numpy(), expected, rtol=1e-7, atol=1e-12)


def test_recipe(tiny_vit):
    plain, tuned = make_config(TipAdapter), make_config(TipAdapter, variant="f")
    assert (plain.alpha, plain.beta, plain.finetune) == (1.0, 5.5, False)
    assert (tuned.finetune, tuned.optimiser, tuned.learning_rate, tuned.batch_size) == (
        True,
        "adamw",
        1e-3,
        256,
    )
    assert not isinstance(build_method(TipAdapter, plain, tiny_vit, 0), Trained)
    assert build_method(TipAdapter, tuned, tiny_vit, 0).epochs_for(16) == 20


def test_finetuning_learns_and_goes_on_where_it_stood(tiny_vit, tmp_path):
    config = TipAdapterConfig(finetune=True, alpha=5.0, learning_rate=0.01)
    data = Features(*encoded(tiny_vit, COUNT, seed=1), torch.tensor(LABELS))

    def tuned(folder, *stops):
        for stop in stops:
            method = build_method(TipAdapter, config, tiny_vit, seed=0)
            method.prepare(NAMES, TEMPLATE)
            run = Run(
                options=FitOptions(seed=0, folder=folder, max_steps=stop, progress=False),
                epochs=6,
                identity="one",
            )
            terms = train(method, lambda epoch: data, COUNT, run)
        return method, terms

    whole, terms = tuned(tmp_path / "whole", None)
    first = fitted(tiny_vit, finetune=True, alpha=5.0)
    before = first.loss(Batch(Encoded(data.global_, data.patches), data.labels), torch.Generator(), COUNT)
    assert terms["total"] < before["total"].item()
    resumed, _ = tuned(tmp_path / "resumed", 3, None)
    assert torch.equal(whole.keys, resumed.keys)
    assert not torch.equal(whole.keys, first.keys)


def test_without_finetune_nothing_is_trained(tiny_vit):
    method = fitted(tiny_vit)
    assert not isinstance(method, Trained) and method.counted_parameters() == 0


def test_unfitted_says_so(tiny_vit):
    method = build_method(TipAdapter, TipAdapterConfig(), tiny_vit, seed=0)
    method.prepare(NAMES, TEMPLATE)
    with pytest.raises(InputError, match="fit it"):
        predictive(method)


@pytest.mark.parametrize("finetune", [False, True])
def test_model_folder(tiny_vit, tmp_path, finetune):
    method, images = fitted(tiny_vit, finetune=finetune), encoded(tiny_vit, 5, seed=2)
    info = describe_model(method, seed=0, shots=2)
    TunedModel(method, info).save(tmp_path / "model")
    loaded = TunedModel.load(tmp_path / "model", tiny_vit).method
    for names in (NAMES, ("x", "dog")):
        method.prepare(names, TEMPLATE)
        loaded.prepare(names, TEMPLATE)
        assert torch.equal(predictive(loaded)(images).probabilities, predictive(method)(images).probabilities)


def test_the_published_keys_are_the_mean_of_ten_views(tiny_vit):
    config = make_config(TipAdapter, "published")
    assert (config.key_views, config.adam_epsilon, config.anneal) == (10, 1e-4, "step")
    method = build_method(TipAdapter, config, tiny_vit, seed=1)
    method.prepare(["cat", "dog"], "a photo of a {}.")
    draws = torch.randn(10, 4, tiny_vit.embed_dim)
    labels = torch.tensor([0, 1, 0, 1])
    method.begin_on(lambda epoch: Batch(Encoded(draws[epoch], torch.zeros(4, 1, 1)), labels), seed=1)
    assert torch.allclose(method.fitted.keys, torch.nn.functional.normalize(draws.mean(0), dim=-1), atol=1e-6)


def searched(backbone, **settings):
    """A fitted one with its search made on 40 images, and those images with their labels."""
    method, images = fitted(backbone, **settings), encoded(backbone, 40, seed=3)
    near = encoded(backbone, COUNT, seed=1).global_[torch.arange(40) % COUNT]
    images = Encoded(images.global_ + 0.4 * near, images.patches)
    labels = torch.tensor(LABELS)[torch.arange(40) % COUNT]
    method.choose(images, labels)
    return method, images, labels


def brute_force(backbone, images, labels, betas, alphas):
    """The first pair, β outermost, of the highest accuracy."""
    best, pair = -1, None
    for beta in betas:
        for alpha in alphas:
            z = expected_logits(backbone, images, NAMES, alpha, beta)
            right = int((z.argmax(1) == labels.numpy()).sum())
            if right > best:
                best, pair = right, (alpha, beta)
    return pair


def steps(most, count):
    return [0.1 + place * (most - 0.1) / count for place in range(count)]


def test_alpha_and_beta_are_those_of_a_search_through_the_whole_grid(double_vit, monkeypatch):
    monkeypatch.setattr(tip_adapter, "BETAS", 9)
    monkeypatch.setattr(tip_adapter, "ALPHAS", 5)
    method, images, labels = searched(double_vit, search_beta=7.0, search_alpha=30.0)
    expected = brute_force(double_vit, images, labels, steps(7.0, 9), steps(30.0, 5))
    assert method.fitted.found.tolist() == pytest.approx(expected)
    assert expected[0] > 0.1  # the text alone is not the best here
    alpha, beta = expected
    np.testing.assert_allclose(
        logits(method, images), expected_logits(double_vit, images, NAMES, alpha, beta), rtol=1e-6
    )
    monkeypatch.setattr(tip_adapter, "AFFINITIES", 4 * COUNT)  # a few images at once
    assert (
        searched(double_vit, search_beta=7.0, search_alpha=30.0)[0].fitted.found.tolist()
        == method.fitted.found.tolist()
    )


def test_one_of_the_two_can_be_searched_alone(double_vit):
    method, images, labels = searched(double_vit, search_alpha=30.0, beta=2.0)
    expected = brute_force(double_vit, images, labels, [2.0], steps(30.0, 20))
    assert method.fitted.found.tolist() == pytest.approx(expected)


def test_the_published_search_is_the_authors(tiny_vit):
    config = make_config(TipAdapter, "published")
    assert (config.search_beta, config.search_alpha, config.beta, config.alpha) == (7.0, 3.0, 1.0, 1.17)
    assert (tip_adapter.BETAS, tip_adapter.ALPHAS) == (200, 20)
    assert TipAdapter.needs_validation(config)
    assert not TipAdapter.needs_validation(make_config(TipAdapter))


def test_the_search_on_images_left_out_is_that_of_caches_without_each(double_vit, monkeypatch):
    monkeypatch.setattr(tip_adapter, "BETAS", 9)
    monkeypatch.setattr(tip_adapter, "ALPHAS", 5)
    method = fitted(double_vit, search_beta=20.0, search_alpha=50.0, search_on="left-out")
    assert not method.needs_validation(method.config)
    x = encoded(double_vit, COUNT, seed=1)
    keys = rows(x.global_)
    best, pair = -1, None
    for beta in steps(20.0, 9):
        for alpha in steps(50.0, 5):
            right = 0
            for i, label in enumerate(LABELS):
                if LABELS.count(label) < 2:
                    continue
                z = [100 * keys[i] @ sentence(double_vit, name) for name in NAMES]
                for j, other in enumerate(LABELS):
                    if j != i:
                        z[other] += alpha * np.exp(-beta * (1 - keys[i] @ keys[j]))
                right += int(np.argmax(z) == label)
            if right > best:
                best, pair = right, (alpha, beta)
    assert method.fitted.found.tolist() == pytest.approx(pair)


def test_one_image_per_class_leaves_alpha_and_beta_as_they_are(double_vit):
    settings = TipAdapterConfig(search_alpha=50.0, search_on="left-out", alpha=1.3)
    method = build_method(TipAdapter, settings, double_vit, seed=0)
    method.prepare(NAMES, TEMPLATE)
    method.begin(encoded(double_vit, 3, seed=1), torch.arange(3))
    assert method.fitted.found.tolist() == [1.3, 5.5]


@pytest.mark.parametrize("finetune", [False, True])
def test_what_was_found_is_saved(tiny_vit, tmp_path, finetune):
    method, images, _ = searched(tiny_vit, search_alpha=30.0, finetune=finetune)
    TunedModel(method, describe_model(method, seed=0, shots=2)).save(tmp_path / "model")
    loaded = TunedModel.load(tmp_path / "model", tiny_vit).method
    assert torch.equal(loaded.fitted.found, method.fitted.found)
    assert torch.equal(predictive(loaded)(images).probabilities, predictive(method)(images).probabilities)


class Given:
    """Features of items by number, in place of images."""

    def __init__(self, backbone):
        self.backbone = backbone

    def encode(self, root, items):
        rows = encoded(self.backbone, len(items), seed=len(items)).global_
        rows = rows + 3 * encoded(self.backbone, 3, seed=9).global_[[item.label for item in items]]
        return Features(rows, rows[:, None][:, :0], torch.tensor([item.label for item in items]))


@pytest.mark.parametrize("variant", ["", "f"])
def test_tuning_searches_on_the_validation_images_alone(tiny_vit, tmp_path, variant):
    def items(split, count):
        return tuple(Item(f"{split}-{n}", n % 3) for n in range(count))

    config = make_config(TipAdapter, "published", variant, ["key_views=1", "epochs=1"] if variant else [])
    data = Dataset("three", tmp_path, NAMES, items("train", 6), items("val", 30), items("test", 9))
    method, _ = tune(data, Given(tiny_vit), TipAdapter, config, FitOptions(seed=1, progress=False))
    found = method.fitted.found.tolist()
    held_out = Given(tiny_vit).encode(tmp_path, data.val)
    method.choose(Encoded(held_out.global_, held_out.patches), held_out.labels)
    assert method.fitted.found.tolist() == found != pytest.approx([1.17, 1.0])
    with pytest.raises(InputError, match="three has no validation images, on which tip-adapter chooses"):
        tune(replace(data, val=()), Given(tiny_vit), TipAdapter, config, FitOptions(seed=1, progress=False))
