"""SigLIP's folders: the tokenizer, and whatever is wrong, in a line that names the file and the fix."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from siglip_folder import change, sentence_backend, siglip_model, write_siglip

from pbprompt.errors import InputError
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.prompts import named_prompts, text_prompts
from pbprompt.vision.towers.tokenizer import TruncationWarning


@pytest.fixture(scope="module")
def model():
    return siglip_model()


@pytest.fixture
def folder(model, tmp_path) -> Path:
    return write_siglip(tmp_path, model)


def spelled(tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.backend.id_to_token(token) for token in ids]


def test_siglip_2_reads_lower_case_and_punctuation(folder):
    tokenizer = load_backbone(folder).tokenizer
    (prompt,) = text_prompts(tokenizer, ["A photo of a Cat!"])
    assert spelled(tokenizer, prompt) == ["a", "▁photo", "▁of", "▁a", "▁cat", "!", "<eos>"]
    assert spelled(tokenizer, [tokenizer.pad]) == ["<pad>"]
    assert tokenizer.decode(prompt[:-1]) == "a photo of a cat!"


def test_siglip_1_reads_no_punctuation(model, tmp_path):
    tokenizer = load_backbone(write_siglip(tmp_path, model, "SiglipTokenizer")).tokenizer
    assert tokenizer.clean(" A photo, of a\n Cat! ") == "a photo of a cat"
    assert tokenizer.encode(".") == []


def test_a_name_behind_a_context_has_the_space_before_it(folder):
    tokenizer = load_backbone(folder).tokenizer
    (behind,) = named_prompts(tokenizer, ["red_panda"], 2, ending="")
    (before,) = named_prompts(tokenizer, ["red_panda"], 2, "front", ending="")
    assert behind[:2] == before[2:4] == [-1, -2]
    assert spelled(tokenizer, behind[2:]) == ["▁red", "▁panda", "<eos>"]
    assert spelled(tokenizer, before[:2]) == ["red", "▁panda"]
    with pytest.raises(InputError, match="holds no token"):
        named_prompts(tokenizer, ["_"], 2)


def test_a_batch_is_padded_and_a_long_text_cut(folder):
    tokenizer = load_backbone(folder).tokenizer
    with pytest.warns(TruncationWarning, match="101 tokens long"):
        ids, lengths = tokenizer(["a cat", " ".join(["word"] * 100)])
    assert lengths.tolist() == [3, 64] and ids.shape == (2, 64)
    assert ids[0, 2] == ids[1, 63] == tokenizer.eot and set(ids[0, 3:].tolist()) == {tokenizer.pad}


def test_words_begin_with_a_space(folder):
    words = load_backbone(folder).tokenizer.words()
    assert "panda" in words.values() and len(set(words.values())) == len(words)


def test_files_of_two_forms_have_one_fingerprint(folder, tmp_path_factory, model):
    other = tmp_path_factory.mktemp("other")
    write_siglip(other, model)
    assert load_backbone(folder).fingerprint == load_backbone(other).fingerprint
    change(other / "preprocessor_config.json", resample=3)
    assert load_backbone(folder).fingerprint != load_backbone(other).fingerprint


def without(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def changed(file: str, **content: object) -> Callable[[Path], None]:
    return lambda folder: change(folder / file, **content)


def of_tower(tower: str, **content: object) -> Callable[[Path], None]:
    """Spoil one tower's section of the config."""

    def spoil(folder: Path) -> None:
        section = json.loads((folder / "config.json").read_text())[tower]
        change(folder / "config.json", **{tower: section | content})

    return spoil


def without_tensor(key: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        del state[key]
        save_file(state, folder / "model.safetensors")

    return spoil


def clip_weights(folder: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(text_config={**sizes, "vocab_size": 600}, vision_config={**sizes, "image_size": 32})
    CLIPModel(config).save_pretrained(folder / "clip")
    (folder / "clip" / "model.safetensors").replace(folder / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without("config.json"), "expected open_clip_config.json"),
        (without("tokenizer.json"), "lacks tokenizer.json"),
        (without("tokenizer_config.json"), "lacks tokenizer_config.json"),
        (changed("tokenizer_config.json", eos_token="</s>"), "eos_token is '</s>'"),
        (changed("tokenizer_config.json", padding_side="both"), "padding_side is 'both'"),
        (changed("tokenizer.json", model=3), "tokenizer.json: not readable"),
        (changed("config.json", model_type="clip"), "model_type is 'clip', but the tensors are SigLIP's"),
        (changed("config.json", model_type="siglip2"), "give a model of a fixed resolution"),
        (changed("preprocessor_config.json", resample=0), "resample is 0"),
        (changed("preprocessor_config.json", size={"height": 48, "width": 48}), "size is"),
        (of_tower("vision_config", hidden_size=48), "the config says vision.width is 48"),
        (of_tower("vision_config", image_size=64), "images of 64 pixels are expected (by config.json"),
        (of_tower("vision_config", image_size="big"), "big"),
        (of_tower("text_config", num_attention_heads=5), "the config says 5 heads"),
        (of_tower("text_config", vocab_size=700), "the config says text.vocab_size is 700"),
        (of_tower("text_config", hidden_act="gelu"), "hidden_act is 'gelu'"),
        (of_tower("text_config", layer_norm_eps=1e-5), "layer_norm_eps is 1e-05"),
        (without_tensor("text_model.head.bias"), "lacks the tensor text_head.bias"),
        (without_tensor("logit_bias"), "lacks the tensor logit_bias"),
        (without_tensor("text_model.encoder.layers.0.mlp.fc1.weight"), "lacks the tensor"),
        (clip_weights, "model_type is 'siglip'"),
    ],
)
def test_what_is_wrong_is_one_sentence(folder, spoil, message):
    spoil(folder)
    with pytest.raises(InputError) as caught:
        load_backbone(folder)
    said = str(caught.value)
    assert message in said and "\n" not in said and str(folder) in said and len(said) < 400


def test_a_sentencepiece_model_alone_is_not_read(folder):
    (folder / "tokenizer.json").replace(folder / "spiece.model")
    with pytest.raises(InputError, match=r"lacks tokenizer\.json.*spiece\.model alone is not read.*fetch it"):
        load_backbone(folder)


def test_a_tokenizer_of_more_tokens_than_the_model(folder):
    backend = sentence_backend()
    backend.add_tokens([f"word{number}" for number in range(600)])
    backend.save(str(folder / "tokenizer.json"))
    with pytest.raises(InputError, match=r"tokenizer\.json: has token ids up to"):
        load_backbone(folder)


def test_without_the_library_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"needs tokenizers: pip install .*siglip"):
        load_backbone(folder)


def test_weights_alone_ask_for_their_folder(folder, tmp_path_factory):
    alone = tmp_path_factory.mktemp("alone") / "model.safetensors"
    (folder / "model.safetensors").replace(alone)
    with pytest.raises(InputError, match=r"a SigLIP model needs config\.json beside it"):
        load_backbone(alone)
