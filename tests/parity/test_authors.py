"""The equations against numbers of the authors' own code: authors.json, made by scripts/record_parity.py."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from pbprompt.evidence.rivals.tip_adapter import TipAdapter
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.prompts.pbprompt.transport import patch_cosines
from pbprompt.prompts.pbprompt.variational import gaussian_kl
from pbprompt.prompts.rivals import vpt
from pbprompt.prompts.rivals.cocoop import CoCoOp
from pbprompt.prompts.rivals.coop import CoOp, without_conflict
from pbprompt.prompts.rivals.plot import PLOTConfig, transported_cosines
from pbprompt.prompts.rivals.vpt import VPT
from pbprompt.testing.fits import tiny_vit
from pbprompt.vision.similarity import class_logits, mean_probabilities
from pbprompt.vision.towers.backbone import Encoded

KEPT = json.loads(Path(__file__).with_name("authors.json").read_text(encoding="utf-8"))
LABELS = torch.tensor([0, 3, 1])
SCALE = 20.0


def inputs(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(found, expected):
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_code_is_named():
    assert all("github.com/" in kept["repository"] and "@" in kept["repository"] for kept in KEPT.values())


def prompting(kind, parameters, *words):
    """A method on the tiny towers, its parameters, in the authors' order, filled by seed."""
    method = build_method(
        kind, make_config(kind, overrides=["words=", *words]), tiny_vit(torch.float64), seed=1
    )
    method.prepare(("cat", "golden_retriever", "red car"), "a photo of a {}.")
    values = [inputs(*value.shape, seed=seed) for seed, value in enumerate(parameters(method), start=1)]
    method.double()
    for parameter, value in zip(parameters(method), values, strict=True):
        parameter.data = 0.1 * value
    return method


def agrees(method, parameters, images, labels, said, kept):
    """Whether what is said, the loss and its gradients' norms are those that were kept."""
    loss = method.loss(Batch(images, labels), torch.Generator(), examples=len(labels))["total"]
    norms = [gradient.norm().item() for gradient in torch.autograd.grad(loss, parameters)]
    close([*said.flatten().tolist(), loss.item(), *norms], kept)


def some_images(count):
    features = inputs(count, 32, seed=9)
    return Encoded(features, features[:, None][:, :0])


@pytest.mark.parametrize(
    "setting", ["position=end", "position=middle", "position=front", "class_specific=true"]
)
def test_coop(setting):
    method = prompting(CoOp, lambda method: [method.context], setting)
    said = method.sample_logits(some_images(3), method.class_features(1, torch.Generator()))
    kept = KEPT["CoOp"]["class-specific" if "class" in setting else setting.partition("=")[2]]
    agrees(method, [method.context], some_images(3), torch.tensor([0, 2, 1]), said, kept)


def test_cocoop():
    method = prompting(CoCoOp, lambda method: list(method.parameters()))
    said = method.sample_logits(some_images(3), method.class_features(1, torch.Generator()))
    labels = torch.tensor([0, 2, 1])
    agrees(method, list(method.parameters()), some_images(3), labels, said, KEPT["CoOp"]["CoCoOp"])


@pytest.mark.parametrize(("conditional", "theirs"), [("false", "coopvpt"), ("true", "cocoopvpt")])
def test_vpt(monkeypatch, conditional, theirs):
    noise = inputs(5, 1, 64, seed=20)
    monkeypatch.setattr("pbprompt.prompts.pbprompt.variational.draw_noise", lambda *_: noise)
    monkeypatch.setattr(vpt, "draw_noise", lambda *_: noise)
    words = (f"conditional={conditional}", "train_samples=5")
    method = prompting(VPT, lambda method: list(method.parameters()), *words)
    logits = method.sample_logits(some_images(1), method.class_features(5, torch.Generator()))
    said = mean_probabilities(logits)
    agrees(method, list(method.parameters()), some_images(1), torch.tensor([0]), said, KEPT["VPT"][theirs])


