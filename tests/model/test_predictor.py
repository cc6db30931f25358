"""Prediction from a bank of sampled classifiers: exact, seeded, and the same in pieces."""

import numpy as np
import pytest
import torch

from pbprompt.errors import InputError
from pbprompt.learners.method import build_method, make_config
from pbprompt.model import predictor as module
from pbprompt.model.predictor import predictive
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.vision.towers.backbone import Encoded

CLASSES = ("cat", "dog", "golden retriever", "car")


def made(backbone, *overrides):
    config = make_config(PBPrompt, overrides=["initial_std=0.2", *overrides])
    method = build_method(PBPrompt, config, backbone, seed=1)
    method.prepare(CLASSES, "a photo of a {}.")
    return method


def pictures(count, seed=0, patches=3):
    generator = torch.Generator().manual_seed(seed)
    return Encoded(
        torch.randn(count, 32, generator=generator), torch.randn(count, patches, 32, generator=generator)
    )


def by_hand(bank, images, scale):
    """Class distributions [s, b, c] in float64."""
    g = bank.double().numpy()
    f = images.global_.double().numpy()
    g = g / np.linalg.norm(g, axis=-1, keepdims=True)
    f = f / np.linalg.norm(f, axis=-1, keepdims=True)
    powers = np.exp(scale * (np.einsum("bd,scd->sbc", f, g) - 1))
    return powers / powers.sum(-1, keepdims=True)


def test_values_by_hand(tiny_vit):
    predictor, images = predictive(made(tiny_vit), samples=6, seed=4), pictures(7)
    found = predictor(images)
    p = by_hand(predictor.bank, images, tiny_vit.logit_scale)
    mean = p.mean(0)
    entropy = -(mean * np.log(mean)).sum(-1)
    expected = -(p * np.log(p)).sum(-1).mean(0)
    best = mean.argmax(-1)
    np.testing.assert_allclose(found.probabilities, mean, atol=2e-5)
    np.testing.assert_allclose(found.entropy, entropy, atol=1e-4)
    np.testing.assert_allclose(found.expected_entropy, expected, atol=1e-4)
    np.testing.assert_allclose(found.mutual_information, entropy - expected, atol=1e-4)
    np.testing.assert_allclose(found.spread, p[:, np.arange(7), best].std(0), atol=1e-4)


def test_in_pieces_as_in_one(tiny_vit, monkeypatch):
    predictor, images = predictive(made(tiny_vit), samples=5), pictures(11)
    whole = predictor(images)
    for at_once in (1, 3, 11):
        calls = []
        monkeypatch.setattr(module, "CHUNK", at_once * predictor.bank.shape[0] * predictor.bank.shape[1])
        inner = predictor.method.sample_logits
        with monkeypatch.context() as patch:
            patch.setattr(
                predictor.method,
                "sample_logits",
                lambda images, bank, inner=inner, calls=calls: (
                    calls.append(len(images.global_)) or inner(images, bank)
                ),
            )
            pieces = predictor(images)
        assert sum(calls) == 11 and max(calls) == at_once
        for part in ("probabilities", "entropy", "mutual_information", "spreads"):
            found, wanted = getattr(pieces, part), getattr(whole, part)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6, msg=part)


def test_a_chunk_smaller_than_one_image_still_works(tiny_vit, monkeypatch):
    predictor = predictive(made(tiny_vit), samples=5)
    monkeypatch.setattr(module, "CHUNK", 1)
    assert predictor(pictures(3)).probabilities.shape == (3, len(CLASSES))


def test_what_the_prompts_disagree_on_is_never_negative(tiny_vit):
    found = predictive(made(tiny_vit), samples=8)(pictures(200))
    assert (found.mutual_information >= 0).all() and found.mutual_information.max() > 0.01
    torch.testing.assert_close(
        found.entropy, found.expected_entropy + found.mutual_information, rtol=1e-3, atol=1e-4
    )
    torch.testing.assert_close(found.probabilities.sum(-1), torch.ones(200))


def test_one_prompt_has_nothing_to_disagree_with(tiny_vit):
    for overrides in (("sampling=false",), ("reading=mean",), ("reading=features",), ("prompts=free",)):
        predictor = predictive(made(tiny_vit, *overrides), samples=8)
        assert predictor.bank.shape == (1, len(CLASSES), 32)
        assert predictor(pictures(5)).mutual_information.abs().max() < 1e-6


def test_equal_seeds_give_equal_predictions(tiny_vit):
    method, images = made(tiny_vit), pictures(5)
    one, same, other = (predictive(method, 6, seed)(images) for seed in (1, 1, 2))
    assert torch.equal(one.probabilities, same.probabilities) and torch.equal(one.spreads, same.spreads)
    assert not torch.equal(one.probabilities, other.probabilities)


def test_the_bank_has_the_wanted_draws_and_keeps_no_graph(tiny_vit):
    bank = predictive(made(tiny_vit), samples=3).bank
    assert bank.shape == (3, len(CLASSES), 32) and not bank.requires_grad
    assert predictive(made(tiny_vit)).bank.shape[0] == 20


def test_the_features_reading_averages_directions(tiny_vit):
    draws = made(tiny_vit).class_features(6, torch.Generator().manual_seed(2)).detach().double()
    mean = (draws / draws.norm(dim=-1, keepdim=True)).mean(0)
    found = predictive(made(tiny_vit, "reading=features"), samples=6, seed=2).bank[0].double()
    cosines = torch.nn.functional.cosine_similarity(found, mean, dim=-1)
    assert cosines.tolist() == pytest.approx([1] * len(CLASSES), abs=1e-6)


def test_answers_that_are_no_numbers_are_refused(tiny_vit):
    images = pictures(2)
    images.global_[1, 0] = torch.nan
    with pytest.raises(InputError, match="the answer is NaN"):
        predictive(made(tiny_vit), samples=2)(images)
