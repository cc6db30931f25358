"""Taps against towers computed position by position, and what a tapped backbone is."""

import pytest
import torch
from plain_towers import embedded, enclosed, plain_image, plain_text
from siglip_folder import siglip_model, write_siglip
from torch import Tensor
from trunk_folder import write_trunk

from pbprompt.errors import InputError
from pbprompt.vision.towers import taps as taps_module
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, random_backbone
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.prompts import named_prompts, text_prompts
from pbprompt.vision.towers.taps import LowRank, Tap, Tapped, TappedTower, Taps, Tokens, blocks_of
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import DinoConfig, VitConfig

NAMES = ["cat", "golden retriever", "x", "forklift truck driver"]


@pytest.fixture(scope="module")
def double() -> Backbone:
    text = TextConfig(context_length=16, vocab_size=49408, width=64, heads=4, layers=3)
    return random_backbone(BackboneConfig("double", 32, VitConfig(32, 16, 64, 3, 4), text)).to(torch.float64)


class Both(LowRank):
    """Everything at once: tokens, updates and an adapter."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__(width, 3, 0.7, "qvo")
        self.up.data.normal_()
        self.values = torch.nn.Parameter(torch.randn(count, width))

    def tokens(self) -> Tensor:
        return self.values


class Adapter(Tap):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(width, width)

    def after(self, x: Tensor) -> Tensor:
        return x + self.fc(x)


def both(width: int, blocks: range, count: int = 2, seed: int = 0) -> Taps:
    torch.manual_seed(seed)
    return Taps({number: Both(width, count) for number in blocks}).double()


def updates(taps: Taps) -> dict:
    return {
        (number, part): 0.7 * tap.up[at] @ tap.down[at]
        for number in taps.numbers
        for tap in [taps.at(number)]
        for at, part in enumerate("qvo")
    }


def images(backbone: Backbone, count: int = 3) -> Tensor:
    size = backbone.preprocess.size
    draws = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, size, size, generator=draws, dtype=torch.float64).to(backbone.dtype)


@pytest.mark.parametrize("first", [0, 1])
def test_an_image_tower_is_that_of_the_plain_computation(double, first):
    taps, x = both(64, range(first, 3)), images(double)
    tapped = Tapped(double, [taps])
    found = tapped.image(x).global_
    tokens = {number: taps.at(number).values for number in taps.numbers}
    wanted = plain_image(double, x, updates(taps), tokens)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    weights = torch.randn_like(wanted)
    learned = list(taps.parameters())
    ours = torch.autograd.grad((found * weights).sum(), learned)
    theirs = torch.autograd.grad((wanted * weights).sum(), learned)
    for mine, plain in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-8, atol=1e-11)
    assert tapped.image(x).patches.shape == double.image(x).patches.shape


@pytest.mark.parametrize("eot_only", [True, False])
@pytest.mark.parametrize("budget", [1 << 32, 1 << 18])
def test_the_text_engine_keeps_its_savings(double, eot_only, budget):
    """Packed, shared and in chunks, what is done inside equals all positions of every prompt."""
    taps = both(64, range(3))
    prompts = named_prompts(double.tokenizer, NAMES, 2)
    engine = TextEngine(Tapped(double, text=taps), prompts, eot_only=eot_only, memory_budget=budget)
    context = torch.randn(2, 64, dtype=torch.float64, requires_grad=True)
    found = engine(context)
    stop = embedded(double, ".")
    plain = [enclosed(double, context, embedded(double, name), stop) for name in NAMES]
    tokens = {number: taps.at(number).values for number in (1, 2)}  # in block 0 they are the context
    wanted = plain_text(double, plain, updates(taps), tokens)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    learned = [context, *(value for name, value in taps.named_parameters() if "0.values" not in name)]
    weights = torch.randn_like(wanted)
    ours = torch.autograd.grad((found * weights).sum(), learned)
    theirs = torch.autograd.grad((wanted * weights).sum(), learned)
    for mine, plain in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("budget", [1 << 32, 1 << 18])
def test_inserted_tokens_take_no_place(double, first, budget):
    """They come in behind [SOS] at the first touched block; no word moves, and below nothing changes."""
    taps = both(64, range(first, 3))
    taps.inserted = True
    prompts = text_prompts(double.tokenizer, NAMES)
    wanted = plain_text(
        double,
        [enclosed(double, embedded(double, name)) for name in NAMES],
        updates(taps),
        {number: taps.at(number).values for number in taps.numbers},
        inserted=True,
    )
    weights, learned = torch.randn_like(wanted), list(taps.parameters())
    theirs = torch.autograd.grad((wanted * weights).sum(), learned)
    tapped = Tapped(double, text=taps)
    for switches in ({}, {"eot_only": False}, {"share": False}, {"pack": False, "share": False}):
        engine = TextEngine(tapped, prompts, memory_budget=budget, **switches)
        found = engine(torch.zeros(0, 64, dtype=torch.float64))
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
        ours = torch.autograd.grad((found * weights).sum(), learned)
        for mine, plain in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("family", ["siglip", "sees all, read at EOT"])
def test_inserted_tokens_in_towers_that_are_not_causal(families, family):
    base = families["siglip"].to(torch.float64)
    if family != "siglip":
        text = TextConfig(context_length=12, vocab_size=49408, width=32, heads=2, layers=3, causal=False)
        base = random_backbone(BackboneConfig("full", 24, VitConfig(32, 16, 32, 1, 2), text)).double()
    tower, (blocks, width) = base.textual, blocks_of(base, "text")
    taps = Taps({number: Tokens(3, width) for number in range(1, blocks)}, inserted=True).double()
    prompts = text_prompts(base.tokenizer, ["cat", "a red car"])
    found = TextEngine(Tapped(base, text=taps), prompts)(torch.zeros(0, width, dtype=torch.float64))
    for prompt, one in zip(prompts, found, strict=True):
        whole = torch.zeros(base.context_length, dtype=torch.long)
        whole[: len(prompt)] = torch.tensor(prompt)
        if tower.reads_last:
            whole = torch.tensor(base.tokenizer.padded(prompt))
        x = (tower.token_embedding(whole) + tower.positional_embedding)[None]
        for number, block in enumerate(tower.transformer.blocks):
            if number:
                x = torch.cat(
                    [x[:, :1], taps.at(number).values[None], x[:, 1 if number == 1 else 4 :]], dim=1
                )
            x = block(x, causal=False)
        at = -1 if tower.reads_last else len(prompt) + 2
        torch.testing.assert_close(one, tower.project(x[0, at]), rtol=1e-10, atol=1e-12)


def test_dropout_is_the_same_when_a_chunk_is_computed_again(double):
    """A gradient through chunks is that of the loss that was computed, dropout and all."""
    taps = Taps({0: LowRank(64, 2, 1.0, dropout=0.5)}).double()
    taps.at(0).up.data.normal_()
    tapped = Tapped(double, text=taps)
    prompts = named_prompts(double.tokenizer, NAMES, 0)
    whole, chunked = (TextEngine(tapped, prompts, memory_budget=size) for size in (1 << 32, 1 << 17))
    nothing = torch.zeros(0, 64, dtype=torch.float64)
    assert len(chunked._chunks(nothing[None, None])) > 1
    plain = whole(nothing)

    def loss(seed: int) -> Tensor:
        with tapped.noisy(seed):
            value = chunked(nothing).square().sum()
            value.backward()
        return value

    value, step = loss(0), 1e-6
    gradient = taps.at(0).up.grad.clone()
    taps.at(0).up.data[1, 3, 0] += step
    slope = (loss(0) - value).detach() / step
    assert float(slope) == pytest.approx(gradient[1, 3, 0].item(), rel=1e-3)
    taps.at(0).up.data[1, 3, 0] -= step
    assert not torch.equal(loss(0), loss(1))
    assert torch.equal(whole(nothing), plain)  # nothing random is left behind


@pytest.fixture(scope="module")
def families(tmp_path_factory) -> dict[str, Backbone]:
    def folder(name: str):
        return tmp_path_factory.mktemp(name)

    dino = DinoConfig(32, 8, 32, layers=2, heads=4, hidden=64, registers=2, rope_theta=100.0)
    return {
        "lite-vit": load_backbone("lite-vit"),
        "eva": load_backbone(write_trunk(folder("eva"), "eva")),
        "perception": load_backbone(write_trunk(folder("perception"), "perception")),
        "siglip": load_backbone(write_siglip(folder("siglip"), siglip_model())),
        "dino": random_backbone(BackboneConfig("dino", 32, dino, None, "gelu")),
    }


@pytest.mark.parametrize("family", ["lite-vit", "eva", "perception", "siglip", "dino"])
def test_every_family_takes_taps(families, family):
    """Nothing is changed by updates of zero, to the bit; merged updates and kept states say the same."""
    base = families[family]
    blocks, width = blocks_of(base, "image")
    x = images(base, 2)
    taps = Taps({blocks - 1: LowRank(width, 2, 1.0, "qkvo")})
    tapped = Tapped(base, [taps])
    before = base.image(x)
    assert all(map(torch.equal, tapped.image(x), before))
    torch.nn.init.normal_(taps.at(blocks - 1).up, std=0.2)
    with torch.no_grad():
        after = tapped.image(x)
        assert not torch.allclose(after.global_, before.global_, atol=1e-3)
        torch.testing.assert_close(tapped.merged().image(x).global_, after.global_, rtol=1e-3, atol=1e-4)
        stem = tapped.stem.image(x)
        assert torch.equal(stem.global_, before.global_)
        assert stem.patches.shape[1:] == (tapped.stem.grid[0], tapped.stem.patch_width) == (
            stem.patches.shape[1], width,
        )  # fmt: skip
        assert isinstance(tapped.visual, TappedTower)
        assert torch.equal(tapped.visual.finish(stem.patches)[0], after.global_)
        more = Tapped(base, [Taps({number: Tokens(3, width) for number in range(blocks)})])
        assert more.image(x).patches.shape == before.patches.shape
        assert not torch.equal(more.image(x).global_, before.global_)
    assert all(map(torch.equal, base.image(x), before))  # the towers themselves stay


def test_adapters_are_behind_a_block(double):
    torch.manual_seed(0)
    tap, x = Adapter(64).double(), images(double)
    last = Tapped(double, [Taps({2: tap})]).image(x)
    tower = double.visual
    states = tower.through(tower.enter(x))
    wanted = tower.leave(states + tap.fc(states))
    torch.testing.assert_close(last.global_, wanted[0])


def test_several_members_are_side_by_side(double):
    one, other = both(64, range(1, 3), seed=1), both(64, range(2, 3), seed=2)
    x = images(double)
    several = Tapped(double, [Taps({}), one, other])
    assert several.embed_dim == 96 and several.visual.first == 1
    parts = several.image(x).global_.split(32, dim=1)
    alone = [double.image(x), Tapped(double, [one]).image(x), Tapped(double, [other]).image(x)]
    for part, wanted in zip(parts, alone, strict=True):
        torch.testing.assert_close(part, wanted.global_)
    assert not several.mergeable


def test_many_images_in_parts_are_the_same(double, monkeypatch):
    """With a gradient the parts are computed again, dropout and all; what is known of the frozen is taken."""
    taps = Taps({1: LowRank(64, 2, 1.0, dropout=0.5), 2: LowRank(64, 2, 1.0)}).double()
    for number in (1, 2):
        torch.nn.init.normal_(taps.at(number).up)
    tapped = Tapped(double, [taps, Taps({})])
    with torch.no_grad():
        frozen, states = tapped.stem.image(images(double, 5))

    def gradients() -> tuple[Tensor, ...]:
        found, _ = tapped.visual.finish(states, frozen)
        assert torch.equal(found[:, 32:], frozen)
        return torch.autograd.grad(found.square().sum(), list(taps.parameters()))

    whole = gradients()
    monkeypatch.setattr(taps_module, "MEMORY", 2 * 14 * 2 * states[0].nbytes)  # two images at once
    for part, wanted in zip(gradients(), whole, strict=True):
        torch.testing.assert_close(part, wanted)
    with tapped.noisy(3):
        noisy = tapped.visual.finish(states, frozen)[0]
        value = noisy.square().sum()
        (slope,) = torch.autograd.grad(value, taps.at(1).up)
        taps.at(1).up.data[0, 0, 0] += 1e-6
        after = tapped.visual.finish(states, frozen)[0].square().sum()
    assert float((after - value).detach() / 1e-6) == pytest.approx(slope[0, 0, 0].item(), rel=1e-3)


def test_the_fingerprint_is_of_what_the_taps_are(double):
    taps = both(64, range(2))
    tapped = Tapped(double, [taps])
    first = tapped.fingerprint
    assert first != double.fingerprint == tapped.base.fingerprint
    taps.at(1).up.data[0, 0, 0] += 1
    assert tapped.fingerprint != first
    taps.at(1).up.data[0, 0, 0] -= 1
    assert tapped.fingerprint == first == Tapped(double, [taps]).fingerprint
    assert tapped.stem.fingerprint == "random-double-0-before-block-0"


def test_what_cannot_be_is_refused_in_a_sentence(double, tiny_resnet, lite):
    for backbone in (tiny_resnet, lite):
        with pytest.raises(InputError, match="image tower has no transformer blocks to tune: use a backbone"):
            Tapped(backbone, [Taps({0: Tap()})])
        with pytest.raises(InputError, match="has no transformer blocks"):
            blocks_of(backbone, "image")
    for tower, taken in (("image", {"image": [Taps({3: Tap()})]}), ("text", {"text": Taps({3: Tap()})})):
        with pytest.raises(InputError, match="double's towers are tuned already: give the frozen ones"):
            Tapped(Tapped(double, [Taps({0: Tap()})]), **taken)
        with pytest.raises(InputError, match=f"block 3 does not exist: double's {tower} tower has 3 blocks"):
            Tapped(double, **taken)
