"""ProGrad's divergence, its two gradients and its projection, each against a computation of its own."""

import itertools
import math

import pytest
import torch
from plain_text import named_prompt
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.prompts.rivals.coop import CoOp, CoOpConfig, ProGrad, ProGradConfig, name_last, without_conflict
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, Encoded, random_backbone
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.prompts import word_embeddings
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

NAMES = ["cat", "golden_retriever", "x", "forklift truck driver"]
TEMPLATE = "a drawing of {}."


def made(backbone: Backbone, seed: int = 1, **settings) -> ProGrad:
    method = build_method(ProGrad, ProGradConfig(**settings), backbone, seed).to(backbone.dtype)
    method.prepare(NAMES, TEMPLATE)
    method.context.data.mul_(20)
    return method


def batch(backbone: Backbone, labels: list[int]) -> Batch:
    generator = torch.Generator().manual_seed(3)
    shape = (len(labels), backbone.embed_dim)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(backbone.dtype)
    return Batch(Encoded(x, x.new_zeros(len(labels), 0, backbone.embed_dim)), torch.tensor(labels))


def plain_features(backbone: Backbone, context: Tensor) -> Tensor:
    return torch.stack([named_prompt(backbone, context, name) for name in NAMES])


def zero_shot_features(backbone: Backbone) -> Tensor:
    ids, lengths = backbone.tokenizer([f"a drawing of {name.replace('_', ' ')}." for name in NAMES])
    return backbone.text(backbone.token_embedding(ids), lengths)


def probabilities(x: Tensor, g: Tensor, temperature: float) -> Tensor:
    """One image and one class at a time, no softmax from the library."""
    rows = []
    for image in x:
        powers = torch.stack(
            [(100 / temperature * torch.cosine_similarity(image, f, dim=0)).exp() for f in g]
        )
        rows.append(powers / powers.sum())
    return torch.stack(rows)


