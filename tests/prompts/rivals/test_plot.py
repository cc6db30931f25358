"""PLOT's plan, logits and gradient against loops over images, classes, patches and prompts."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.prompts.rivals import plot
from pbprompt.prompts.rivals.plot import PLOT, transported_cosines
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.prompts import named_prompts, word_embeddings

NAMES = ["cat", "golden retriever", "tench", "a b c d e"]
NONE = torch.Generator()


def built(backbone, *overrides):
    method = build_method(PLOT, make_config(PLOT, overrides=overrides), backbone, seed=0).double()
    with torch.no_grad():
        method.context.mul_(20)  # prompts far apart: plans far from uniform
    method.prepare(NAMES, "a photo of a {}.")
    return method


def some_images(backbone, count=3, patches=5, seed=1):
    draws = torch.Generator().manual_seed(seed)
    shape = (count, patches + 1, backbone.embed_dim)
    values = torch.randn(shape, generator=draws, dtype=torch.float64)
    return Encoded(values[:, 0], values[:, 1:])


def text_features(backbone, context):
    """[n, c, d] over all 77 positions, one prompt at a time."""
    prompts = named_prompts(backbone.tokenizer, NAMES, context.shape[1])
    sets = []
    for own in context:
        rows = []
        for prompt in prompts:
            padded = prompt + [0] * (77 - len(prompt))
            vectors = [own[-t - 1] if t < 0 else backbone.token_embedding(torch.tensor(t)) for t in padded]
            rows.append(backbone.text(torch.stack(vectors)[None], torch.tensor([len(prompt)]))[0])
        sets.append(torch.stack(rows))
    return torch.stack(sets)


def plain_sinkhorn(similarity, epsilon=0.1, iterations=100, mean_change=None):
    """The plan of one image and one class, [m, n], by matrix scaling; optionally the published stop."""
    m, n = similarity.shape
    kernel = np.exp(-(1 - similarity) / epsilon)
    rows, columns = np.ones(m), np.ones(n)
    for _ in range(iterations):
        before = rows
        rows = (1 / m) / (kernel @ columns)
        columns = (1 / n) / (kernel.T @ rows)
        if mean_change is not None and np.abs(rows - before).mean() < mean_change:
            break
    return rows[:, None] * kernel * columns


def plain_logits(images, features, scale, **stop):
    """Logits with gradients to the features, the plans as constants."""
    rows = []
    for patches in images.patches:
        row = []
        for c in range(features.shape[1]):
            similarity = torch.stack(
                [torch.stack([F.cosine_similarity(u, g, dim=0) for g in features[:, c]]) for u in patches]
            )
            plan = torch.from_numpy(plain_sinkhorn(similarity.detach().numpy(), **stop))
            row.append(scale * (plan * similarity).sum())
        rows.append(torch.stack(row))
    return torch.stack(rows)


def test_logits_loss_and_gradient(double_vit):
    method = built(double_vit, "tolerance=0", "iterations=3")
    images, labels = some_images(double_vit), torch.tensor([1, 3, 0])
    features = text_features(double_vit, method.context)
    wanted = plain_logits(images, features, double_vit.logit_scale, iterations=3)
    wanted_loss = F.cross_entropy(wanted, labels)
    (wanted_gradient,) = torch.autograd.grad(wanted_loss, method.context)

    terms = method.loss(Batch(images, labels), NONE, examples=3)
    method.backward(terms)
    bank = method.class_features(7, NONE)
    assert bank.shape == (4, len(NAMES), double_vit.embed_dim)
    torch.testing.assert_close(method.sample_logits(images, bank), wanted[None], rtol=0, atol=1e-8)
    torch.testing.assert_close(terms["total"], wanted_loss, rtol=0, atol=1e-8)
    torch.testing.assert_close(method.context.grad, wanted_gradient, rtol=1e-6, atol=1e-9)
    assert terms["accuracy"] == (wanted.argmax(-1) == labels).float().mean()


def test_the_default_stop_is_as_good_as_the_published_one(double_vit):
    method = built(double_vit)
    images = some_images(double_vit, patches=20)
    bank = method.class_features(1, NONE).detach()
    found = method.sample_logits(images, bank)[0]
    published = plain_logits(images, bank, double_vit.logit_scale, mean_change=1e-2)
    limit = plain_logits(images, bank, double_vit.logit_scale, iterations=5000)
    assert (published - limit).abs().max() < 0.1  # of logits tens apart
    assert (found - limit).abs().max() <= max(0.01, (published - limit).abs().max())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_hard_problem_gets_the_iterations_it_needs(seed):
    draws = torch.Generator().manual_seed(seed)
    similarity = torch.rand(20, 4, generator=draws, dtype=torch.float64)
    config = make_config(PLOT, overrides=["epsilon=0.02", "iterations=2000"])
    found = transported_cosines(similarity[None, None], config).item()
    limit, ten = (
        (plain_sinkhorn(similarity.numpy(), 0.02, k) * similarity.numpy()).sum() for k in (5000, 10)
    )
    assert abs(found - limit) < 1e-4 < 1e-3 < abs(ten - limit)


def test_the_plan_matches_patches_to_prompts():
    """A class whose prompts each fit one patch well is scored by the matching, not by the mean."""
    config = make_config(PLOT, overrides=["epsilon=0.01"])
    similarity = torch.eye(4, dtype=torch.float64).expand(1, 2, 4, 4)
    torch.testing.assert_close(
        transported_cosines(similarity, config), torch.ones(1, 2, dtype=torch.float64), rtol=0, atol=1e-6
    )
    flat = make_config(PLOT, overrides=["epsilon=1000"])
    torch.testing.assert_close(
        transported_cosines(similarity, flat),
        torch.full((1, 2), 0.25, dtype=torch.float64),
        rtol=0,
        atol=1e-3,
    )


def test_the_global_logit_is_added(double_vit):
    plain, both = built(double_vit), built(double_vit, "add_global=true")
    images = some_images(double_vit)
    bank = plain.class_features(1, NONE)
    added = both.sample_logits(images, bank) - plain.sample_logits(images, bank)
    wanted = double_vit.logit_scale * F.cosine_similarity(images.global_[:, None], bank.mean(0), dim=-1)
    torch.testing.assert_close(added[0], wanted)
    assert make_config(PLOT, "imagenet").add_global


def test_images_in_chunks_are_the_same(double_vit, monkeypatch):
    method = built(double_vit, "tolerance=0", "iterations=20")
    images = some_images(double_vit, count=7)
    bank = method.class_features(1, NONE)
    whole = method.sample_logits(images, bank)
    seen = []

    def counting(similarity, config):
        seen.append(len(similarity))
        return transported_cosines(similarity, config)

    monkeypatch.setattr(plot, "CELLS_AT_ONCE", 3 * bank.shape[0] * bank.shape[1] * 5)
    monkeypatch.setattr(plot, "transported_cosines", counting)
    torch.testing.assert_close(method.sample_logits(images, bank), whole, rtol=0, atol=1e-10)
    assert seen == [3, 3, 1]


def test_where_the_sets_start(tiny_vit):
    random = build_method(PLOT, make_config(PLOT), tiny_vit, seed=0)
    assert random.counted_parameters() == 4 * 4 * tiny_vit.text_width  # 8,192 at width 512
    assert random.context.std().item() == pytest.approx(0.02, rel=0.2)
    config = make_config(PLOT, overrides=["words=a photo of a, this is one big"])
    worded = build_method(PLOT, config, tiny_vit, seed=0).context
    for n, phrase in enumerate(("a photo of a", "this is one big")):
        torch.testing.assert_close(worded[n], word_embeddings(tiny_vit, phrase, 4))
    assert not torch.equal(worded[2], worded[3])
    for words, sets in (("a photo of a, a photo of a", 4), ("a photo of a, this is one big", 1), ("", 0)):
        config = make_config(PLOT, overrides=[f"words={words!r}", f"prompts={sets}"])
        with pytest.raises(InputError, match="context sets"):
            build_method(PLOT, config, tiny_vit, seed=0)
