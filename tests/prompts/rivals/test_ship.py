"""SHIP's two stages against one image and one prompt at a time, over all 77 positions."""

import pytest
import torch
from plain_text import named_prompt
from torch import Tensor

from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.fitted import ExpectsNames
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.model.predictor import predictive
from pbprompt.prompts.loop.loop import Run, train
from pbprompt.prompts.rivals.ship import SHIP, SHIPConfig
from pbprompt.vision.features.cache import Features
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.prompts import named_prompts

NAMES = ("cat", "golden_retriever", "x")
UNSEEN = ("dog", "great_white_shark")
TEMPLATE = "a photo of a {}."
SMALL = {"encoder_width": 24, "generator_width": 40, "synth_epochs": 3}


def made(backbone: Backbone, unseen: tuple[str, ...] = UNSEEN, **settings) -> SHIP:
    method = build_method(SHIP, SHIPConfig(**{**SMALL, **settings}), backbone, seed=1).to(backbone.dtype)
    method.unseen_names = unseen
    method.prepare(NAMES, TEMPLATE)
    return method


def batch(backbone: Backbone, count: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(3)
    x = 7 * torch.randn(count, backbone.embed_dim, generator=generator).to(backbone.dtype)
    return Batch(Encoded(x, x.new_zeros(count, 0, backbone.embed_dim)), torch.arange(count) % len(NAMES))


def copied(method: SHIP) -> dict[str, Tensor]:
    return {name: value.detach().clone().requires_grad_() for name, value in method.named_parameters()}


def layers(parameters: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    hidden = parameters[f"{name}.0.weight"] @ x + parameters[f"{name}.0.bias"]
    hidden = torch.where(hidden > 0, hidden, 0)
    return parameters[f"{name}.2.weight"] @ hidden + parameters[f"{name}.2.bias"]


def plain_text(backbone: Backbone, context: Tensor, name: str) -> Tensor:
    text = named_prompt(backbone, context, name)
    return text / text.norm()


def plain_made(backbone: Backbone, parameters: dict[str, Tensor], z: Tensor, name: str) -> Tensor:
    shift = layers(parameters, "generator", z)
    context = torch.stack([vector + shift for vector in parameters["synth_context"]])
    return plain_text(backbone, context, name)


def test_stage_1_loss_and_gradients(double_vit):
    method, data = made(double_vit), batch(double_vit)
    for part in (*method.encoder.parameters(), *method.generator.parameters()):
        part.data.mul_(5)  # far enough from zero for every term to matter
    parameters, d = copied(method), double_vit.embed_dim
    noise = torch.randn(1, 4, d, generator=torch.Generator().manual_seed(5)).double()[0]
    expected = torch.zeros((), dtype=torch.float64)
    for image, label, e in zip(data.images.global_, data.labels, noise, strict=True):
        x = image / image.norm()
        mean, log_variance = layers(parameters, "encoder", x).split(d)
        z = mean + log_variance.exp().sqrt() * e
        error = (plain_made(double_vit, parameters, z, NAMES[label]) - x).square().sum()
        kl = 0.5 * (log_variance.exp() + mean**2 - 1 - log_variance).sum()
        expected = expected + (error + kl) / 4
    prompts = named_prompts(double_vit.tokenizer, NAMES, 4)
    own = [prompts[label] for label in data.labels]
    terms = method.synthesis_loss(data.images.global_, own, torch.Generator().manual_seed(5))
    assert terms["total"].item() == pytest.approx(expected.item(), rel=1e-10)
    assert terms["kl"].item() > 1e-3
    expected.backward()
    terms["total"].backward()
    assert method.context.grad is None
    for name, value in method.named_parameters():
        if name != "context":
            torch.testing.assert_close(value.grad, parameters[name].grad, rtol=1e-7, atol=1e-12)


def test_stage_1_learns_to_reconstruct(tiny_vit):
    method = made(tiny_vit, synth_epochs=40)
    like_text = torch.stack([plain_text(tiny_vit, method.context.detach(), name) for name in NAMES])
    images, labels = Encoded(9 * like_text, like_text.new_zeros(3, 0, 32)), torch.arange(3)
    prompts = named_prompts(tiny_vit.tokenizer, NAMES, 4)
    before = copied(method)
    first = method.synthesis_loss(images.global_, prompts, torch.Generator().manual_seed(5))
    method.begin_on(lambda epoch: Batch(images, labels), seed=0)
    last = method.synthesis_loss(images.global_, prompts, torch.Generator().manual_seed(5))
    assert last["error"] < 0.7 * first["error"]
    assert torch.equal(method.context, before["context"])
    assert all(value.grad is None for value in method.parameters())
    for name, value in method.named_parameters():
        assert name == "context" or not torch.equal(value, before[name])


def test_stage_1_visits_every_image_each_epoch(tiny_vit, monkeypatch):
    method, data = made(tiny_vit, synth_batch=3), batch(tiny_vit, count=8)
    sizes, images = [], []
    real = method.synthesis_loss

    def spy(x, prompts, generator):
        wanted = [data.labels[(data.images.global_ == row).all(-1)].item() for row in x]
        names = named_prompts(tiny_vit.tokenizer, NAMES, 4)
        assert list(prompts) == [names[label] for label in wanted]
        sizes.append(len(x))
        images.append(x)
        return real(x, prompts, generator)

    monkeypatch.setattr(method, "synthesis_loss", spy)
    method.begin_on(lambda epoch: Batch(*data[:2]), seed=0)
    assert sizes == [3, 3, 2] * 3
    for epoch in torch.cat(images).split(8):
        assert torch.equal(epoch.sort(0).values, data.images.global_.sort(0).values)


def test_stage_2_loss(double_vit):
    method, data = made(double_vit), batch(double_vit)
    for part in method.generator.parameters():
        part.data.mul_(5)
    parameters = copied(method)
    generator = torch.Generator().manual_seed(6)
    drawn = torch.randint(3, 5, (4,), generator=generator)
    latents = torch.randn(4, double_vit.embed_dim, generator=generator).double()
    every = (*NAMES, *UNSEEN)
    features = torch.stack([plain_text(double_vit, parameters["context"], name) for name in every])
    real, synthetic = [], []
    for image, label in zip(data.images.global_, data.labels, strict=True):
        real.append(-(100 * features @ (image / image.norm())).log_softmax(0)[label])
    for label, z in zip(drawn, latents, strict=True):
        x = plain_made(double_vit, parameters, z, every[label]).detach()
        synthetic.append(-(100 * features @ x).log_softmax(0)[label])
    terms = method.loss(data, torch.Generator().manual_seed(6), examples=4)
    assert set(drawn.tolist()) == {3, 4}
    assert terms["real"].item() == pytest.approx(sum(real).item() / 4, rel=1e-9)
    assert terms["synthetic"].item() == pytest.approx(sum(synthetic).item() / 4, rel=1e-9)
    total = sum(real + synthetic) / 8
    assert terms["total"].item() == pytest.approx(total.item(), rel=1e-9)
    total.backward()
    method.backward(terms)
    torch.testing.assert_close(method.context.grad, parameters["context"].grad, rtol=1e-7, atol=1e-10)
    assert all(value.grad is None for name, value in method.named_parameters() if name != "context")


def test_without_new_names_it_is_coop(double_vit):
    method, data = made(double_vit, unseen=()), batch(double_vit)
    before = copied(method)
    method.begin_on(lambda epoch: Batch(*data[:2]), seed=0)
    assert all(torch.equal(value, before[name]) for name, value in method.named_parameters())
    features = torch.stack([plain_text(double_vit, before["context"], name) for name in NAMES])
    directions = data.images.global_ / data.images.global_.norm(dim=1, keepdim=True)
    expected = torch.nn.functional.cross_entropy(100 * directions @ features.T, data.labels)
    terms = method.loss(data, torch.Generator(), examples=4)
    assert terms["total"].item() == pytest.approx(expected.item(), rel=1e-9)
    assert terms["real"].item() == terms["total"].item()
    assert "synthetic" not in terms


def test_names_that_are_trained_or_twice_given_are_not_new(double_vit):
    data = batch(double_vit)
    twice = made(double_vit, unseen=("dog", "cat", "dog", *UNSEEN))
    first, second = (
        method.loss(data, torch.Generator().manual_seed(6), examples=4)["total"].item()
        for method in (made(double_vit), twice)
    )
    assert first == pytest.approx(second, rel=1e-12)


def test_only_drawn_names_are_encoded(tiny_vit, monkeypatch):
    unseen = tuple(f"thing {i}" for i in range(50))
    method, data = made(tiny_vit, unseen=unseen), batch(tiny_vit)
    method._both()
    asked = []
    real = method.synthesise
    monkeypatch.setattr(
        method, "synthesise", lambda prompts, z: asked.append(len(prompts)) or real(prompts, z)
    )
    monkeypatch.setattr(type(tiny_vit.tokenizer), "encode", None)  # nothing is tokenised again
    method.loss(data, torch.Generator().manual_seed(0), examples=4)
    assert asked == [4]


def test_the_loop_trains_the_context_alone_and_resumes(tiny_vit, tmp_path):
    data = batch(tiny_vit, count=6)
    features = Features(*data.images, data.labels)

    def trained(folder, *stops):
        for stop in stops:
            method = made(tiny_vit, batch_size=3, learning_rate=0.1, warmup_epochs=0)
            run = Run(
                options=FitOptions(seed=2, folder=folder, max_steps=stop, progress=False),
                epochs=3,
                identity="one",
            )
            train(method, lambda epoch: features, 6, run)
        return method

    whole = trained(tmp_path / "whole", None)
    stage_1 = made(tiny_vit)
    stage_1.begin_on(lambda epoch: Batch(*data[:2]), seed=2)
    for name, value in stage_1.named_parameters():
        assert torch.equal(value, whole.get_parameter(name)) == (name != "context")
    resumed = trained(tmp_path / "resumed", 3, None)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name])


