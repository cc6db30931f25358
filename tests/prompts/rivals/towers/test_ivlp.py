"""IVLP, VPT-deep, MaPLe and PromptSRC against towers computed position by position."""

import pytest
import torch
from plain_towers import cosine_logits, cross_entropy, embedded, enclosed, plain_image, plain_text

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.learners.zeroshot import CLIP_SEVEN
from pbprompt.model.predictor import predictive
from pbprompt.prompts.rivals.towers.ivlp import IVLP, MaPLe, PromptSRC
from pbprompt.testing.fits import tiny_vit
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


@pytest.fixture(scope="module")
def data(double):
    torch.manual_seed(3)
    return torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.tensor([0, 2, 1, 0])


def made(kind, backbone, **settings):
    method = build_method(kind, kind.Config(**settings), backbone, seed=1).double()
    method.prepare(NAMES, TEMPLATE)
    torch.manual_seed(0)
    for value in method.parameters():
        value.data += 0.3 * torch.randn_like(value)
    return method


def sentence_features(backbone, sentence):
    words = [embedded(backbone, sentence.replace("{}", name.replace("_", " "))) for name in NAMES]
    return plain_text(backbone, [enclosed(backbone, own) for own in words])


def prompted(method, backbone, rest):
    """Text features with the learned context, the words that are left and the deeper blocks' tokens."""
    names, stop = [embedded(backbone, name.replace("_", " ")) for name in NAMES], embedded(backbone, ".")
    words = [embedded(backbone, rest)] if rest else []
    prompts = [enclosed(backbone, method.context, *words, name, stop) for name in names]
    deeper = {number: method.text_taps.at(number).values for number in method.text_taps.numbers}
    return plain_text(backbone, prompts, tokens=deeper)


def compare(method, backbone, data, images, texts, wanted):
    pixels, labels = data
    learned = [(name, one) for name, one in method.named_parameters() if one.requires_grad]
    gradients = torch.autograd.grad(wanted, [one for _, one in learned])
    states = Encoded(*method.backbone.stem.image(pixels))
    terms = method.loss(method.encoded(Batch(states, labels)), torch.Generator(), 4)
    method.backward(terms)
    torch.testing.assert_close(terms["total"], wanted, rtol=1e-9, atol=0)
    for (name, parameter), gradient in zip(learned, gradients, strict=True):
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        said = predictive(method)(method.backbone.image(pixels)).probabilities.double()
    torch.testing.assert_close(said, cosine_logits(images, texts).softmax(-1).detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("depth", "blocks", "deeper"), [(0, [0, 1, 2], [1, 2, 3]), (2, [0, 1], [1])])
def test_ivlp(double, data, depth, blocks, deeper):
    method = made(IVLP, double, depth=depth, image_tokens=3)
    assert (method.image_taps[0].numbers, method.text_taps.numbers) == (blocks, deeper)
    tokens = {number: method.image_taps[0].at(number).values for number in blocks}
    images = plain_image(double, data[0], tokens=tokens)
    texts = prompted(method, double, "of a")  # two vectors for "a photo"
    wanted = cross_entropy(cosine_logits(images, texts), data[1])
    compare(method, double, data, images, texts, wanted)


def test_maple(double, data):
    method = made(MaPLe, double)
    assert method.image_taps[0].numbers == [0, 1] and method.text_taps.numbers == [1]  # of 3 and of 4 blocks
    maps = [method.image_taps[0].at(number).project for number in (0, 1)]
    sources = [method.context, method.text_taps.at(1).values]
    tokens = {
        number: source @ map_.weight.T + map_.bias
        for number, (source, map_) in enumerate(zip(sources, maps, strict=True))
    }
    images = plain_image(double, data[0], tokens=tokens)
    texts = prompted(method, double, "of a")
    wanted = cross_entropy(cosine_logits(images, texts), data[1])
    compare(method, double, data, images, texts, wanted)


def test_maps_start_alike_but_the_first(double):
    method = build_method(MaPLe, MaPLe.Config(depth=3), double, seed=1)
    first, second, third = (method.image_taps[0].at(number).project.weight for number in range(3))
    assert torch.equal(second, third) and not torch.equal(first, second)
    start = double.token_embedding(torch.tensor(double.tokenizer.encode("a photo"))).float()
    assert torch.equal(method.context.data, start)


