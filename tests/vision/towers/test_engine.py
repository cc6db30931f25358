"""The text engine returns the plain computation's features and gradients, whatever it leaves out."""

import copy
import itertools

import pytest
import torch
from plain_text import plain, relative, with_gradient

from pbprompt.vision.towers import engine as engine_module
from pbprompt.vision.towers.backbone import BackboneConfig, random_backbone
from pbprompt.vision.towers.engine import TextEngine, encode_texts
from pbprompt.vision.towers.prompts import common_length, named_prompts
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

NAMES = ["cat", "dog", "cat", "golden retriever", "x", " ".join(["word"] * 20), "a b c d e f g", "tench"]
SWITCHES = [
    dict(zip(("pack", "share", "eot_only", "memory_budget"), values, strict=True))
    for values in itertools.product([True, False], [True, False], [True, False], [1 << 32, 1 << 19])
]


@pytest.fixture(scope="module")
def double():
    """Three layers, so that there is a first, a last and one between; and no longer than the longest name."""
    text = TextConfig(context_length=32, vocab_size=49408, width=64, heads=4, layers=3)
    return random_backbone(BackboneConfig("double", 32, VitConfig(32, 16, 64, 1, 4), text)).to(torch.float64)


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize(("samples", "own"), [(1, False), (1, True), (3, False), (3, True)])
def test_every_combination_is_exact(double, position, samples, own):
    torch.manual_seed(0)
    prompts = named_prompts(double.tokenizer, NAMES, 5, position)
    classes = len(NAMES) if own else 1
    context = torch.randn(samples, classes, 5, 64, dtype=torch.float64, requires_grad=True)
    features = plain(double, prompts, context)
    weights = torch.randn_like(features)
    wanted, wanted_gradient = with_gradient(features, context, weights)
    for switches in SWITCHES:
        engine = TextEngine(double, prompts, **switches)
        found, gradient = with_gradient(engine(context), context, weights)
        assert relative(found, wanted) <= 1e-10, switches
        assert relative(gradient, wanted_gradient) <= 1e-10, switches
        with torch.no_grad():
            assert relative(engine(context), wanted) <= 1e-10, switches


