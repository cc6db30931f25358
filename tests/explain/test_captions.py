"""Nearest captions, against a ranking by hand; and files of captions, good and bad."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.clip.tokenizer import Tokenizer
from pbprompt.errors import InputError
from pbprompt.explain.captions import nearest_captions, read_captions
from pbprompt.methods.base import build_method, make_config
from pbprompt.registry import find_method

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
