"""MetaCLIP 2 against transformers' own, from a folder of random weights, and its vocabulary."""

import json

import pytest
import torch
from metaclip_folder import CONTEXT, EOS, PAD, SOS, metaclip_model, write_metaclip, write_metaclip_open_clip
from PIL import Image
from plain_text import plain, relative, with_gradient
from siglip_folder import change

from pbprompt.errors import InputError
from pbprompt.vision.towers.engine import TextEngine, encode_texts
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.prompts import named_prompts, text_prompts

NAMES = ["cat", "golden retriever", "Katze", "猫", "red_panda"]
TEXTS = ["a photo of a cat", "a photo of the golden retriever", "猫"]


@pytest.fixture(scope="module", params=["quick_gelu", "gelu"])
def both(request, tmp_path_factory):
    theirs = metaclip_model(request.param)
    folder = write_metaclip(tmp_path_factory.mktemp("metaclip"), theirs)
    return theirs, load_backbone(folder), folder


def padded(prompts: list[list[int]]) -> torch.Tensor:
    return torch.tensor([[t if t >= 0 else 5 for t in p] + [PAD] * (CONTEXT - len(p)) for p in prompts])


@torch.no_grad()
def test_features_and_logits_are_theirs(both):
    theirs, ours, _ = both
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    ids = padded(text_prompts(ours.tokenizer, TEXTS))
    wanted = theirs(input_ids=ids, pixel_values=pixels)
    image, text = ours.image(pixels).global_, encode_texts(ours, TEXTS)
    assert relative(image, theirs.visual_projection(theirs.vision_model(pixels).pooler_output)) <= 1e-5
    assert relative(text, theirs.text_projection(theirs.text_model(ids).pooler_output)) <= 1e-5
    image, text = (torch.nn.functional.normalize(x, dim=-1) for x in (image, text))
    assert relative(ours.logit_scale * image @ text.T, wanted.logits_per_image) <= 1e-5


def test_gradients_to_injected_embeddings_are_theirs(both):
    theirs, ours, _ = both
    prompts = named_prompts(ours.tokenizer, NAMES, 4)
    context = 0.2 * torch.randn(1, 1, 4, 32, generator=torch.Generator().manual_seed(3))
    weights = torch.randn(1, len(NAMES), 24, generator=torch.Generator().manual_seed(4))
    ids = padded(prompts)

    def inject(module, given, looked_up):
        return torch.cat([looked_up[:, :1], own[0].expand(len(ids), -1, -1), looked_up[:, 5:]], dim=1)

    own = context.clone().requires_grad_()
    handle = theirs.text_model.embeddings.token_embedding.register_forward_hook(inject)
    features = theirs.text_projection(theirs.text_model(ids).pooler_output)
    wanted, wanted_gradient = with_gradient(features[None], own, weights)
    handle.remove()
    own = context.clone().requires_grad_()
    found, gradient = with_gradient(TextEngine(ours, prompts)(own), own, weights)
    assert relative(found, wanted) <= 1e-5
    assert relative(gradient, wanted_gradient) <= 1e-5


def test_the_engine_is_exact(both):
    double = load_backbone(both[2], dtype=torch.float64)
    prompts = named_prompts(double.tokenizer, NAMES, 3)
    context = torch.randn(2, 1, 3, 32, dtype=torch.float64, requires_grad=True)
    features = plain(double, prompts, context)
    weights = torch.randn_like(features)
    wanted, wanted_gradient = with_gradient(features, context, weights)
    found, gradient = with_gradient(TextEngine(double, prompts)(context), context, weights)
    assert relative(found, wanted) <= 1e-10
    assert relative(gradient, wanted_gradient) <= 1e-10


