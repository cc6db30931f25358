"""CLIP-LoRA against towers computed position by position with the updates in their weights."""

import json
from dataclasses import replace

import pytest
import torch
from plain_towers import cosine_logits, cross_entropy, embedded, enclosed, plain_image, plain_text
from safetensors.torch import load, save

from pbprompt.apps.batch import BatchJob, answers
from pbprompt.apps.export import ImageClassifier, export_towers
from pbprompt.errors import InputError
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.model.evaluate import calibrate_and_evaluate, evaluate
from pbprompt.model.folder import describe_model
from pbprompt.model.manifest import CONFIG, HASHES, WEIGHTS, hashes
from pbprompt.model.predictor import predictive
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.rivals.coop import CoOp
from pbprompt.prompts.rivals.towers.clip_lora import CLIPLoRA, CLIPLoRAConfig
from pbprompt.testing.fits import fitted, tiny_vit
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.backbone import BackboneConfig, Encoded, random_backbone
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

NAMES = ["cat", "golden_retriever", "forklift truck driver"]
TEMPLATE = "a photo of a {}, a thing."


@pytest.fixture(scope="module")
def double():
    text = TextConfig(context_length=20, vocab_size=49408, width=64, heads=4, layers=3)
    return random_backbone(BackboneConfig("double", 32, VitConfig(32, 16, 64, 2, 4), text)).to(torch.float64)


def made(backbone, **settings):
    method = build_method(CLIPLoRA, CLIPLoRAConfig(dropout=0.0, **settings), backbone, seed=1).double()
    method.prepare(NAMES, TEMPLATE)
    torch.manual_seed(0)
    for name, value in method.named_parameters():
        if name.endswith("up"):
            value.data.normal_(std=0.3)
    return method


def updates(taps, parts="qkv", rank=2):
    """By their formula: α/√r · B A."""
    return {
        (number, part): taps.at(number).up[at] @ taps.at(number).down[at] / rank**0.5
        for number in taps.numbers
        for at, part in enumerate(parts)
    }


@pytest.mark.parametrize("towers", ["both", "image", "text"])
def test_loss_and_gradient(double, towers):
    method = made(double, towers=towers)
    pixels = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 0])
    image = updates(method.image_taps[0]) if towers != "text" else {}
    text = updates(method.text_taps) if towers != "image" else {}
    words = [TEMPLATE.replace("{}", name.replace("_", " ")) for name in NAMES]
    prompts = [enclosed(double, embedded(double, sentence)) for sentence in words]
    logits = cosine_logits(plain_image(double, pixels, image), plain_text(double, prompts, text))
    wanted = cross_entropy(logits, labels)
    learned = list(method.parameters())
    gradients = torch.autograd.grad(wanted, learned)

    frozen = double.image(pixels)
    states = method.backbone.stem.image(pixels) if towers != "text" else frozen
    terms = method.loss(method.encoded(Batch(Encoded(*states), labels)), torch.Generator(), 4)
    method.backward(terms)
    torch.testing.assert_close(terms["total"], wanted, rtol=1e-9, atol=0)
    for parameter, gradient in zip(learned, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-10)
    with torch.no_grad():
        said = predictive(method)(method.backbone.image(pixels)).probabilities
    torch.testing.assert_close(said.double(), logits.softmax(-1).detach(), rtol=1e-5, atol=1e-6)


def test_published_settings_and_parameters():
    config = make_config(CLIPLoRA, "published")
    told = (config.optimiser, config.learning_rate, config.weight_decay, config.batch_size, config.rank)
    assert told == ("adamw", 2e-4, 1e-2, 32, 2)
    assert (config.dropout, config.parts, config.towers, config.anneal) == (0.25, "qkv", "both", "step")
    method = fitted(CLIPLoRA, {}, tiny_vit(), steps=0)
    assert [method.budget_for(shots) for shots in (1, 4, 16)] == [500, 2000, 8000]
    # A and B of q, k and v in two image and three text blocks of width 64
    assert method.counted_parameters() == 5 * 3 * 2 * 2 * 64


def test_bad_settings_are_refused_in_a_sentence():
    with pytest.raises(InputError, match="'parts' is 'qx': give some of q, k, v and o"):
        CLIPLoRAConfig(parts="qx")
    with pytest.raises(InputError, match="'last' is 3: tiny-vit's image tower has 2 blocks"):
        build_method(CLIPLoRA, CLIPLoRAConfig(last=3), tiny_vit(), seed=1)


@pytest.fixture(scope="module")
def few():
    whole = open_dataset("sample:fluent")
    whole = replace(whole, test=whole.test[::8])  # the tower takes longer than all else here
    return draw(whole, 1, seed=1).apply(whole)


@pytest.fixture(scope="module")
def tuned(few):
    settings = CLIPLoRAConfig(budget=3, learning_rate=0.02, last=1, batch_size=16)
    bank = FeatureCache(load_backbone("lite-vit"), progress=False)
    model = TunedModel.fit(few, bank, CLIPLoRA, settings, FitOptions(progress=False))
    return calibrate_and_evaluate(model, few, bank)


