"""MMRL against towers computed position by position."""

import pytest
import torch
from PIL import Image
from plain_towers import cosine_logits, cross_entropy, embedded, enclosed, plain_image, plain_text

from pbprompt.apps.explain.heat_maps import heat_maps
from pbprompt.apps.export import export_towers
from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.model.folder import describe_model
from pbprompt.model.predictor import predictive
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.rivals.towers.mmrl import MMRL, MMRLConfig
from pbprompt.testing.fits import fitted, tiny_vit
from pbprompt.vision.towers.backbone import BackboneConfig, Encoded, random_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

NAMES = ["cat", "golden_retriever", "forklift truck driver"]
TEMPLATE = "a photo of a {}, a thing."


@pytest.fixture(scope="module")
def double():
    """An image tower of another width and depth than the text tower's."""
    text = TextConfig(context_length=20, vocab_size=49408, width=32, heads=2, layers=4)
    return random_backbone(BackboneConfig("double", 24, VitConfig(32, 16, 64, 3, 4), text)).to(torch.float64)


@pytest.fixture
def method(double):
    config = MMRLConfig(last=2, tokens=3, token_width=10, alpha=0.6, weight=1.5)
    method = build_method(MMRL, config, double, seed=1).double()
    method.prepare(NAMES, TEMPLATE)
    torch.manual_seed(0)
    for value in method.parameters():
        value.data += 0.3 * torch.randn_like(value)
    return method


def plain_features(method, backbone, pixels, names):
    """Of the images, by the class token and by the tokens; of the names, with tokens and without."""
    (image,), text = method.image_taps, method.text_taps
    tokens = image.at(1).source.values
    made = [
        {number: tokens @ taps.at(number).project.weight.T + taps.at(number).project.bias for number in own}
        for taps, own in ((image, (1, 2)), (text, (2, 3)))
    ]
    sentences = [embedded(backbone, TEMPLATE.replace("{}", name.replace("_", " "))) for name in names]
    prompts = [enclosed(backbone, own) for own in sentences]
    images = plain_image(backbone, pixels, tokens=made[0], read=image.projection)
    texts = plain_text(backbone, prompts, tokens=made[1], inserted=True)
    return *images.split(24, dim=1), texts, plain_text(backbone, prompts)


def test_loss_gradients_and_predictions(double, method):
    torch.manual_seed(3)
    pixels, labels = torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.tensor([0, 2, 1, 0])
    assert (method.image_taps[0].numbers, method.text_taps.numbers) == ([1, 2], [2, 3])
    image, tokens, texts, sentences = plain_features(method, double, pixels, NAMES)
    by_class, by_tokens = cosine_logits(image, texts), cosine_logits(tokens, texts)
    pairs = ((image, plain_image(double, pixels)), (texts, sentences))
    apart = sum(1 - torch.cosine_similarity(ours, frozen).mean() for ours, frozen in pairs)
    wanted = 0.6 * cross_entropy(by_class, labels) + 0.4 * cross_entropy(by_tokens, labels) + 1.5 * apart
    learned = dict(method.named_parameters())
    gradients = torch.autograd.grad(wanted, list(learned.values()))
    states = Encoded(*method.backbone.stem.image(pixels))
    terms = method.loss(method.encoded(Batch(states, labels)), torch.Generator(), 4)
    method.backward(terms)
    torch.testing.assert_close(terms["total"], wanted, rtol=1e-9, atol=0)
    for (name, parameter), gradient in zip(learned.items(), gradients, strict=True):
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-9)
    method.finish()
    method.prepare([*NAMES, "moon"], TEMPLATE)  # of which there was no image
    image, tokens, texts, _ = plain_features(method, double, pixels, [*NAMES, "moon"])
    by_class, by_tokens = cosine_logits(image, texts), cosine_logits(tokens, texts)
    both = torch.cat([(0.6 * by_class + 0.4 * by_tokens)[:, :3], by_class[:, 3:]], dim=1)
    with torch.no_grad():
        said = predictive(method)(method.backbone.image(pixels)).probabilities.double()
    torch.testing.assert_close(said, both.softmax(-1), rtol=1e-4, atol=1e-6)


def test_what_is_learned_is_counted_once(method):
    sizes = {name: value.numel() for name, value in method.named_parameters()}
    assert sum(sizes.values()) == 3 * 10 + 64 * 24 + 2 * (10 + 1) * (64 + 32)
    assert sum("source" in name for name in sizes) == 1
    assert method.backbone.embed_dim == 48


def test_published_settings():
    for preset, wanted in {
        "published": {"batch_size": 4, "epochs": 10, "last": 7, "weight": 1.0, "warmup_epochs": 1},
        "few-shot": {"batch_size": 32, "epochs": 50, "last": 7, "weight": 0.5, "warmup_epochs": 1},
        "imagenet": {"batch_size": 32, "epochs": 5, "last": 7, "weight": 0.5, "warmup_epochs": 1},
        "transfer": {"batch_size": 32, "epochs": 1, "last": 7, "weight": 0.5, "warmup_epochs": 0},
    }.items():
        config = make_config(MMRL, preset)
        assert {name: getattr(config, name) for name in wanted} == wanted
        assert (config.optimiser, config.learning_rate, config.weight_decay) == ("adamw", 0.001, 5e-4)
        assert (config.tokens, config.token_width, config.alpha) == (5, 512, 0.7)
    with pytest.raises(InputError, match="setting 'last' is 7: tiny-vit's image tower has 2 blocks"):
        build_method(MMRL, make_config(MMRL, "published"), tiny_vit(), seed=1)


def test_a_model_is_explained_and_not_merged(tmp_path):
    model_of = fitted(MMRL, {"learning_rate": 0.1}, tiny_vit())
    model = TunedModel(model_of, describe_model(model_of))
    maps = heat_maps(model.predictor, Image.new("RGB", (40, 40), (90, 20, 60)))
    assert maps.contribution.shape[1] == 3 and maps.contribution.std() > 0
    with pytest.raises(InputError, match="mmrl does more inside the towers than low-rank updates, which"):
        export_towers(model, tmp_path / "towers.safetensors")
