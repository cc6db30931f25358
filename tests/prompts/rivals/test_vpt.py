"""VPT against one draw, one image and one prompt at a time, over all 77 positions."""

import math

import pytest
import torch
from plain_text import named_prompt
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.model.predictor import predictive
from pbprompt.prompts.rivals import coop
from pbprompt.prompts.rivals.vpt import VPT, VPTConfig
from pbprompt.vision.towers.backbone import Backbone, Encoded

NAMES = ["cat", "golden_retriever", "x"]
DRAWS = 3


def made(backbone: Backbone, names: list[str] = NAMES, **settings) -> VPT:
    config = VPTConfig(**{"train_samples": DRAWS, **settings})
    method = build_method(VPT, config, backbone, seed=1).to(backbone.dtype)
    method.prepare(names, "a photo of a {}.")
    return method


def batch(backbone: Backbone, count: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(3)
    x = 7 * torch.randn(count, backbone.embed_dim, generator=generator).to(backbone.dtype)
    return Batch(Encoded(x, x.new_zeros(count, 0, backbone.embed_dim)), torch.arange(count) % len(NAMES))


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def network(parameters: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    for layer in (0, 2, 4):
        x = parameters[f"{name}.{layer}.weight"] @ x + parameters[f"{name}.{layer}.bias"]
        if layer < 4:
            x = torch.where(x > 0, x, x.exp() - 1)
    return x


def plain_posterior(parameters: dict[str, Tensor], image: Tensor) -> tuple[Tensor, Tensor]:
    if "mean" in parameters:
        return parameters["mean"][0], parameters["log_variance"][0]
    direction = image / image.norm()
    return network(parameters, "mean_network", direction), network(
        parameters, "log_variance_network", direction
    )


def plain_probabilities(
    backbone: Backbone, parameters: dict[str, Tensor], image: Tensor, draw: Tensor, names: list[str] = NAMES
) -> Tensor:
    """p(·|x, r) of one image under one draw of ε."""
    mean, log_variance = plain_posterior(parameters, image)
    shift = mean + log_variance.exp().sqrt() * draw
    context = torch.stack([vector + shift for vector in parameters["context"]])
    logits = []
    for name in names:
        text = named_prompt(backbone, context, name)
        logits.append(100 * (text / text.norm()) @ (image / image.norm()))
    exponentials = (torch.stack(logits) - max(logits).detach()).exp()
    return exponentials / exponentials.sum()


def plain_loss(backbone: Backbone, parameters: dict[str, Tensor], data: Batch, draws: Tensor) -> Tensor:
    """draws [L, images or 1, w]."""
    total = torch.zeros((), dtype=torch.float64)
    for i, (image, label) in enumerate(zip(data.images.global_, data.labels, strict=True)):
        likelihoods = [
            plain_probabilities(backbone, parameters, image, draw[i % draws.shape[1]])[label]
            for draw in draws
        ]
        mean, log_variance = plain_posterior(parameters, image)
        kl = 0.5 * (log_variance.exp() + mean**2 - 1 - log_variance)
        total = total - torch.log(sum(likelihoods) / len(likelihoods)) + 0.001 * kl.mean()
    return total / len(data.labels)


@pytest.mark.parametrize("conditional", [False, True])
def test_loss_and_gradients(double_vit, conditional):
    method, data = made(double_vit, conditional=conditional, initial_std=0.3), batch(double_vit)
    if not conditional:
        method.mean.data.normal_(std=0.1, generator=torch.Generator().manual_seed(7))
    parameters = {name: value.detach().clone().requires_grad_() for name, value in method.named_parameters()}
    draws = noise(5, DRAWS, 2 if conditional else 1, double_vit.text_width)
    expected = plain_loss(double_vit, parameters, data, draws)
    terms = method.loss(data, torch.Generator().manual_seed(5), examples=2)
    assert terms["total"].item() == pytest.approx(expected.item(), rel=1e-9)
    expected.backward()
    method.backward(terms)
    for name, value in method.named_parameters():
        torch.testing.assert_close(value.grad, parameters[name].grad, rtol=1e-7, atol=1e-10)


def test_terms(tiny_vit):
    method, data = made(tiny_vit), batch(tiny_vit)
    terms = method.loss(data, torch.Generator().manual_seed(5), examples=2)
    assert terms["total"].item() == pytest.approx(terms["nll"].item() + 0.001 * terms["kl"].item())
    variance = method.log_variance.detach().exp()
    assert terms["kl"].item() == pytest.approx((0.5 * (variance - 1 - variance.log())).mean().item())


@pytest.mark.parametrize("conditional", [False, True])
def test_prediction_averages_probabilities(double_vit, conditional):
    method, data = made(double_vit, conditional=conditional, initial_std=0.3), batch(double_vit)
    names = ["a new name", "dog", "cat", "tree"]
    method.prepare(names, "a photo of a {}.")
    predicted = predictive(method, samples=4, seed=9)(data.images).probabilities
    parameters = {name: value.detach() for name, value in method.named_parameters()}
    draws = noise(9, 4, 1, double_vit.text_width)[:, 0]
    for image, row in zip(data.images.global_, predicted, strict=True):
        parts = [plain_probabilities(double_vit, parameters, image, draw, names) for draw in draws]
        torch.testing.assert_close(row, sum(parts) / 4, rtol=1e-8, atol=1e-12)


def test_an_image_is_predicted_alike_whatever_its_company(tiny_vit, monkeypatch):
    method, data = made(tiny_vit, conditional=True), batch(tiny_vit, count=5)
    together = predictive(method, samples=4)(data.images).probabilities
    alone = [
        predictive(method, samples=4)(Encoded(*(part[i : i + 1] for part in data.images))) for i in range(5)
    ]
    torch.testing.assert_close(
        together, torch.cat([one.probabilities for one in alone]), rtol=1e-4, atol=1e-6
    )
    monkeypatch.setattr(coop, "PROMPTS_AT_ONCE", 2 * 4 * len(NAMES))  # chunks of two images, and one over
    torch.testing.assert_close(
        predictive(method, samples=4)(data.images).probabilities, together, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("conditional", [False, True])
def test_classes_share_each_drawn_context(tiny_vit, conditional):
    method = made(tiny_vit, conditional=conditional)
    engine, shapes = method._engine, []
    method._engine = lambda context: shapes.append(tuple(context.shape)) or engine(context)
    method.loss(batch(tiny_vit), torch.Generator().manual_seed(0), examples=2)
    assert shapes == [(DRAWS, 2 if conditional else 1, 1, 4, tiny_vit.text_width)]


@pytest.mark.parametrize("conditional", [False, True])
def test_saved_and_loaded(tiny_vit, conditional):
    first = made(tiny_vit, conditional=conditional)
    torch.manual_seed(0)
    second = VPT(first.config, tiny_vit)
    second.load_state_dict(first.state_dict())
    second.prepare(NAMES, "a photo of a {}.")
    images = batch(tiny_vit).images
    assert torch.equal(predictive(first)(images).probabilities, predictive(second)(images).probabilities)


@pytest.mark.parametrize("conditional", [False, True])
def test_start(tiny_vit, conditional):
    method = made(tiny_vit, conditional=conditional, initial_std=0.05)
    words = tiny_vit.token_embedding(torch.tensor(tiny_vit.tokenizer.encode("a photo of a")))
    assert torch.equal(method.context, words)
    _, log_variance = method._posterior(batch(tiny_vit).images.global_)
    torch.testing.assert_close(log_variance.exp().sqrt(), torch.full_like(log_variance, 0.05))
    as_published = made(tiny_vit)
    assert not as_published.mean.any()
    assert 0 <= as_published.log_variance.min() < 0.1 < 0.9 < as_published.log_variance.max() <= 1


def test_parameters(tiny_vit):
    joint, width = tiny_vit.embed_dim, tiny_vit.text_width
    assert made(tiny_vit).counted_parameters() == 4 * width + 2 * width
    half = joint // 2
    one_network = (joint * half + half) + (half * half + half) + (half * width + width)
    assert made(tiny_vit, conditional=True).counted_parameters() == 4 * width + 2 * one_network


def test_the_published_recipe():
    config = make_config(VPT)
    assert (config.batch_size, config.epochs, config.train_samples, config.kl_weight) == (1, 10, 10, 0.001)
    assert make_config(VPT, variant="conditional").conditional


def test_diagnostics(tiny_vit):
    generator = torch.Generator()
    assert made(tiny_vit, conditional=True).diagnostics(generator) == {}
    spread = made(tiny_vit, initial_std=0.2).diagnostics(generator)["posterior_std"]
    assert math.isclose(spread, 0.2, rel_tol=1e-5)


@pytest.mark.parametrize("settings", [{"train_samples": 0}, {"initial_std": -1.0}])
def test_settings_that_cannot_be(tiny_vit, settings):
    with pytest.raises(InputError, match="it takes"):
        made(tiny_vit, **settings)
