"""Eq. 1 against loops over the formula, and the bounds that uncertainty must keep."""

import math

import numpy as np
import pytest
import torch

from pbprompt.vision.similarity import (
    class_logits,
    cosines,
    log_likelihood,
    mean_features,
    mean_probabilities,
    pair_cosine,
    unit,
)

S, B, C, D = 3, 4, 5, 6


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def probabilities_by_loops(features, prompts, scale):
    """Eq. 1 as written, one number at a time: [s, b, c]."""
    features, prompts = features.numpy(), prompts.numpy()
    result = np.zeros((len(prompts), len(features), prompts.shape[1]))
    for s in range(len(prompts)):
        for b, f in enumerate(features):
            terms = []
            for g in prompts[s]:
                cosine = (f * g).sum() / (math.sqrt((f * f).sum()) * math.sqrt((g * g).sum()))
                terms.append(math.exp(scale * cosine))
            result[s, b] = np.array(terms) / sum(terms)
    return result


def test_likelihood_is_equation_1():
    features, prompts = random(B, D), random(S, C, D, seed=1)
    expected = probabilities_by_loops(features, prompts, 7.0)
    logits = class_logits(features, prompts, 7.0)
    np.testing.assert_allclose(logits.softmax(-1), expected, rtol=1e-12)
    labels = torch.tensor([0, 4, 2, 2])
    chosen = np.log([[expected[s, b, y] for b, y in enumerate(labels)] for s in range(S)])
    np.testing.assert_allclose(log_likelihood(logits, labels), chosen, rtol=1e-12)


def test_leading_dimensions_of_the_prompts_are_kept():
    features, prompts = random(B, D), random(2, S, C, D, seed=1)
    labels = torch.tensor([0, 1, 2, 3])
    logits = class_logits(features, prompts, torch.tensor(5.0, dtype=torch.float64))
    alone = class_logits(features, prompts[1, 2], 5.0)
    assert logits.shape == (2, S, B, C)
    torch.testing.assert_close(logits[1, 2], alone)
    torch.testing.assert_close(log_likelihood(logits, labels)[1, 2], log_likelihood(alone, labels))


def predictive(features, prompts, scale):
    """log p(y | x) over the sampled prompts."""
    return mean_probabilities(class_logits(features, prompts, scale))


def test_predictive_readings():
    features, prompts = random(B, D), random(S, C, D, seed=1)
    of_probabilities = np.log(probabilities_by_loops(features, prompts, 9.0).mean(0))
    np.testing.assert_allclose(predictive(features, prompts, 9.0), of_probabilities, rtol=1e-10)

    directions = prompts.numpy() / np.linalg.norm(prompts.numpy(), axis=-1, keepdims=True)
    one_prompt = torch.from_numpy(directions.mean(0))[None]
    of_features = np.log(probabilities_by_loops(features, one_prompt, 9.0)[0])
    np.testing.assert_allclose(
        class_logits(features, mean_features(prompts), 9.0).log_softmax(-1), of_features, rtol=1e-10
    )
    torch.testing.assert_close(mean_features(prompts), unit(one_prompt[0]))


def test_the_readings_agree_for_one_sample():
    features, prompts = random(B, D), random(1, C, D, seed=1)
    of_features = class_logits(features, mean_features(prompts), 9.0).log_softmax(-1)
    torch.testing.assert_close(predictive(features, prompts, 9.0), of_features)


def test_one_class_is_certain():
    logits = class_logits(random(B, D), random(S, 1, D, seed=1), 100.0)
    assert (log_likelihood(logits, torch.zeros(B, dtype=torch.int64)) == 0).all()
    assert (mean_probabilities(logits) == 0).all()


def test_order_of_samples_images_and_classes_does_not_matter():
    features, prompts = random(B, D), random(S, C, D, seed=1)
    samples, images, classes = torch.randperm(S), torch.randperm(B), torch.randperm(C)
    expected = predictive(features, prompts, 9.0)[images][:, classes]
    torch.testing.assert_close(predictive(features[images], prompts[samples][:, classes], 9.0), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_computed_in_single(dtype):
    features, prompts = random(B, 512, dtype=dtype), random(S, C, 512, seed=1, dtype=dtype)
    logits = class_logits(features, prompts, 100.0)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, class_logits(features.float(), prompts.float(), 100.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(class_logits(features, prompts, 100.0), logits, rtol=0, atol=0)
    # Squares of these overflow float16 and vanish in it.
    for size in (3e4, 1e-5):
        big = torch.full((1, 512), size, dtype=dtype)
        torch.testing.assert_close(unit(big).norm(dim=-1), torch.ones(1))
    assert mean_probabilities(logits.to(dtype)).dtype == torch.float32


def test_double_precision_is_kept_and_mixed_precision_promoted():
    assert cosines(random(B, D), random(C, D)).dtype == torch.float64
    assert cosines(random(B, D, dtype=torch.float16), random(C, D)).dtype == torch.float64


def test_a_zero_feature_has_finite_value_and_gradient():
    features = torch.zeros(1, D, requires_grad=True)
    logits = class_logits(features, random(C, D, dtype=torch.float32), 100.0)
    log_likelihood(logits, torch.tensor([0])).sum().backward()
    assert (logits == 0).all() and torch.isfinite(features.grad).all()


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[[0.0, 1e4, -1e4]]], requires_grad=True)
    value = log_likelihood(logits, torch.tensor([2]))
    value.sum().backward()
    assert value.item() == -2e4 and torch.isfinite(logits.grad).all()


def test_gradients():
    features = random(B, D).requires_grad_()
    prompts = random(S, C, D, seed=1).requires_grad_()
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 4, 2, 2])
    assert torch.autograd.gradcheck(
        lambda f, p, t: log_likelihood(class_logits(f, p, t), labels), (features, prompts, scale)
    )
    assert torch.autograd.gradcheck(predictive, (features, prompts, scale))


def test_sampled_cosine_is_a_loop_over_pairs():
    prompts = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(0))
    found = pair_cosine(prompts)
    for c in range(3):
        rows = prompts[:, c].double().numpy()
        pairs = [
            rows[s] @ rows[t] / np.linalg.norm(rows[s]) / np.linalg.norm(rows[t])
            for s in range(5)
            for t in range(s + 1, 5)
        ]
        assert found[c].item() == pytest.approx(np.mean(pairs), abs=1e-6)


def test_equal_draws_are_a_collapse_and_one_draw_has_no_pair():
    one = torch.randn(1, 2, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(pair_cosine(one.expand(4, -1, -1)), torch.ones(2))
    assert pair_cosine(one).isnan().all()