def test_saved_and_loaded_with_other_names(tiny_vit):
    first, data = made(tiny_vit), batch(tiny_vit)
    first.begin_on(lambda epoch: Batch(*data[:2]), seed=0)
    first.context.data.normal_(std=0.1, generator=torch.Generator().manual_seed(8))
    second = SHIP(first.config, tiny_vit)
    second.load_state_dict(first.state_dict())
    for method in (first, second):
        method.prepare(("tree", "cat"), TEMPLATE)
    found, again = (predictive(method)(data.images).probabilities for method in (first, second))
    assert torch.equal(found, again)
    features = torch.stack([plain_text(tiny_vit, first.context.detach(), name) for name in ("tree", "cat")])
    directions = data.images.global_ / data.images.global_.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found, (100 * directions @ features.T).softmax(-1), rtol=1e-3, atol=1e-5)


def test_published_sizes_and_recipe(tiny_vit):
    config = make_config(SHIP)
    assert (config.synth_epochs, config.synth_batch, config.synth_rate) == (50, 256, 1e-3)
    method = build_method(SHIP, config, tiny_vit, seed=0)
    shapes = [tuple(p.shape) for p in (*method.encoder.parameters(), *method.generator.parameters())]
    assert shapes == [(2048, 32), (2048,), (64, 2048), (64,), (4096, 32), (4096,), (64, 4096), (64,)]
    assert method.trainable() == [method.context]
    assert isinstance(method, ExpectsNames)


