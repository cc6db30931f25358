"""KgCoOp against prompts encoded position by position."""

import pytest
import torch
from plain_towers import cosine_logits, cross_entropy, embedded, enclosed, plain_text

from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.prompts.rivals.coop import KgCoOp, KgCoOpConfig
from pbprompt.vision.towers.backbone import Encoded

NAMES = ["cat", "golden_retriever", "forklift truck driver"]
TEMPLATE = "a photo of a {}, a thing."


def test_loss_and_gradient(double_vit):
    method = build_method(KgCoOp, KgCoOpConfig(weight=3.0), double_vit, seed=1).double()
    method.prepare(NAMES, TEMPLATE)
    method.context.data += torch.randn_like(method.context)
    images, labels = torch.randn(5, 32, dtype=torch.float64), torch.tensor([0, 2, 1, 0, 1])
    context = method.context.detach().clone().requires_grad_()
    names = [name.replace("_", " ") for name in NAMES]
    stop = embedded(double_vit, ".")
    prompts = [enclosed(double_vit, context, embedded(double_vit, name), stop) for name in names]
    learned = plain_text(double_vit, prompts)
    fixed = [enclosed(double_vit, embedded(double_vit, TEMPLATE.replace("{}", name))) for name in names]
    sentence = plain_text(double_vit, fixed)
    near = [g @ h / (g.norm() * h.norm()) for g, h in zip(learned, sentence, strict=True)]
    wanted = cross_entropy(cosine_logits(images, learned), labels) + 3 * (1 - sum(near) / 3)
    (gradient,) = torch.autograd.grad(wanted, context)

    data = Batch(Encoded(images, images.new_zeros(5, 0, 32)), labels)
    terms = method.loss(data, torch.Generator(), 5)
    method.backward(terms)
    torch.testing.assert_close(terms["total"], wanted, rtol=1e-9, atol=0)
    torch.testing.assert_close(method.context.grad, gradient, rtol=1e-7, atol=1e-10)
    assert terms["apart"].item() == pytest.approx(1 - sum(near).item() / 3)


def test_prompts_are_encoded_once_a_step(tiny_vit, monkeypatch):
    method = build_method(KgCoOp, KgCoOpConfig(), tiny_vit, seed=1)
    method.prepare(NAMES, TEMPLATE)
    calls, engine = [], method._engine
    monkeypatch.setattr(method, "_engine", lambda context: calls.append(1) or engine(context))
    images = torch.randn(2, 32)
    method.loss(Batch(Encoded(images, images[:, None]), torch.tensor([0, 1])), torch.Generator(), 2)
    assert len(calls) == 1


def test_published_settings():
    config = make_config(KgCoOp, "published")
    told = (config.optimiser, config.learning_rate, config.batch_size, config.epochs, config.weight)
    assert told == ("sgd", 0.002, 128, 100, 8.0)
    assert (config.tokens, config.words) == (4, "a photo of a")
