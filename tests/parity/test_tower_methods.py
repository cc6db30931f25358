"""Methods inside the towers against numbers of their authors' own code: tower_methods.json.

Each repository's code was run once at its commit, in float64 on the CPU, on the towers and draws below. What
stood in the way was replaced: half precision and CUDA, dassl's base classes, a LayerNorm in float32, the
sizes 512 and 768 in the text of MaPLe and KgCoOp, PromptSRC's sentences (by the seven of `promptsrc`) and
CLIP-LoRA's dropout (by none). Of the gradient by each learned tensor there are the norm and the
product with a draw.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import torch

from pbprompt.learners.method import Batch, build_method
from pbprompt.prompts.rivals.coop import KgCoOp
from pbprompt.prompts.rivals.towers.clip_lora import CLIPLoRA
from pbprompt.prompts.rivals.towers.ivlp import IVLP, MaPLe, PromptSRC
from pbprompt.prompts.rivals.towers.mmrl import MMRL
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, Encoded, random_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

KEPT = json.loads(Path(__file__).with_name("tower_methods.json").read_text(encoding="utf-8"))
NAMES = ("cat", "golden_retriever", "red car")
TEMPLATE = "a photo of a {}, a type of pet."
LABELS = torch.tensor([0, 2, 1, 0])
ALONG = 1000  # the first seed of what gradients are multiplied with


def drawn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pixels():
    return drawn(4, 3, 32, 32, seed=500)


@cache
def towers() -> Backbone:
    """Heads of width 64, as the authors' code has them, and norms that are not those of the start."""
    text = TextConfig(context_length=77, vocab_size=49408, width=64, heads=1, layers=3)
    backbone = random_backbone(BackboneConfig("parity", 32, VitConfig(32, 16, 128, 3, 2), text)).double()
    for seed, (name, value) in enumerate(backbone.named_buffers(), start=2000):
        if ".ln_" in name:
            value += 0.1 * drawn(*value.shape, seed=seed)
    return backbone


def made(kind, **settings):
    method = build_method(kind, kind.Config(**settings), towers(), seed=1).double()
    method.prepare(NAMES, TEMPLATE)
    return method


def compare(method, learned, kept, logits="logits"):
    """`learned`: in the authors' order, each parameter, or (parameter, row) where they have one a row."""
    parts = [(one, ...) if isinstance(one, torch.Tensor) else one for one in learned]
    assert {id(one) for one, _ in parts} == {id(one) for one in method.trainable()}
    with torch.no_grad():
        for seed, (one, row) in enumerate(parts, start=1):
            one[row] = 0.1 * drawn(*one[row].shape, seed=seed)
    tapped = method.backbone is not method.given
    seen = Encoded(*(method.backbone.stem if tapped else method.backbone).image(pixels()))
    batch = method.encoded(Batch(seen, LABELS))
    loss = method.loss(batch, torch.Generator(), len(LABELS))["total"]
    loss.backward()
    with torch.no_grad():
        said = method.sample_logits(batch.images, method.class_features(1, torch.Generator()))[0]
    found = {logits: said.flatten().tolist(), "loss": loss.item(), "gradients": []}
    for seed, (one, row) in enumerate(parts, start=ALONG):
        gradient = one.grad[row]
        along = (gradient * drawn(*gradient.shape, seed=seed)).sum()
        found["gradients"] += [gradient.norm().item(), along.item()]
    for name, values in found.items():
        assert values == pytest.approx(kept[name], rel=1e-8, abs=1e-9), name


def test_the_code_is_named():
    assert all("github.com/" in kept["repository"] and "@" in kept["repository"] for kept in KEPT.values())


@pytest.mark.parametrize(("parts", "rank"), [("qkv", 2), ("qkvo", 3)])
def test_clip_lora(parts, rank):
    method = made(CLIPLoRA, parts=parts, rank=rank, dropout=0.0)
    taps = [tower.at(number) for tower in (method.text_taps, method.image_taps[0]) for number in range(3)]
    learned = [(one, at) for tap in taps for at in range(len(parts)) for one in (tap.down, tap.up)]
    compare(method, learned, KEPT["CLIP-LoRA"][f"{parts} of rank {rank}"])


@pytest.mark.parametrize("depth", [2, 3])
def test_maple(depth):
    method = made(MaPLe, depth=depth)
    image, deeper = method.image_taps[0], range(1, depth)
    learned = [method.context, *(method.text_taps.at(block).values for block in deeper)]
    maps = [image.at(block).project for block in range(depth)]
    compare(
        method,
        [*learned, *(one for own in maps for one in (own.weight, own.bias))],
        KEPT["MaPLe"][str(depth)],
    )


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("variant", ["ivlp", "vpt-deep"])
def test_ivlp(variant, depth):
    method = made(IVLP, depth=depth, **IVLP.variants.get(variant, {}))
    method.prepare(NAMES, "a photo of a {}.")
    learned = [method.image_taps[0].at(block).values for block in range(depth)]
    if variant == "ivlp":
        deeper = [method.text_taps.at(block).values for block in range(1, depth)]
        learned = [method.context, *deeper, *learned]
    compare(method, learned, KEPT["MaPLe"][f"{variant} {depth}"])


@pytest.mark.parametrize("depth", [2, 3])
def test_promptsrc(depth):
    method = made(PromptSRC, depth=depth)
    learned = [method.context, *(method.text_taps.at(block).values for block in range(1, depth))]
    learned += [method.image_taps[0].at(block).values for block in range(depth)]
    compare(method, learned, KEPT["PromptSRC"][str(depth)])


@pytest.mark.parametrize(("epochs", "at", "within"), [(20, 15, 1), (50, 30, 30), (50, 45, 5)])
def test_promptsrcs_mean_over_the_epochs(epochs, at, within):
    method = made(PromptSRC, average_at=at, average_within=within)
    for epoch, value in enumerate(drawn(epochs, seed=1)):
        method.context.data.fill_(value)
        method.end_epoch(epoch, epochs)
    assert method.context[0, 0].item() == pytest.approx(
        KEPT["PromptSRC"][f"mean of {epochs} at {at}"], rel=1e-9
    )


def test_kgcoop():
    method = made(KgCoOp)
    compare(method, [method.context], KEPT["KgCoOp"])


@pytest.mark.parametrize("last", [1, 2, 3])
@pytest.mark.parametrize("trained", [True, False])
def test_mmrl(last, trained):
    method = made(MMRL, last=last, token_width=48)
    image, text, upper = method.image_taps[0], method.text_taps, range(3 - last, 3)
    maps = [taps.at(block).project for taps in (image, text) for block in upper]
    learned = [image.at(3 - last).source.values, *(one for own in maps for one in (own.weight, own.bias))]
    method.remember(NAMES if trained else ["moon"])
    kept = KEPT["MMRL"][str(last)]
    compare(method, [*learned, image.projection], kept, "logits" if trained else "of new names")