def test_the_fingerprint_is_of_all_that_the_images_depend_on(double):
    method = made(MaPLe, double)
    before = method.backbone.fingerprint
    method.context.data += 1
    assert method.backbone.fingerprint != before


def test_vpt_deep(double, data):
    method = made(IVLP, double, image_alone=True, image_tokens=3)
    tokens = {number: method.image_taps[0].at(number).values for number in range(3)}
    images, texts = plain_image(double, data[0], tokens=tokens), sentence_features(double, TEMPLATE)
    wanted = cross_entropy(cosine_logits(images, texts), data[1])
    compare(method, double, data, images, texts, wanted)


def test_promptsrc(double, data):
    method = made(PromptSRC, double, text_weight=2.5, image_weight=1.5)
    tokens = {number: method.image_taps[0].at(number).values for number in method.image_taps[0].numbers}
    images, frozen = plain_image(double, data[0], tokens=tokens), plain_image(double, data[0])
    texts = prompted(method, double, "")
    several = sum(sentence_features(double, sentence) for sentence in CLIP_SEVEN) / len(CLIP_SEVEN)
    logits, guide = cosine_logits(images, texts), cosine_logits(frozen, several)
    p, q = logits.softmax(-1), guide.softmax(-1)

    def apart(one, other):
        rows = [x / x.norm() - y / y.norm() for x, y in zip(one, other, strict=True)]
        return torch.stack(rows).abs().mean()

    held = 2.5 * apart(texts, several) + 1.5 * apart(images, frozen)
    wanted = cross_entropy(logits, data[1]) + held + (q * (q / p).log()).sum() / p.numel()
    compare(method, double, data, images, texts, wanted)


def test_what_is_kept_is_a_mean_over_epochs():
    method = build_method(PromptSRC, PromptSRC.Config(average_at=2.0, average_within=0.7), tiny_vit(), seed=1)
    weights = [torch.tensor(-0.5 * ((epoch - 2) / 0.7) ** 2).exp() for epoch in (1, 2, 3)]
    total = torch.zeros_like(method.context)
    for epoch in range(3):
        method.context.data.fill_(float(epoch))
        total += weights[epoch] / sum(weights) * epoch
        if epoch == 1:  # a checkpoint carries the mean so far
            state = {name: value.clone() for name, value in method.state_dict().items()}
            method = build_method(PromptSRC, method.config, tiny_vit(), seed=2)
            method.load_state_dict(state)
        method.end_epoch(epoch, 3)
    torch.testing.assert_close(method.context.data, total)
    assert not method.average.any()


def test_published_settings():
    told = {
        IVLP: {"learning_rate": 0.0035, "epochs": 5, "batch_size": 4, "tokens": 2, "depth": 12},
        MaPLe: {"learning_rate": 0.0035, "epochs": 5, "batch_size": 4, "tokens": 2, "depth": 9},
        PromptSRC: {"learning_rate": 0.0025, "epochs": 20, "batch_size": 4, "tokens": 4, "depth": 9}
        | {"text_weight": 25.0, "image_weight": 10.0, "average_at": 15.0, "average_within": 1.0},
    }
    for kind, wanted in told.items():
        config = make_config(kind, "published")
        assert {name: getattr(config, name) for name in wanted} == wanted
        assert (config.optimiser, config.warmup_epochs) == ("sgd", 1)
    alone = make_config(IVLP, "published", "vpt-deep")
    assert (alone.image_tokens, alone.learning_rate, alone.depth, alone.epochs) == (8, 0.0025, 12, 5)


def test_bad_settings_are_refused_in_a_sentence():
    with pytest.raises(InputError, match="block 2 does not exist: tiny-vit's image tower has 2 blocks"):
        build_method(MaPLe, make_config(MaPLe, "published"), tiny_vit(), seed=1)
    with pytest.raises(
        InputError, match="words 'a photo' take 2 tokens, but tokens is 3: give more words, or"
    ):
        build_method(IVLP, IVLP.Config(words="a photo", tokens=3), tiny_vit(), seed=1)
