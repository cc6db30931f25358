"""CoOp against prompts put together by hand and encoded one by one over all 77 positions."""

import pytest
import torch
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.model.predictor import predictive
from pbprompt.prompts.rivals.coop import CoOp, CoOpConfig
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, Encoded, random_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

NAMES = ["cat", "golden_retriever", "x", "forklift truck driver"]
TEMPLATE = "a photo of a {}."


def made(backbone: Backbone, seed: int = 1, names: list[str] = NAMES, **settings) -> CoOp:
    method = build_method(CoOp, CoOpConfig(**settings), backbone, seed).to(backbone.dtype)
    method.prepare(names, TEMPLATE)
    return method


def batch(backbone: Backbone, count: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, backbone.embed_dim, generator=generator, dtype=torch.float64).to(backbone.dtype)
    labels = torch.arange(count) % len(NAMES)
    return Batch(Encoded(x, x.new_zeros(count, 0, backbone.embed_dim)), labels)


def plain_feature(backbone: Backbone, before: Tensor, name: str, after: Tensor) -> Tensor:
    """[SOS] before name after [.] [EOT], padded to the whole context length."""
    tokenizer = backbone.tokenizer

    def embed(ids: list[int]) -> Tensor:
        return backbone.token_embedding(torch.tensor(ids))

    words = embed(tokenizer.encode(name.replace("_", " ")))
    rows = [embed([tokenizer.sos]), before, words, after, embed([*tokenizer.encode("."), tokenizer.eot])]
    prompt = torch.cat(rows)
    padding = embed([0]).expand(backbone.context_length - len(prompt), -1)
    return backbone.text(torch.cat([prompt, padding])[None], torch.tensor([len(prompt)]))[0]


def plain_logits(backbone: Backbone, x: Tensor, prompts: list[tuple[Tensor, str, Tensor]]) -> Tensor:
    g = [plain_feature(backbone, *prompt) for prompt in prompts]
    return torch.stack([torch.stack([100 * torch.cosine_similarity(row, f, dim=0) for f in g]) for row in x])


@pytest.mark.parametrize(("position", "before"), [("end", 5), ("middle", 2), ("front", 0)])
@pytest.mark.parametrize("own", [False, True])
def test_loss_gradient_and_prediction(double_vit, position, before, own):
    method = made(double_vit, tokens=5, position=position, class_specific=own)
    method.context.data.mul_(20)
    assert method.context.shape == ((4, 5, 64) if own else (5, 64))
    data = batch(double_vit)
    context = method.context.detach().clone().requires_grad_()
    sets = list(context) if own else [context] * len(NAMES)
    prompts = [(v[:before], name, v[before:]) for v, name in zip(sets, NAMES, strict=True)]
    logits = plain_logits(double_vit, data.images.global_, prompts)
    wanted = -logits.log_softmax(-1)[torch.arange(6), data.labels].mean()
    (gradient,) = torch.autograd.grad(wanted, context)

    terms = method.loss(data, torch.Generator(), 6)
    method.backward(terms)
    torch.testing.assert_close(terms["total"], wanted, rtol=1e-9, atol=0)
    torch.testing.assert_close(method.context.grad, gradient, rtol=1e-7, atol=1e-10)
    assert terms["accuracy"] == (logits.argmax(-1) == data.labels).float().mean()
    found = predictive(method)(data.images).probabilities
    torch.testing.assert_close(found, logits.softmax(-1).detach(), rtol=1e-8, atol=1e-12)


def test_parameters_as_the_paper_counts():
    sizes = TextConfig(context_length=77, vocab_size=49408, width=512, heads=8, layers=1)
    backbone = random_backbone(BackboneConfig("sizes", 512, VitConfig(16, 16, 64, 1, 1), sizes))
    assert made(backbone).counted_parameters() == 2048
    assert made(backbone, class_specific=True).counted_parameters() == 4 * 2048


