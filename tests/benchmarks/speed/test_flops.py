"""The counted operations are those that torch counts, and attention's are those of a loop over positions."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.flops import step_flops, text_flops
from benchmarks.speed.setups import METHODS, Case, class_names, make_method, random_batch
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.prompts import named_prompts

CLASSES, SLOTS = 9, 4


def prompts_of(backbone):
    return named_prompts(backbone.tokenizer, class_names(backbone.tokenizer, CLASSES), SLOTS)


@pytest.mark.parametrize("common", [True, False])
def test_products_are_those_torch_counts(common, tiny_vit):
    prompts = prompts_of(tiny_vit)
    engine = TextEngine(tiny_vit, prompts)
    context = torch.randn(1 if common else CLASSES, SLOTS, tiny_vit.text_width, requires_grad=True)
    with FlopCounterMode(display=False) as forward:  # leaves a CPU's fused attention out
        features = engine(context)
    with FlopCounterMode(display=False) as backward:
        features.sum().backward()
    expected = text_flops(prompts, common, tiny_vit.config.text, tiny_vit.embed_dim)
    assert forward.get_total_flops() == expected.products
    assert backward.get_total_flops() == expected.products


@pytest.mark.parametrize("common", [True, False])
def test_attention_by_a_loop_over_positions(common, tiny_vit):
    prompts = prompts_of(tiny_vit)
    tower = tiny_vit.config.text
    lead = 1 + SLOTS * common
    pairs = sum(range(1, lead + 1))
    for prompt in prompts:
        pairs += sum(position + 1 for position in range(lead, len(prompt)))
    expected = 4 * tower.width * ((tower.layers - 1) * pairs + sum(map(len, prompts)))
    flops = text_flops(prompts, common, tower, tiny_vit.embed_dim)
    assert flops.attention == expected
    assert flops.forward == flops.products + expected
    assert flops.backward == flops.products + 2 * expected


@pytest.mark.parametrize("name", METHODS)
def test_a_step_takes_no_less_than_its_floor(name, tiny_vit):
    method = make_method(Case(name, "tiny", CLASSES, "cpu", "float32"), tiny_vit)
    images = random_batch(tiny_vit, CLASSES, 3)
    patches = images.images.patches.shape[1]
    with FlopCounterMode(display=False) as counted:
        method.loss(images, torch.Generator().manual_seed(0), 10)["total"].backward()
    slots = 5 if name == "pbprompt" else SLOTS
    prompts = named_prompts(tiny_vit.tokenizer, method.classes, slots)
    text = text_flops(prompts, name != "pbprompt", tiny_vit.config.text, tiny_vit.embed_dim)
    contexts = {"coop": 1, "cocoop": 3, "plot": 4, "vpt": 10, "pbprompt": 1}[name]
    floor = step_flops(method, 3, patches) - contexts * 3 * text.attention  # which torch does not count here
    assert floor <= counted.get_total_flops() < 1.3 * floor


def test_names_have_imagenets_lengths(tiny_vit):
    names = class_names(tiny_vit.tokenizer, 2000)
    lengths = [len(tiny_vit.tokenizer.encode(name)) for name in names]
    assert all(len(name.split()) == length for name, length in zip(names, lengths, strict=True))
    assert 2.0 < sum(lengths) / len(lengths) < 2.5
    assert len(set(names)) > 1500
