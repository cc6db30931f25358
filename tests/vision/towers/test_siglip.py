"""SigLIP's towers against transformers' own, from a folder of random weights, and the text engine."""

import itertools

import pytest
import torch
from PIL import Image
from plain_text import plain, relative, with_gradient
from siglip_folder import CONTEXT, change, siglip_model, write_siglip

from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.engine import TextEngine, encode_texts
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.prompts import named_prompts, text_prompts

NAMES = ["cat", "dog", "golden retriever", "x", "a b c d e f g", "tench", "Red_panda"]
SWITCHES = [
    dict(zip(("pack", "share", "eot_only", "memory_budget"), values, strict=True))
    for values in itertools.product([True, False], [True, False], [True, False], [1 << 32, 1 << 18])
]


@pytest.fixture(scope="module")
def theirs():
    return siglip_model()


@pytest.fixture(scope="module")
def ours(theirs, tmp_path_factory) -> Backbone:
    return load_backbone(write_siglip(tmp_path_factory.mktemp("siglip"), theirs))


@pytest.fixture
def double(theirs, tmp_path) -> Backbone:
    return load_backbone(write_siglip(tmp_path, theirs), dtype=torch.float64)


def ids_of(backbone: Backbone, texts: list[str], left: bool = False) -> torch.Tensor:
    prompts = text_prompts(backbone.tokenizer, texts)
    padding = [[backbone.tokenizer.pad] * (CONTEXT - len(prompt)) for prompt in prompts]
    return torch.tensor([b + a if left else a + b for a, b in zip(prompts, padding, strict=True)])


@torch.no_grad()
def test_image_features_are_theirs(theirs, ours):
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    wanted = theirs.vision_model(pixels).pooler_output
    assert relative(ours.image(pixels).global_, wanted) <= 1e-5


@torch.no_grad()
def test_a_patch_is_what_the_pool_gives_when_it_sees_that_patch_alone(theirs, ours):
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    hidden = theirs.vision_model(pixels).last_hidden_state
    wanted = torch.stack([theirs.vision_model.head(hidden[:, at : at + 1]) for at in range(16)], dim=1)
    assert ours.image(pixels).patches.shape == (2, 16, 32)
    assert relative(ours.image(pixels).patches, wanted) <= 1e-5


@torch.no_grad()
def test_text_features_are_theirs_with_padding_seen(theirs, ours):
    texts = ["a photo of a cat", "a photo of a golden retriever", "x"]
    wanted = theirs.text_model(ids_of(ours, texts)).pooler_output
    assert relative(encode_texts(ours, texts), wanted) <= 1e-5


def test_padding_is_on_the_side_that_its_tokenizer_says(theirs, tmp_path):
    folder = write_siglip(tmp_path, theirs)
    change(folder / "tokenizer_config.json", padding_side="left")
    ours, texts = load_backbone(folder), ["a photo of a cat", "x"]
    wanted = theirs.text_model(ids_of(ours, texts, left=True)).pooler_output
    assert relative(encode_texts(ours, texts), wanted) <= 1e-5
    ids, lengths = ours.tokenizer(texts)
    assert relative(ours.text(ours.token_embedding(ids), lengths), wanted) <= 1e-5


def test_gradients_to_injected_embeddings_are_theirs(theirs, ours):
    prompts = named_prompts(ours.tokenizer, NAMES, 4)
    context = 0.2 * torch.randn(1, 1, 4, 32, generator=torch.Generator().manual_seed(3))
    weights = torch.randn(1, len(NAMES), 32, generator=torch.Generator().manual_seed(4))
    embedding = theirs.text_model.embeddings.token_embedding
    pad = ours.tokenizer.pad
    ids = torch.tensor([[max(token, 0) for token in p] + [pad] * (CONTEXT - len(p)) for p in prompts])

    def inject(module, given, looked_up):
        return torch.cat([own[0].expand(len(ids), -1, -1), looked_up[:, 4:]], dim=1)

    own = context.clone().requires_grad_()
    handle = embedding.register_forward_hook(inject)
    wanted, wanted_gradient = with_gradient(theirs.text_model(ids).pooler_output[None], own, weights)
    handle.remove()
    own = context.clone().requires_grad_()
    found, gradient = with_gradient(TextEngine(ours, prompts)(own), own, weights)
    assert relative(found, wanted) <= 1e-5
    assert relative(gradient, wanted_gradient) <= 1e-5


@torch.no_grad()
def test_logits_are_theirs(theirs, ours):
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    texts = ["a photo of a cat", "dog"]
    wanted = theirs(input_ids=ids_of(ours, texts), pixel_values=pixels).logits_per_image
    image, text = ours.image(pixels).global_, encode_texts(ours, texts)
    cosines = torch.nn.functional.normalize(image, dim=-1) @ torch.nn.functional.normalize(text, dim=-1).T
    assert relative(ours.logit_scale * cosines + ours.logit_bias, wanted) <= 1e-5
    assert ours.logit_bias != 0


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize(("samples", "own"), [(1, False), (2, True)])
def test_the_engine_is_exact_without_a_causal_mask(double, position, samples, own):
    torch.manual_seed(0)
    prompts = named_prompts(double.tokenizer, NAMES, 5, position)
    context = torch.randn(samples, len(NAMES) if own else 1, 5, 32, dtype=torch.float64, requires_grad=True)
    features = plain(double, prompts, context)
    weights = torch.randn_like(features)
    wanted, wanted_gradient = with_gradient(features, context, weights)
    for switches in SWITCHES:
        engine = TextEngine(double, prompts, **switches)
        found, gradient = with_gradient(engine(context), context, weights)
        assert relative(found, wanted) <= 1e-10, switches
        assert relative(gradient, wanted_gradient) <= 1e-10, switches


def test_images_are_squashed_as_its_preprocessor_says(ours):
    image = Image.effect_noise((90, 40), 80).convert("RGB")
    wanted = image.resize((32, 32), Image.Resampling.BILINEAR)
    assert ours.preprocess.cropper(image).tobytes() == wanted.tobytes()
    assert ours.preprocess(image).min() >= -1
    assert "squash" in ours.preprocess.identity
    assert "bilinear" in ours.preprocess.identity