def test_chunks_are_really_made(double_vit):
    prompts = named_prompts(double_vit.tokenizer, NAMES, 4)
    engine = TextEngine(double_vit, prompts, memory_budget=1 << 19)
    context = torch.zeros(1, 1, 4, 64, dtype=torch.float64, requires_grad=True)
    assert len(engine._chunks(context)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_single_precision_at_full_size(own):
    """ViT-B/16's text tower in float32, names of 1 to 20 tokens."""
    config = BackboneConfig("b16", 512, VitConfig(32, 16, 64, 1, 1), TextConfig(77, 49408, 512, 8, 12))
    backbone = random_backbone(config)
    prompts = [
        [49406, -1, -2, -3, -4, *range(1000 + n, 1000 + 2 * n), 269, 49407] for n in (1, 2, 2, 5, 12, 20)
    ]
    context = (0.02 * torch.randn(1, 6 if own else 1, 4, 512)).requires_grad_()
    features = plain(backbone, prompts, context)
    weights = torch.randn_like(features)
    wanted, wanted_gradient = with_gradient(features, context, weights)
    found, gradient = with_gradient(TextEngine(backbone, prompts)(context), context, weights)
    assert relative(found, wanted) <= 1e-5
    assert relative(gradient, wanted_gradient) <= 1e-5


def test_a_thousand_classes_and_one(tiny_vit):
    generator = torch.Generator().manual_seed(1)
    prompts = [
        [49406, -1, -2, *torch.randint(300, 40000, (1 + c % 7,), generator=generator).tolist(), 269, 49407]
        for c in range(1000)
    ]
    context = torch.randn(1, 1, 2, 64, generator=generator)
    whole = TextEngine(tiny_vit, prompts)(context)
    assert whole.shape == (1, 1000, 32)
    for c in (0, 6, 999):
        assert relative(whole[:, c], plain(tiny_vit, [prompts[c]], context)[:, 0]) <= 1e-5
        assert relative(whole[:, c], TextEngine(tiny_vit, [prompts[c]])(context)[:, 0]) <= 1e-5


def test_shapes_in_shapes_out(tiny_vit):
    engine = TextEngine(tiny_vit, named_prompts(tiny_vit.tokenizer, NAMES, 4))
    classes = len(NAMES)
    assert engine(torch.zeros(4, 64)).shape == (classes, 32)
    assert engine(torch.zeros(classes, 4, 64)).shape == (classes, 32)
    assert engine(torch.zeros(2, 1, 4, 64)).shape == (2, classes, 32)
    assert engine(torch.zeros(2, 3, classes, 4, 64)).shape == (2, 3, classes, 32)
    with pytest.raises(ValueError, match="does not fit"):
        engine(torch.zeros(3, 4, 64))
    with pytest.raises(ValueError, match="does not fit"):
        engine(torch.zeros(5, 64))


def test_half_precision_stays_near(tiny_vit):
    prompts = named_prompts(tiny_vit.tokenizer, NAMES, 4)
    context = torch.randn(1, 1, 4, 64)
    wanted = TextEngine(tiny_vit, prompts)(context)
    config = tiny_vit.config
    for dtype in (torch.bfloat16, torch.float16):
        half = random_backbone(config).to(dtype)
        found = TextEngine(half, prompts)(context)
        assert found.dtype == dtype
        assert torch.nn.functional.cosine_similarity(found.float(), wanted, dim=-1).min() > 0.995


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_rough_training_stays_near_and_predicts_exactly(activation, monkeypatch):
    """Products in bfloat16: gradients a hundredth off, nothing else touched, and none of it in prediction."""
    monkeypatch.setattr("pbprompt.vision.towers.engine.multiplies_bfloat16", lambda device: True)
    text = TextConfig(context_length=32, vocab_size=49408, width=64, heads=4, layers=3)
    config = BackboneConfig("tiny", 32, VitConfig(32, 16, 64, 1, 4), text, activation=activation)
    backbone = random_backbone(config)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    prompts = named_prompts(backbone.tokenizer, NAMES, 4)
    context = torch.randn(
        2, len(NAMES), 4, 64, generator=torch.Generator().manual_seed(2), requires_grad=True
    )
    exact, rough = TextEngine(backbone, prompts), TextEngine(backbone, prompts, rough_training=True)
    weights = torch.randn(2, len(NAMES), 32, generator=torch.Generator().manual_seed(3))
    wanted, wanted_gradient = with_gradient(exact(context), context, weights)
    found, gradient = with_gradient(rough(context), context, weights)
    assert found.dtype == gradient.dtype == torch.float32
    assert 0 < relative(found, wanted) < 0.02
    assert 0 < relative(gradient, wanted_gradient) < 0.05
    with torch.no_grad():
        assert torch.equal(rough(context), exact(context))
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


@pytest.mark.parametrize(
    ("capabilities", "fast"), [({"amx_bf16": True}, True), ({"avx2": True}, False), ({}, False)]
)
def test_without_instructions_for_bfloat16_training_is_exact(tiny_vit, monkeypatch, capabilities, fast):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    prompts = named_prompts(tiny_vit.tokenizer, NAMES, 4)
    context = torch.randn(1, 1, 4, 64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    wanted = TextEngine(tiny_vit, prompts)(context)
    engine = TextEngine(tiny_vit, prompts, rough_training=True)
    if fast:
        assert not torch.equal(engine(context), wanted)
        return
    with pytest.warns(UserWarning, match="no instructions"):
        assert torch.equal(engine(context), wanted)


def test_whole_sentences(tiny_vit):
    texts = ["a photo of a cat.", "a photo of a dog, a type of pet.", ""]
    ids, lengths = tiny_vit.tokenizer(texts)
    wanted = tiny_vit.text(tiny_vit.token_embedding(ids), lengths)
    assert relative(encode_texts(tiny_vit, texts), wanted) <= 1e-5


def test_a_graph_is_not_replayed_before_its_backward(tiny_vit, monkeypatch):
    """The graph of a shape holds one set of activations: no replay before its backward."""
    replays = []

    def graphed(function, sample):
        def replay(context):
            replays.append(context)
            return function(context)

        return replay

    monkeypatch.setattr(engine_module, "graphed", graphed)
    engine = TextEngine(tiny_vit, named_prompts(tiny_vit.tokenizer, NAMES, 4))
    context = torch.randn(1, 1, 4, 64, requires_grad=True)
    for _ in range(3):  # not yet worth a graph
        engine._graphed(context)
    assert not replays
    first, second = engine._graphed(context), engine._graphed(2 * context)
    assert len(replays) == 1
    (first.sum() + second.sum()).backward()
    engine._graphed(context)
    assert len(replays) == 2


def test_a_graph_that_cannot_be_captured_is_done_without(tiny_vit, monkeypatch):
    def refuse(function, sample):
        raise RuntimeError("operation failed due to a previous error during capture\nmore")

    monkeypatch.setattr(engine_module, "graphed", refuse)
    engine = TextEngine(tiny_vit, named_prompts(tiny_vit.tokenizer, NAMES, 4))
    context = torch.randn(1, 1, 4, 64, requires_grad=True)
    for _ in range(3):
        engine._graphed(context)
    with pytest.warns(UserWarning, match="without a CUDA graph, slower: .* during capture$"):
        features = engine._graphed(context)
    assert torch.equal(features, engine._features(context)) and not engine.graph


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_several_engines_have_their_graphs_beside_each_other_and_beside_dead_ones(tiny_vit):
    """In one process, called in a loop of one's own: each keeps its graph and the plain values."""
    backbone = copy.deepcopy(tiny_vit).to("cuda")
    for turn, names in enumerate((NAMES, NAMES[:2], NAMES * 3)):
        engine = TextEngine(backbone, named_prompts(backbone.tokenizer, names, 4))
        plain = TextEngine(backbone, named_prompts(backbone.tokenizer, names, 4), graph=False)
        shapes = [(1, 1, 4, backbone.text_width), (turn + 2, len(names), 4, backbone.text_width)]
        contexts = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
        for context in contexts * 6:
            (gradient,) = torch.autograd.grad(engine(context).square().sum(), context)
            (wanted,) = torch.autograd.grad(plain(context).square().sum(), context)
            assert relative(gradient, wanted) <= 1e-5
        assert len(engine._graphs) == len(shapes)


def test_common_length_keeps_an_eot_for_everyone():
    assert common_length([[9, 1, 2, 8], [9, 1, 8]], True) == 2
    assert common_length([[9, -1, -2, 5, 8], [9, -1, -2, 6, 8]], True) == 3
    assert common_length([[9, -1, -2, 5, 8], [9, -1, -2, 6, 8]], False) == 1
    assert common_length([[9, 5, 8]], True) == 2