@pytest.mark.parametrize(("views", "asked"), [("first", [0]), ("fresh", [0, 1, 2])])
def test_stage_1_takes_the_views_that_are_asked_for(tiny_vit, views, asked):
    method, seen = made(tiny_vit, synth_epochs=3, synth_views=views), []

    def look(epoch):
        seen.append(epoch)
        return batch(tiny_vit)

    method.begin_on(look, seed=1)
    assert seen == asked


def test_the_published_second_stage():
    config = make_config(SHIP, "published")
    assert (config.optimiser, config.momentum, config.weight_decay, config.batch_size) == ("sgd", 0, 0, 256)
    assert (config.anneal, config.warmup_epochs, config.synth_views) == ("step", 0, "fresh")
    large = make_config(SHIP, "published-imagenet")
    assert (large.optimiser, large.adam_epsilon, large.epochs, large.encoder_width) == (
        "adamw",
        1e-4,
        20,
        4096,
    )


def shifted(backbone: Backbone, parameters: dict[str, Tensor], x: Tensor, names: tuple[str, ...]) -> Tensor:
    """Logits of one feature of length 1 under the prompts that CoCoOp's network makes for it."""
    bias = layers(parameters, "meta_net", x)
    context = torch.stack([vector + bias for vector in parameters["context"]])
    return 100 * torch.stack([plain_text(backbone, context, name) for name in names]) @ x


