"""CoPLOT against loops: one image at a time, its own prompts over 77 positions, a plan for each class."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.prompts.rivals import coop
from pbprompt.prompts.rivals.plot import CoPLOT
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.prompts import named_prompts

NAMES = ["cat", "golden retriever", "tench"]
NONE = torch.Generator()


def built(backbone, *overrides):
    method = build_method(CoPLOT, make_config(CoPLOT, overrides=overrides), backbone, seed=0).double()
    with torch.no_grad():
        method.context.mul_(20)
        for parameter in method.meta_net.parameters():
            parameter.mul_(3)  # shifts that an image notices
    method.prepare(NAMES, "a photo of a {}.")
    return method


def some_images(backbone, count, patches=5):
    draws = torch.Generator().manual_seed(1)
    values = torch.randn(count, patches + 1, backbone.embed_dim, generator=draws, dtype=torch.float64)
    return Encoded(values[:, 0], values[:, 1:])


def own_prompts(backbone, method, image):
    """[n][c] features of the prompts of one image."""
    first, _, second = method.meta_net
    hidden = (first.weight @ (image / image.norm()) + first.bias).clamp_min(0)
    shift = second.weight @ hidden + second.bias
    sets = []
    for own in method.context:
        rows = []
        for prompt in named_prompts(backbone.tokenizer, NAMES, 4):
            padded = prompt + [0] * (77 - len(prompt))
            vectors = [
                own[-t - 1] + shift if t < 0 else backbone.token_embedding(torch.tensor(t)) for t in padded
            ]
            rows.append(backbone.text(torch.stack(vectors)[None], torch.tensor([len(prompt)]))[0])
        sets.append(rows)
    return sets


def plain_logits(backbone, method, images, iterations):
    rows = []
    for image, patches in zip(images.global_, images.patches, strict=True):
        sets, row = own_prompts(backbone, method, image), []
        for c in range(len(NAMES)):
            similarity = torch.stack(
                [torch.stack([F.cosine_similarity(u, g[c], dim=0) for g in sets]) for u in patches]
            )
            kernel = np.exp(-(1 - similarity.detach().numpy()) / 0.1)
            columns = np.ones(len(sets))
            for _ in range(iterations):
                scaled = (1 / len(patches)) / (kernel @ columns)
                columns = (1 / len(sets)) / (kernel.T @ scaled)
            plan = torch.from_numpy(scaled[:, None] * kernel * columns)
            logit = (plan * similarity).sum()
            if method.config.add_global:
                pooled = torch.stack([g[c] for g in sets]).mean(0)
                logit = logit + F.cosine_similarity(image, pooled, dim=0)
            row.append(backbone.logit_scale * logit)
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.mark.parametrize("add_global", ["false", "true"])
def test_logits_loss_and_gradients(double_vit, add_global):
    method = built(double_vit, "tolerance=0", "iterations=3", f"add_global={add_global}")
    images, labels = some_images(double_vit, 2), torch.tensor([1, 2])
    wanted = plain_logits(double_vit, method, images, iterations=3)
    wanted_loss = F.cross_entropy(wanted, labels)
    parameters = list(method.parameters())
    wanted_gradients = torch.autograd.grad(wanted_loss, parameters)

    terms = method.loss(Batch(images, labels), NONE, examples=2)
    method.backward(terms)
    torch.testing.assert_close(terms["total"], wanted_loss, rtol=0, atol=1e-8)
    for parameter, gradient in zip(parameters, wanted_gradients, strict=True):
        assert gradient.abs().max() > 0
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-9)
    found = method.sample_logits(images, method.class_features(5, NONE))
    torch.testing.assert_close(found, wanted[None], rtol=0, atol=1e-8)


def test_images_in_chunks_are_the_same(double_vit, monkeypatch):
    method = built(double_vit, "tolerance=0")
    images = some_images(double_vit, 5)
    bank = method.class_features(1, NONE)
    with torch.no_grad():
        whole = method.sample_logits(images, bank)
        sizes = []
        engine = method._engine
        method._engine = lambda context: sizes.append(len(context)) or engine(context)
        monkeypatch.setattr(coop, "PROMPTS_AT_ONCE", 2 * 4 * len(NAMES))
        torch.testing.assert_close(method.sample_logits(images, bank), whole, rtol=0, atol=1e-10)
    assert sizes == [2, 2, 1]


def test_recipe_and_start(tiny_vit):
    config = make_config(CoPLOT)
    assert (config.batch_size, config.epochs, config.prompts, config.tokens) == (1, 10, 4, 4)
    method = build_method(CoPLOT, config, tiny_vit, seed=0)
    joint, width = tiny_vit.embed_dim, tiny_vit.text_width
    hidden = joint // 16
    meta_net = joint * hidden + hidden + hidden * width + width
    assert method.counted_parameters() == 4 * 4 * width + meta_net
    sets = method.context.detach().flatten(1)
    assert all(not torch.equal(sets[i], sets[j]) for i in range(4) for j in range(i))