def test_text_is_read_as_it_is_written_between_its_marks(both):
    tokenizer = both[1].tokenizer
    (prompt,) = text_prompts(tokenizer, ["the Katze 猫"])
    assert [tokenizer.backend.id_to_token(t) for t in prompt] == ["<s>", "▁the", "▁Katze", "▁猫", "</s>"]
    (named,) = named_prompts(tokenizer, ["red_panda"], 2, ending="")
    assert (named[0], named[1:3], named[-1], len(named)) == (SOS, [-1, -2], EOS, 6)
    assert tokenizer.decode(prompt[1:-1]) == "the Katze 猫"
    with pytest.warns(UserWarning, match="cut off"):
        ids, lengths = tokenizer(["cat", "word " * 100])
    assert lengths.tolist() == [3, CONTEXT] and ids[1, 0] == SOS and ids[1, -1] == EOS and ids[0, 3] == PAD


def test_open_clips_form_is_the_same_model(both, tmp_path):
    _, ours, folder = both
    quick = ours.config.activation == "quick_gelu"
    other = load_backbone(write_metaclip_open_clip(tmp_path / "open_clip", folder, quick))
    assert other.fingerprint == ours.fingerprint and other.tokenizer.sos == SOS
    assert other.config.vision.hidden == 144


def test_images_are_squashed_or_cropped_as_its_preprocessor_says(both, tmp_path):
    theirs, ours, _ = both
    image = Image.effect_noise((90, 40), 80).convert("RGB")
    assert (
        ours.preprocess.cropper(image).tobytes() == image.resize((32, 32), Image.Resampling.BICUBIC).tobytes()
    )
    folder = write_metaclip(tmp_path, theirs)
    change(folder / "preprocessor_config.json", size={"shortest_edge": 32}, do_center_crop=True, resample=2)
    see = load_backbone(folder).preprocess
    assert (see.fit, see.interpolation, see.resize) == ("crop", "bilinear", None)


def test_a_short_side_longer_than_the_crop_is_another_model(both, tmp_path):
    theirs, _, _ = both
    longer = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True}
    folder = write_metaclip(tmp_path, theirs)
    change(folder / "preprocessor_config.json", **longer | {"size": {"shortest_edge": 32}})
    cropped = load_backbone(folder)
    change(folder / "preprocessor_config.json", **longer)
    ours = load_backbone(folder)
    assert (ours.preprocess.size, ours.preprocess.resize) == (32, 40)
    assert ours.fingerprint != cropped.fingerprint


def test_the_newer_file_of_a_processor_is_read(both, tmp_path):
    theirs, _, _ = both
    folder = write_metaclip(tmp_path, theirs)
    former = folder / "preprocessor_config.json"
    said = {**json.loads(former.read_text()), "resample": 2}
    former.unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": said}))
    assert load_backbone(folder).preprocess.interpolation == "bilinear"
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert load_backbone(folder).preprocess.interpolation == "bicubic"


@pytest.mark.parametrize(
    ("file", "spoiled", "message"),
    [
        ("tokenizer.json", None, "lacks tokenizer.json"),
        ("tokenizer_config.json", {"bos_token": None}, "bos_token is None"),
        ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"}, "XLM-V's vocabulary"),
        ("config.json", {"model_type": "clip"}, "600 tokens"),
        ("preprocessor_config.json", {"size": {"shortest_edge": 48}}, "size is"),
        ("preprocessor_config.json", {"size": 32, "do_center_crop": False}, "without a crop"),
        ("preprocessor_config.json", {"size": 32, "do_center_crop": True, "crop_size": 24}, "size is"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, monkeypatch, file, spoiled, message):
    monkeypatch.setattr("pbprompt.vision.towers.loading.architecture.CLIP_VOCABULARY", 599)
    folder = write_metaclip(tmp_path, metaclip_model())
    if spoiled is None:
        (folder / file).unlink()
    else:
        change(folder / file, **spoiled)
    with pytest.raises(InputError) as caught:
        load_backbone(folder)
    assert message in str(caught.value) and "\n" not in str(caught.value) and str(folder) in str(caught.value)
