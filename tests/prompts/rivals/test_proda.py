"""ProDA against its literal formulas: covariances between classes, one dimension and one pair at a time."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.prompts.rivals.proda import ProDA, mean_absolute_cosine, name_positions, pair_variances
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.prompts import named_prompts

NAMES = ["cat", "golden retriever", "tench"]
SMALL = ("prompts=8", "tokens=3", "drawn=4")


def built(backbone, *overrides):
    config = make_config(ProDA, overrides=overrides or SMALL)
    method = build_method(ProDA, config, backbone, seed=0).double()
    with torch.no_grad():
        method.context.mul_(20)  # prompts that differ
    method.prepare(NAMES, "a photo of a {}.")
    return method


def some_batch(backbone, count=4):
    draws = torch.Generator().manual_seed(1)
    images = torch.randn(count, backbone.embed_dim, generator=draws, dtype=torch.float64)
    return Batch(Encoded(images, images[:, None]), torch.tensor([1, 2, 0, 1])[:count])


def plain_text(backbone, prompt, context):
    """The unit feature of one prompt, all 77 positions."""
    padded = prompt + [0] * (77 - len(prompt))
    vectors = [context[-t - 1] if t < 0 else backbone.token_embedding(torch.tensor(t)) for t in padded]
    feature = backbone.text(torch.stack(vectors)[None], torch.tensor([len(prompt)]))[0]
    return feature / feature.norm()


def plain_features(backbone, method, chosen):
    """w[k][c] and the class-free p[k], prompt by prompt."""
    tokenizer, (count, tokens) = backbone.tokenizer, method.context.shape[:2]
    bare = [tokenizer.sos, *range(-1, -tokens - 1, -1), *tokenizer.encode("."), tokenizer.eot]
    named, free = [], []
    for k in chosen:
        position = "front" if k < count // 4 else "middle" if k < count // 2 else "end"
        prompts = named_prompts(tokenizer, NAMES, tokens, position)
        named.append(torch.stack([plain_text(backbone, prompt, method.context[k]) for prompt in prompts]))
        free.append(plain_text(backbone, bare, method.context[k]))
    return torch.stack(named), torch.stack(free)


def literal_covariance(w, i, j):
    """Σ_ij: per dimension, between the classes i and j, over the prompts."""
    total = 0
    for k in range(len(w)):
        total = total + (w[k, i] - w[:, i].mean(0)) * (w[k, j] - w[:, j].mean(0))
    return total / len(w)


def literal_loss(images, labels, w, free, scale, weight=0.1):
    losses = []
    for x, y in zip(images, labels.tolist(), strict=True):
        x, z = x / x.norm(), []
        for c in range(w.shape[1]):
            spread = (
                literal_covariance(w, y, y) + literal_covariance(w, c, c) - 2 * literal_covariance(w, y, c)
            )
            z.append(scale * x @ w[:, c].mean(0) + scale**2 / 2 * (x**2 * spread).sum())
        losses.append(-torch.log_softmax(torch.stack(z), 0)[y])
    count = len(free)
    alike = [(free[i] @ free[j]).abs() for i in range(count) for j in range(count) if i != j]
    surrogate, orthogonality = torch.stack(losses).mean(), torch.stack(alike).mean()
    return surrogate + weight * orthogonality, surrogate, orthogonality


def drawn_by(method, seed):
    """Which prompts a step with this generator draws."""
    generator = torch.Generator().manual_seed(seed)
    return sorted(torch.randperm(method.config.prompts, generator=generator)[: method.config.drawn].tolist())


@pytest.mark.parametrize("seed", [0, 3])
def test_loss_and_gradient(double_vit, seed):
    method, batch = built(double_vit), some_batch(double_vit)
    chosen = drawn_by(method, seed)
    w, free = plain_features(double_vit, method, chosen)
    wanted = literal_loss(batch.images.global_, batch.labels, w, free, double_vit.logit_scale)
    (wanted_gradient,) = torch.autograd.grad(wanted[0], method.context)

    terms = method.loss(batch, torch.Generator().manual_seed(seed), examples=4)
    method.backward(terms)
    found = (terms["total"], terms["surrogate"], terms["orthogonality"])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(method.context.grad, wanted_gradient, rtol=1e-6, atol=1e-8)
    touched = method.context.grad.abs().sum((1, 2)).nonzero().flatten().tolist()
    assert touched == chosen


def test_only_the_drawn_prompts_are_encoded(double_vit):
    method = built(double_vit)
    contexts = Counter()
    for position, engine in list(method._engines.items()):

        def counting(context, position=position, engine=engine):
            contexts[position] += len(context)
            return engine(context)

        method._engines[position] = counting
    method.loss(some_batch(double_vit), torch.Generator().manual_seed(3), examples=4)
    assert contexts == Counter(method.positions[k] for k in drawn_by(method, 3))


def test_pair_variances_are_the_covariances():
    draws = torch.Generator().manual_seed(0)
    w = F.normalize(torch.randn(5, 4, 7, generator=draws, dtype=torch.float64), dim=-1)
    images = torch.randn(6, 7, generator=draws, dtype=torch.float64)
    labels = torch.tensor([0, 3, 1, 1, 2, 0])
    found = pair_variances(images, w, labels)
    for b, y in enumerate(labels.tolist()):
        x = images[b] / images[b].norm()
        assert found[b, y].item() == pytest.approx(0, abs=1e-14)
        for c in range(4):
            spread = (
                literal_covariance(w, y, y) + literal_covariance(w, c, c) - 2 * literal_covariance(w, y, c)
            )
            assert found[b, c].item() == pytest.approx((x**2 * spread).sum().item(), abs=1e-14)
    assert found.min() > -1e-14


def test_the_surrogate_is_an_upper_bound_of_the_expected_loss():
    """E[−log softmax_y(s·x·w)] ≤ −log softmax_y(z) for w drawn from the Gaussian of μ and Σ."""
    draws = torch.Generator().manual_seed(0)
    w = F.normalize(torch.randn(5, 3, 6, generator=draws, dtype=torch.float64), dim=-1)
    x = F.normalize(torch.randn(1, 6, generator=draws, dtype=torch.float64), dim=-1)
    scale, label = 2.0, torch.tensor([1])
    mean = w.mean(0)
    bound = F.cross_entropy(scale * x @ mean.T + scale**2 / 2 * pair_variances(x, w, label), label)
    # Dimension by dimension, δ_c = Σ_k e_k (w_ck − μ_c) / √K has the covariance Σ between classes.
    noise = torch.randn(20000, 5, 6, generator=draws, dtype=torch.float64)
    classifiers = mean + torch.einsum("nkd,kcd->ncd", noise, w - mean) / 5**0.5
    logits = scale * torch.einsum("d,ncd->nc", x[0], classifiers)
    expected = F.cross_entropy(logits, label.expand(len(logits)))
    plain = F.cross_entropy(scale * x @ mean.T, label)
    assert plain < expected < bound


def test_prediction_uses_the_mean_of_all_prompts(double_vit):
    method, batch = built(double_vit), some_batch(double_vit)
    w, _ = plain_features(double_vit, method, range(8))
    bank = method.class_features(5, torch.Generator())
    torch.testing.assert_close(bank, w.mean(0)[None], rtol=0, atol=1e-10)
    x = F.normalize(batch.images.global_, dim=-1)
    wanted = double_vit.logit_scale * x @ w.mean(0).T  # not a cosine: the mean is shorter than one
    torch.testing.assert_close(method.sample_logits(batch.images, bank), wanted[None], rtol=0, atol=1e-8)
    assert w.mean(0).norm(dim=-1).max() < 0.999


def test_where_the_names_go(tiny_vit):
    assert Counter(name_positions(32)) == {"front": 8, "middle": 8, "end": 16}
    assert Counter(name_positions(8)) == {"front": 2, "middle": 2, "end": 4}
    assert Counter(name_positions(3)) == {"end": 3}
    config = make_config(ProDA)
    assert (config.prompts, config.tokens, config.drawn, config.epochs) == (32, 16, 4, 100)
    assert (config.optimiser, config.learning_rate) == ("sgd", 1e-3)
    method = build_method(ProDA, config, tiny_vit, seed=0)
    assert method.counted_parameters() == 32 * 16 * tiny_vit.text_width


def test_orthogonality_of_known_vectors():
    assert mean_absolute_cosine(torch.eye(3)).item() == 0
    pair = torch.tensor([[1.0, 0.0], [-0.6, 0.8]])
    assert mean_absolute_cosine(pair).item() == pytest.approx(0.6)


@pytest.mark.parametrize("drawn", [1, 9])
def test_too_few_or_too_many_drawn(tiny_vit, drawn):
    config = make_config(ProDA, overrides=["prompts=8", f"drawn={drawn}"])
    with pytest.raises(InputError, match="drawn"):
        build_method(ProDA, config, tiny_vit, seed=0)