def test_a_tuned_model_is_a_model_as_any_other(few, tuned, tmp_path):
    """Its folder finds the frozen towers; files are seen by the tuned ones; zero-shot stays the frozen's."""
    tuned.save(tmp_path / "model")
    about = json.loads((tmp_path / "model" / CONFIG).read_text(encoding="utf-8"))
    assert about["backbone"]["name"] == "lite-vit"
    loaded = TunedModel.load(tmp_path / "model")
    assert loaded.backbone.fingerprint == tuned.backbone.fingerprint != about["backbone"]["fingerprint"]
    paths = [few.root / item.path for item in few.train[:4]]
    said, again = (
        [one.said for one in answers(BatchJob.of(each, Stream(paths)))] for each in (loaded, tuned)
    )
    assert said == again
    plain = TunedModel.zero_shot(load_backbone("lite-vit"), few.classes, few.template)
    figures, _ = evaluate(plain, few.whole, "test", FeatureCache(plain.backbone, progress=False))
    assert tuned.info.metrics["zero_shot"]["nll"] == pytest.approx(figures["nll"], rel=1e-6)
    assert tuned.info.metrics["nll"] != pytest.approx(figures["nll"], rel=1e-3)
    more = loaded.with_classes(["zebra"])
    assert more.backbone.fingerprint == loaded.backbone.fingerprint


@pytest.mark.parametrize("kept", [{}, {"image_taps.0.layers.9.down": torch.zeros(3, 2, 256)}])
def test_taps_that_do_not_fit_their_backbone_are_refused(tuned, tmp_path, kept):

    tuned.save(tmp_path)
    state = load((tmp_path / WEIGHTS).read_bytes()) | kept
    if not kept:
        state = {name.replace("layers.5", "layers.4"): value for name, value in state.items()}
    (tmp_path / WEIGHTS).write_bytes(save(state))
    about = json.loads((tmp_path / CONFIG).read_text(encoding="utf-8"))
    about[HASHES] |= hashes({WEIGHTS: save(state)})
    (tmp_path / CONFIG).write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(InputError, match="does not hold this model's parameters") as raised:
        TunedModel.load(tmp_path)
    assert "\n" not in str(raised.value)


def test_settings_that_do_not_fit_their_backbone_are_refused_by_file(tuned, tmp_path):
    tuned.save(tmp_path)
    about = json.loads((tmp_path / CONFIG).read_text(encoding="utf-8"))
    about["config"]["last"] = 9
    (tmp_path / CONFIG).write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(InputError, match=rf"{CONFIG}: setting 'last' is 9: lite-vit's image tower has 6 bl"):
        TunedModel.load(tmp_path)


def test_the_export_has_the_updates_in_its_weights():
    """What is traced is a tower like the frozen one: `tests/apps/test_export.py` compares what it says."""
    method = fitted(CLIPLoRA, {"learning_rate": 0.1}, tiny_vit())
    model, x = TunedModel(method, describe_model(method)), torch.randn(2, 3, 32, 32)
    traced, frozen = ImageClassifier(model.predictor, torch.float32).visual, tiny_vit().visual
    assert type(traced) is type(frozen)
    assert {name: value.shape for name, value in traced.state_dict().items()} == {
        name: value.shape for name, value in frozen.state_dict().items()
    }
    with torch.no_grad():
        torch.testing.assert_close(traced(x)[0], method.backbone.image(x).global_, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(traced(x)[0], frozen(x)[0], rtol=1e-2)


def test_merged_towers_are_a_checkpoint(tmp_path):
    text = TextConfig(context_length=77, vocab_size=49408, width=64, heads=1, layers=2)
    base = random_backbone(BackboneConfig("small", 32, VitConfig(32, 8, 64, 2, 1), text))
    method = fitted(CLIPLoRA, {"learning_rate": 0.1, "parts": "qkvo"}, base)
    model = TunedModel(method, describe_model(method))
    file = export_towers(model, tmp_path / "towers.safetensors")
    merged, x = load_backbone(file, activation="quick_gelu"), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            merged.image(x).global_, method.backbone.image(x).global_, rtol=1e-4, atol=1e-4
        )
        plain = TunedModel.zero_shot(merged, method.classes, method.template).predictor.bank
        torch.testing.assert_close(plain, model.predictor.bank, rtol=1e-4, atol=1e-4)
    assert merged.logit_scale == pytest.approx(100)


def test_what_cannot_be_merged_says_so(tuned, tmp_path):
    with pytest.raises(InputError, match="lite-vit is no file of OpenAI's layout"):
        export_towers(tuned, tmp_path / "towers.safetensors")
    method = fitted(CoOp, {}, tiny_vit())
    with pytest.raises(InputError, match="coop leaves the towers as they are: there is nothing to merge"):
        export_towers(TunedModel(method, describe_model(method)), tmp_path / "towers.safetensors")
    assert not list(tmp_path.iterdir())