@pytest.mark.parametrize(("dataset", "add_global"), [("Caltech101", False), ("ImageNet", True)])
def test_plot(dataset, add_global):
    pool, patches = inputs(6, 3, 6, seed=1).tensor_split([1])
    text = inputs(8, 6, seed=2).requires_grad_()
    prompts = text.unflatten(0, (2, 4))
    cosines = patch_cosines(patches.transpose(0, 1), prompts).permute(1, 3, 2, 0)
    logits = SCALE * transported_cosines(cosines, PLOTConfig(tolerance=1e-12, iterations=1000))
    if add_global:
        logits = logits + class_logits(pool[0], prompts.mean(0), SCALE)
    F.cross_entropy(logits, LABELS).backward()
    *expected, norm = KEPT["PLOT"][dataset]
    # theirs stops when the scalings change by less than 1e-2, ours is taken to the end
    assert torch.allclose(logits.flatten(), torch.tensor(expected, dtype=torch.float64), atol=1e-3)
    assert text.grad.norm().item() == pytest.approx(norm, rel=1e-4)


def prograd_step(seed):
    """The loss, the gradient to step along, and whether the two conflict."""
    weight = (0.1 * inputs(4, 6, seed=seed)).requires_grad_()
    students, teachers = inputs(3, 6, seed=10) @ weight.T, 5 * inputs(3, 4, seed=seed + 20)
    loss = F.cross_entropy(students, LABELS)
    kl = F.kl_div(students.log_softmax(-1), teachers.softmax(-1), reduction="batchmean")
    task, general = (torch.autograd.grad(term, weight, retain_graph=True)[0] for term in (loss, kl))
    return loss.item(), *without_conflict(task, general, 1.0)


@pytest.mark.parametrize("seed", range(1, 9))
def test_prograd(seed):
    loss, gradient, _ = prograd_step(seed)
    close([loss, *gradient.flatten().tolist()], KEPT["ProGrad"][str(seed)])


def test_prograds_cases_are_of_both_kinds():
    assert {prograd_step(seed)[2].item() for seed in range(1, 9)} == {0.0, 1.0}


def test_ship():
    made, x, mean, spread = (inputs(5, 6, seed=seed) for seed in (1, 2, 3, 4))
    kl = gaussian_kl(mean, spread, torch.zeros_like(mean)).sum(-1).mean()
    close([((made - x).square().sum(-1).mean() + kl).item()], KEPT["SHIP"]["loss"])


def test_tip_adapter(double_vit):
    method = build_method(TipAdapter, make_config(TipAdapter, overrides=["key_views=3"]), double_vit, seed=1)
    method.prepare(["cat", "dog"], "a photo of a {}.")
    views, labels = inputs(3, 4, 6, seed=1), torch.tensor([0, 1, 0, 1])
    method.begin_on(lambda epoch: Batch(Encoded(views[epoch], torch.zeros(4, 1, 6)), labels), seed=1)
    kept = torch.tensor(KEPT["Tip-Adapter"]["keys"])
    torch.testing.assert_close(method.fitted.keys.flatten().float(), kept.float(), rtol=1e-5, atol=1e-6)


def test_tip_adapters_search(double_vit):
    config = make_config(TipAdapter, overrides=["search_beta=7", "search_alpha=3"])
    texts = F.normalize(inputs(1, 6, seed=3) + 0.05 * inputs(4, 6, seed=4), dim=-1)

    class Given(TipAdapter):
        @property
        def asked(self):
            return replace(super().asked, read=lambda names: texts)

    method = build_method(Given, config, double_vit, seed=1).double()
    method.prepare(["cat", "dog", "cow", "elk"], "a photo of a {}.")
    cached, x = (inputs(count, 6, seed=count) for count in (8, 30))
    method.begin(Encoded(cached, cached[:, None][:, :0]), torch.arange(8) % 4)
    found = []
    for seed in range(5, 10):
        method.choose(Encoded(x, x[:, None][:, :0]), inputs(30, 4, seed=seed).argmax(1))
        found += reversed(method.fitted.found.tolist())
    assert len(set(found)) > 4
    close(found, KEPT["Tip-Adapter"]["searched"])