def test_with_cocoop_as_student_real_and_synthetic_features_shift_their_own_prompts(double_vit):
    method, data = made(double_vit, student="cocoop"), batch(double_vit)
    for part in (*method.generator.parameters(), *method.meta_net.parameters()):
        part.data.mul_(5)
    parameters = copied(method)
    generator = torch.Generator().manual_seed(6)
    drawn = torch.randint(3, 5, (4,), generator=generator)
    latents = torch.randn(4, double_vit.embed_dim, generator=generator).double()
    every = (*NAMES, *UNSEEN)
    losses = []
    for image, label in zip(data.images.global_, data.labels, strict=True):
        losses.append(-shifted(double_vit, parameters, image / image.norm(), every).log_softmax(0)[label])
    for label, z in zip(drawn, latents, strict=True):
        x = plain_made(double_vit, parameters, z, every[label]).detach()
        losses.append(-shifted(double_vit, parameters, x, every).log_softmax(0)[label])
    total = sum(losses) / 8
    terms = method.loss(data, torch.Generator().manual_seed(6), examples=4)
    assert terms["total"].item() == pytest.approx(total.item(), rel=1e-9)
    total.backward()
    method.backward(terms)
    for name, value in method.named_parameters():
        if name == "context" or name.startswith("meta_net"):
            torch.testing.assert_close(value.grad, parameters[name].grad, rtol=1e-7, atol=1e-10)
        else:
            assert value.grad is None
    assert len(method.trainable()) == 5


def test_with_cocoop_as_student_it_predicts_for_new_names(double_vit, monkeypatch):
    method, data = made(double_vit, student="cocoop"), batch(double_vit)
    method.prepare(UNSEEN, TEMPLATE)
    parameters = copied(method)
    expected = torch.stack(
        [shifted(double_vit, parameters, x / x.norm(), UNSEEN).softmax(0) for x in data.images.global_]
    )
    for at_once in (1 << 12, 4):  # all images, then two
        monkeypatch.setattr("pbprompt.prompts.rivals.coop.PROMPTS_AT_ONCE", at_once)
        found = predictive(method)(data.images).probabilities
        torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-6, atol=1e-8)
    assert method.image_conditioned and not method.exportable


def test_cocoop_is_a_variant_with_its_own_recipe(tiny_vit):
    config = make_config(SHIP, "published", "cocoop")
    assert (config.student, config.batch_size, config.epochs) == ("cocoop", 1, 10)
    plain, other = (
        build_method(SHIP, SHIPConfig(**SMALL, student=s), tiny_vit, 1) for s in ("coop", "cocoop")
    )
    assert torch.equal(plain.encoder[0].weight, other.encoder[0].weight)  # the same start besides the network