def test_start_values(tiny_vit):
    words = tiny_vit.token_embedding(torch.tensor(tiny_vit.tokenizer.encode("a photo of a")))
    method = build_method(CoOp, make_config(CoOp, "base-to-new"), tiny_vit, 1)
    assert torch.equal(method.context, words)
    assert torch.equal(
        made(tiny_vit, words="a photo of a", class_specific=True).context, words.expand(4, 4, 64)
    )
    drawn = made(tiny_vit, tokens=16, class_specific=True).context
    assert drawn.std().item() == pytest.approx(0.02, rel=0.1)
    assert made(tiny_vit, tokens=16).context.std().item() == pytest.approx(0.02, rel=0.1)
    assert not torch.equal(drawn[0], drawn[1])
    with pytest.raises(InputError, match="take 4 tokens, but tokens is 8"):
        made(tiny_vit, words="a photo of a", tokens=8)
    with pytest.raises(InputError, match="'tokens' is 0"):
        made(tiny_vit, tokens=0)


@pytest.mark.parametrize("own", [False, True])
def test_a_seed_decides_everything(tiny_vit, own):
    def trained(seed: int) -> Tensor:
        method = made(tiny_vit, seed, class_specific=own)
        optimiser = torch.optim.SGD(method.trainable(), lr=0.01)
        for _ in range(3):
            optimiser.zero_grad()
            method.backward(method.loss(batch(tiny_vit), torch.Generator(), 6))
            optimiser.step()
        return method.context.detach()

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_a_shared_context_takes_new_names(double_vit):
    method = made(double_vit)
    context = method.context.detach()
    method.prepare(["zebra", "dog"], TEMPLATE)
    x = batch(double_vit).images
    wanted = plain_logits(double_vit, x.global_, [(context, name, context[:0]) for name in ("zebra", "dog")])
    found = predictive(method)(x).probabilities
    torch.testing.assert_close(found, wanted.softmax(-1), rtol=1e-8, atol=1e-12)


def test_class_specific_contexts_take_no_other_names(tiny_vit):
    method = made(tiny_vit, class_specific=True)
    before = method.context.detach().clone()
    method.prepare(NAMES, TEMPLATE)
    for names in (NAMES[:2], NAMES[::-1], [*NAMES, "zebra"]):
        with pytest.raises(InputError, match="takes no other names") as caught:
            method.prepare(names, TEMPLATE)
        assert "\n" not in str(caught.value)
    assert torch.equal(method.context, before)
    assert method.classes == tuple(NAMES)


def test_class_specific_contexts_are_saved_and_loaded(tiny_vit):
    method = made(tiny_vit, class_specific=True)
    again = CoOp(method.config, tiny_vit)
    again.load_state_dict(method.state_dict())
    with pytest.raises(InputError, match="4 classes"):
        again.prepare(NAMES[:3], TEMPLATE)
    again.prepare(NAMES, TEMPLATE)
    x = batch(tiny_vit).images
    assert torch.equal(predictive(again)(x).probabilities, predictive(method)(x).probabilities)
    with pytest.raises(RuntimeError, match="size mismatch"):
        CoOp(CoOpConfig(class_specific=True, tokens=3), tiny_vit).load_state_dict(method.state_dict())


def test_loading_keeps_what_an_optimiser_holds(tiny_vit):
    method = made(tiny_vit, class_specific=True)
    held = method.trainable()[0]
    method.load_state_dict({"context": torch.ones(4, 4, 64)})
    assert held is method.context
    assert torch.equal(held, torch.ones(4, 4, 64))


def test_schedule_by_shots(tiny_vit):
    method = made(tiny_vit)
    assert [method.epochs_for(shots) for shots in (1, 2, 4, 8, 16)] == [50, 100, 100, 200, 200]
    assert (method.config.batch_size, method.config.optimiser, method.config.learning_rate) == (
        32,
        "sgd",
        0.002,
    )
    assert make_config(CoOp, "imagenet").epochs == 50
    assert make_config(CoOp, variant="class-specific").class_specific
