"""The captions and words nearest to prompts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.apps.explain.prompts import nearest_captions, nearest_words, read_captions, sampled_prompts
from pbprompt.errors import InputError
from pbprompt.learners.method import build_method, make_config
from pbprompt.registry import find_method
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.tokenizer import Tokenizer

SPELLED = ("cat", "Fire_Engine", "sea horse")


def fitted_conjugate(backbone, *settings):
    kind = find_method("conjugate")
    method = build_method(kind, make_config(kind, overrides=settings), backbone, seed=1)
    method.prepare(SPELLED, "a photo of a {}.")
    images = torch.randn(12, backbone.embed_dim, generator=torch.Generator().manual_seed(0))
    method.begin(Encoded(images, images.unsqueeze(1)), torch.arange(12) % 3)
    return method


def test_a_name_that_is_read_once_is_one_prompt_however_many_classifiers_use_it(tiny_vit):
    method = fitted_conjugate(tiny_vit)
    assert len(method.class_features(2, torch.Generator())) > 1
    assert len(sampled_prompts(method, samples=2, seed=0)) == 1


def test_a_model_without_names_has_no_prompts_to_show(tiny_vit):
    with pytest.raises(InputError, match="conjugate was fitted without class names and has no prompts"):
        sampled_prompts(fitted_conjugate(tiny_vit, "prior=none"), samples=2, seed=0)


CLASSES = ("cat", "dog", "fire engine")
CAPTIONS = ["a small grey cat", "two dogs on a beach", "a red engine", "nothing at all", "a cat and a dog"]


def made(backbone, name="pbprompt"):
    kind = find_method(name)
    method = build_method(kind, make_config(kind), backbone, seed=1)
    method.prepare(CLASSES, "a photo of a {}.")
    return method


def sentence_feature(backbone, text):
    """The plain tower over every position, in float64."""
    ids, lengths = backbone.tokenizer([text])
    return backbone.text(backbone.token_embedding(ids), lengths)[0].numpy()


def test_the_ranking_by_hand(double_vit):
    method = made(double_vit)
    found = nearest_captions(method, CAPTIONS, top_k=3, samples=2, seed=7)
    prompts = method.class_features(2, torch.Generator().manual_seed(7)).detach().numpy()
    features = [sentence_feature(double_vit, text) for text in CAPTIONS]
    assert [(one.class_name, one.sample) for one in found] == [(c, s) for c in CLASSES for s in range(2)]
    for one in found:
        g = prompts[one.sample, CLASSES.index(one.class_name)]
        cosines = [g @ f / np.linalg.norm(g) / np.linalg.norm(f) for f in features]
        order = sorted(range(5), key=lambda k: -cosines[k])[:3]
        assert [text for text, _ in one.captions] == [CAPTIONS[k] for k in order]
        np.testing.assert_allclose([c for _, c in one.captions], [cosines[k] for k in order], atol=1e-8)


def test_each_prompt_has_the_word_nearest_to_each_of_its_tokens(tiny_vit):
    method = made(tiny_vit)
    found = nearest_captions(method, CAPTIONS, ["dog"], samples=2, seed=7)
    vectors = method.prompt_vectors(2, torch.Generator().manual_seed(7)).detach()
    vectors = vectors.expand(-1, len(CLASSES), -1, -1)[:, CLASSES.index("dog")]
    assert len(found) == len(vectors) == 2
    for one, own in zip(found, vectors, strict=True):
        assert one.words == tuple(best for (best,) in nearest_words(tiny_vit, own, top_k=1))
        assert [word["text"] for word in one.to_dict()["words"]] == [word for word, _ in one.words]
    assert not nearest_captions(made(tiny_vit, "zeroshot"), CAPTIONS)[0].words


@pytest.mark.parametrize("name", ["plot", "vpt", "coop"])
def test_every_prompt_has_words(name, tiny_vit):
    method = made(tiny_vit, name)
    found = nearest_captions(method, CAPTIONS, samples=3)
    assert len(found) == 3 * {"plot": 4, "vpt": 3, "coop": 1}[name]
    assert {len(one.words) for one in found} == {method.config.tokens}


def test_chosen_classes_and_more_wanted_than_there_are(tiny_vit):
    found = nearest_captions(made(tiny_vit, "coop"), CAPTIONS, ["Fire_engine"], top_k=50)
    assert len(found) == 1 and found[0].class_name == "fire engine"
    assert sorted(text for text, _ in found[0].captions) == sorted(CAPTIONS)


def test_prompts_that_wait_for_images_have_no_captions(tiny_vit):
    with pytest.raises(InputError, match="cocoop makes its prompts anew"):
        nearest_captions(made(tiny_vit, "cocoop"), CAPTIONS)


def test_blank_lines_and_repetitions_are_left_out(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_bytes("\ufeffa  cat \r\n\r\n un café\na cat\n".encode())
    assert read_captions(path, Tokenizer()) == ["a cat", "un café"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a cat\n\n" + b"very " * 90 + b"long\n", r"captions.txt:3: the caption takes 91 tokens.*reads 75"),
        (b"\n  \n", r"captions.txt: holds no captions"),
        (b"a cat\n\xff\xfe\n", r"captions.txt: not UTF-8"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path, content, says):
    path = tmp_path / "captions.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_captions(path, Tokenizer())


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"absent.txt: No such file"):
        read_captions(tmp_path / "absent.txt", Tokenizer())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=40), max_size=6))
def test_any_text_is_read_or_refused_in_one_line(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("any") / "captions.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    try:
        found = read_captions(path, Tokenizer())
    except InputError as error:
        assert str(path) in str(error) and len(str(error).splitlines()) == 1
    else:
        assert (
            found and all(text == " ".join(text.split()) for text in found) and len(set(found)) == len(found)
        )


def test_a_search_by_hand(tiny_vit):
    vectors = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    found = nearest_words(tiny_vit, vectors, top_k=4)
    words = tiny_vit.tokenizer.words()
    table = tiny_vit.textual.token_embedding.weight.double().numpy()
    for vector, own in zip(vectors.double().numpy(), found, strict=True):
        cosines = {
            token: vector @ table[token] / np.linalg.norm(vector) / np.linalg.norm(table[token])
            for token in words
        }
        best = sorted(cosines, key=lambda token: -cosines[token])[:4]
        assert [word for word, _ in own] == [words[token] for token in best]
        np.testing.assert_allclose([c for _, c in own], [cosines[token] for token in best], atol=1e-5)


def test_prompts_that_start_at_words_are_those_words(tiny_vit):
    for name, latent in (("pbprompt", 1), ("coop", 0)):
        kind = find_method(name)
        config = make_config(kind, overrides=["words=a photo of a"])
        method = build_method(kind, config, tiny_vit, seed=1)
        method.prepare(("cat", "dog"), "")
        vectors = method.prompt_vectors(3, torch.Generator().manual_seed(0)).detach()
        assert vectors.shape == ((3, 2, 5, 64) if latent else (1, 1, 4, 64))
        found = nearest_words(tiny_vit, vectors[-1, -1], top_k=1)
        assert [own[0][0] for own in found][latent:] == ["a", "photo", "of", "a"]


def test_only_readable_tokens_are_words():
    words = Tokenizer().words()
    assert {"cat", "photo", "café", "7", "a"} <= set(words.values())
    assert all(
        word and word.isalnum() and word == word.lower() and "\ufffd" not in word for word in words.values()
    )
    tokenizer = Tokenizer()
    assert tokenizer.sos not in words and tokenizer.eot not in words and tokenizer.encode(".")[0] not in words
    for token in list(words)[::997]:
        assert tokenizer.decode([token]) == words[token] + " "
    assert tokenizer.encode("cat") == [token for token, word in words.items() if word == "cat"]
