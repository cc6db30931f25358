"""CoCoOp against one image and one prompt at a time, over all 77 positions."""

import pytest
import torch
from plain_text import named_prompt
from torch import Tensor

from pbprompt.learners.method import Batch, build_method
from pbprompt.model.predictor import predictive
from pbprompt.prompts.rivals import coop
from pbprompt.prompts.rivals.cocoop import CoCoOp, CoCoOpConfig
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, Encoded, random_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

NAMES = ["cat", "golden_retriever", "x"]
TEMPLATE = "a photo of a {}."


def made(backbone: Backbone, seed: int = 1, **settings) -> CoCoOp:
    method = build_method(CoCoOp, CoCoOpConfig(**settings), backbone, seed).to(backbone.dtype)
    method.prepare(NAMES, TEMPLATE)
    return method


def batch(backbone: Backbone, count: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(3)
    x = 7 * torch.randn(count, backbone.embed_dim, generator=generator, dtype=torch.float64).to(
        backbone.dtype
    )
    return Batch(Encoded(x, x.new_zeros(count, 0, backbone.embed_dim)), torch.arange(count) % len(NAMES))


def plain_logits(backbone: Backbone, parameters: dict[str, Tensor], x: Tensor, names: list[str]) -> Tensor:
    logits = []
    for image in x:
        direction = image / image.norm()
        hidden = parameters["meta_net.0.weight"] @ direction + parameters["meta_net.0.bias"]
        hidden = torch.where(hidden > 0, hidden, 0)
        shift = parameters["meta_net.2.weight"] @ hidden + parameters["meta_net.2.bias"]
        context = torch.stack([vector + shift for vector in parameters["context"]])
        row = []
        for name in names:
            text = named_prompt(backbone, context, name)
            row.append(100 * (text / text.norm()) @ direction)
        logits.append(torch.stack(row))
    return torch.stack(logits)


def copied(method: CoCoOp) -> dict[str, Tensor]:
    return {name: value.detach().clone().requires_grad_() for name, value in method.named_parameters()}


def test_loss_and_gradients(double_vit):
    method, data = made(double_vit), batch(double_vit)
    parameters = copied(method)
    logits = plain_logits(double_vit, parameters, data.images.global_, NAMES)
    wanted = -logits.log_softmax(-1)[torch.arange(4), data.labels].mean()
    gradients = dict(zip(parameters, torch.autograd.grad(wanted, list(parameters.values())), strict=True))
    terms = method.loss(data, torch.Generator(), 4)
    method.backward(terms)
    torch.testing.assert_close(terms["total"], wanted, rtol=1e-9, atol=0)
    assert terms["accuracy"] == (logits.argmax(-1) == data.labels).float().mean()
    for name, parameter in method.named_parameters():
        assert gradients[name].abs().max() > 0
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("at_once", [1, 6, 1000])
def test_prediction_whatever_goes_through_at_once(double_vit, monkeypatch, at_once):
    monkeypatch.setattr(coop, "PROMPTS_AT_ONCE", at_once)
    method, x = made(double_vit), batch(double_vit, 5).images
    method.meta_net[2].weight.data.mul_(10)  # the images' prompts differ a lot
    wanted = plain_logits(double_vit, copied(method), x.global_, NAMES).detach()
    bank = method.class_features(20, torch.Generator())
    assert bank.shape[:2] == (1, 3)
    torch.testing.assert_close(method.sample_logits(x, bank)[0].detach(), wanted, rtol=1e-9, atol=1e-9)
    found = predictive(method)(x).probabilities
    torch.testing.assert_close(found, wanted.softmax(-1), rtol=1e-8, atol=1e-12)


def test_new_names(double_vit):
    method, x = made(double_vit), batch(double_vit).images
    method.prepare(["zebra", "dog"], TEMPLATE)
    wanted = plain_logits(double_vit, copied(method), x.global_, ["zebra", "dog"]).softmax(-1).detach()
    torch.testing.assert_close(predictive(method)(x).probabilities, wanted, rtol=1e-8, atol=1e-12)


def test_parameters_as_the_paper_counts():
    sizes = TextConfig(context_length=77, vocab_size=49408, width=512, heads=8, layers=1)
    backbone = random_backbone(BackboneConfig("sizes", 512, VitConfig(16, 16, 64, 1, 1), sizes))
    method = made(backbone)
    assert method.counted_parameters() == 4 * 512 + (512 * 32 + 32) + (32 * 512 + 512) == 35_360


def test_recipe_and_start(tiny_vit):
    method = made(tiny_vit)
    words = tiny_vit.token_embedding(torch.tensor(tiny_vit.tokenizer.encode("a photo of a")))
    assert torch.equal(method.context, words)
    assert (method.config.batch_size, method.config.epochs) == (1, 10)
    assert made(tiny_vit, words="", tokens=16).context.std().item() == pytest.approx(0.02, rel=0.1)


def test_half_precision_features(tiny_vit):
    half = random_backbone(tiny_vit.config).to(torch.bfloat16)
    method = build_method(CoCoOp, CoCoOpConfig(), half, 1)
    method.prepare(NAMES, TEMPLATE)
    data = batch(half)
    method.backward(method.loss(data, torch.Generator(), 4))
    assert all(parameter.dtype == torch.float32 for parameter in method.parameters())
    assert all(parameter.grad.isfinite().all() for parameter in method.parameters())


def test_a_seed_decides_everything(tiny_vit):
    def trained(seed: int) -> dict[str, Tensor]:
        method = made(tiny_vit, seed)
        optimiser = torch.optim.SGD(method.trainable(), lr=0.01)
        for _ in range(3):
            optimiser.zero_grad()
            method.backward(method.loss(batch(tiny_vit), torch.Generator(), 4))
            optimiser.step()
        return {name: value.clone() for name, value in method.state_dict().items()}

    first, second, other = trained(1), trained(1), trained(2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