def two_gradients(method: ProGrad, data: Batch, temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ce, kl and their gradients, each by its own forward pass."""
    backbone, x = method.backbone, data.images.global_
    context = method.context.detach().clone().requires_grad_()
    p = probabilities(x, plain_features(backbone, context), 1.0)
    ce = -sum(p[i, label].log() for i, label in enumerate(data.labels.tolist())) / len(x)
    (g_ce,) = torch.autograd.grad(ce, context)
    p = probabilities(x, plain_features(backbone, context), temperature)
    q = probabilities(x, zero_shot_features(backbone), temperature)
    kl = temperature**2 * (q * (q / p).log()).sum() / len(x)
    (g_kl,) = torch.autograd.grad(kl, context)
    return ce.detach(), kl.detach(), g_ce, g_kl


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("conflict", [True, False])
def test_a_step(double_vit, conflict, share, temperature):
    method = made(double_vit, temperature=temperature, projection=share)
    for labels in itertools.product(range(4), repeat=2):  # the first labels of the wanted kind
        data = batch(double_vit, list(labels))
        ce, kl, g_ce, g_kl = two_gradients(method, data, temperature)
        product = sum(a * b for a, b in zip(g_ce.flatten().tolist(), g_kl.flatten().tolist(), strict=True))
        if (product < 0) == conflict:
            break
    assert (product < 0) == conflict
    wanted = g_ce
    if conflict:
        wanted = g_ce - share * product / sum(b * b for b in g_kl.flatten().tolist()) * g_kl

    terms = method.loss(data, torch.Generator(), 2)
    torch.testing.assert_close(terms["total"].detach(), ce, rtol=1e-9, atol=0)
    torch.testing.assert_close(terms["kl"].detach(), kl, rtol=1e-8, atol=0)
    method.backward(terms)
    torch.testing.assert_close(method.context.grad, wanted, rtol=1e-6, atol=1e-9 * g_ce.abs().max().item())
    assert terms["conflict"].item() == float(conflict)
    if conflict and share == 1:
        leftover = (method.context.grad * g_kl).sum() / (g_ce.norm() * g_kl.norm())
        assert abs(leftover.item()) < 1e-9


def test_projection_by_hand():
    general = torch.tensor([0.0, 2.0])
    found, conflict = without_conflict(torch.tensor([3.0, -4.0]), general, 1.0)
    assert (found.tolist(), conflict.item()) == ([3.0, 0.0], 1.0)
    found, _ = without_conflict(torch.tensor([3.0, -4.0]), general, 0.25)
    assert found.tolist() == [3.0, -3.0]
    found, conflict = without_conflict(torch.tensor([3.0, 4.0]), general, 1.0)
    assert (found.tolist(), conflict.item()) == ([3.0, 4.0], 0.0)
    found, conflict = without_conflict(torch.tensor([3.0, 4.0]), torch.zeros(2), 1.0)
    assert (found.tolist(), conflict.item()) == ([3.0, 4.0], 0.0)


def test_projection_of_matrices_is_one_product_over_all_of_them():
    torch.manual_seed(0)
    task, general = torch.randn(2, 3, 5, dtype=torch.float64)
    general -= 2 * task  # conflicts as a whole, not in every row
    general[0] += 3 * task[0]
    assert (task * general).sum() < 0 < (task[0] * general[0]).sum()
    found, _ = without_conflict(task, general, 1.0)
    a, b = task.flatten().tolist(), general.flatten().tolist()
    factor = math.fsum(x * y for x, y in zip(a, b, strict=True)) / math.fsum(y * y for y in b)
    wanted = [x - factor * y for x, y in zip(a, b, strict=True)]
    torch.testing.assert_close(found.flatten(), torch.tensor(wanted, dtype=torch.float64))


def test_chunks_of_classes_change_nothing(double_vit):
    data = batch(double_vit, [3, 2, 1])
    whole, cut = made(double_vit), made(double_vit)
    cut._engine = TextEngine(double_vit, cut._engine.prompts, memory_budget=1 << 17)
    assert len(cut._engine._chunks(cut.context[None, None])) > 1
    for method in (whole, cut):
        method.backward(method.loss(data, torch.Generator(), 3))
    torch.testing.assert_close(cut.context.grad, whole.context.grad, rtol=1e-8, atol=1e-10)


def test_with_nothing_removed_it_is_coop(double_vit):
    """Also with a context for each class."""
    data = batch(double_vit, [3, 2, 1])
    method = made(double_vit, class_specific=True, projection=0.0)
    plain = build_method(CoOp, CoOpConfig(class_specific=True), double_vit, 2).to(torch.float64)
    plain.prepare(NAMES, TEMPLATE)
    plain.context.data.copy_(method.context.data)
    for one in (method, plain):
        one.backward(one.loss(data, torch.Generator(), 3))
    torch.testing.assert_close(method.context.grad, plain.context.grad, rtol=1e-8, atol=1e-10)


def test_same_seed_same_steps(tiny_vit):
    def trained(seed: int) -> tuple[Tensor, list[float]]:
        method = made(tiny_vit, seed)
        optimiser = torch.optim.SGD(method.trainable(), lr=0.01)
        losses = []
        for _ in range(4):
            terms = method.loss(batch(tiny_vit, [0, 1, 2, 3]), torch.Generator(), 4)
            optimiser.zero_grad()
            method.backward(terms)
            optimiser.step()
            losses.append(terms["total"].item())
        return method.context.detach(), losses

    (first, losses), (second, _), (other, _) = trained(1), trained(1), trained(2)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert losses[-1] < losses[0]


def test_parameters_are_coops():
    sizes = TextConfig(context_length=77, vocab_size=49408, width=512, heads=8, layers=1)
    backbone = random_backbone(BackboneConfig("sizes", 512, VitConfig(16, 16, 64, 1, 1), sizes))
    assert made(backbone).counted_parameters() == 2048


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a photo of a {}, a type of pet.", "a type of pet, a photo of a {}."),
        ("a photo of {}, a type of food.", "a type of food, a photo of {}."),
        ("{} texture.", "a texture of {}."),
        ("a centered satellite photo of {}.", "a centered satellite photo of {}."),
        ("a photo of a person doing {}.", "a photo of a person doing {}."),
    ],
)
def test_the_name_comes_last_as_the_authors_have_it(template, expected):
    assert name_last(template) == expected


def test_the_published_start_is_the_template_and_saved_values_stay(tiny_vit):
    config = make_config(ProGrad, "published")
    method = build_method(ProGrad, config, tiny_vit, seed=1)
    method.prepare(["cat", "dog"], "a photo of a {}.")
    words = word_embeddings(tiny_vit, "a photo of a", 4)
    assert torch.equal(method.context[-4:].detach(), words) and not method.context[:-4].any()
    method.context.data += 1
    method.prepare(["moon"], "{} texture.")
    assert torch.equal(method.context[-4:].detach(), words + 1)
    other = build_method(ProGrad, config, tiny_vit, seed=2)
    other.load_state_dict(method.state_dict())
    other.prepare(["cat"], "a photo of a {}.")
    assert torch.equal(other.context, method.context)
    short = build_method(ProGrad, make_config(ProGrad, "published", overrides=["tokens=3"]), tiny_vit, seed=1)
    with pytest.raises(InputError, match="'tokens' is 3: 'a photo of a ' takes 4"):
        short.prepare(["cat"], "a photo of a {}.")
