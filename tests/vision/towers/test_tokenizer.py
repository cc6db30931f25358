"""The tokeniser against transformers', on files written here from the merges themselves."""

import gzip
import json
import pickle
import unicodedata
import warnings
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.errors import InputError
from pbprompt.vision.towers.prompts import named_prompts, text_prompts
from pbprompt.vision.towers.tokenizer import Tokenizer, TruncationWarning, clean

NASTY = [
    "",
    " ",
    "\t\n\r ",
    "a",
    "a photo of a cat.",
    "A PHOTO of A CaT!!!",
    "  many   spaces\there\nand\r\nthere  ",
    "it's you're I've I'm he'll she'd don't 'S 'RE 'quoted' ''''",
    "1234567890 3.14159 1,000,000 2nd 0x1F Ⅷ ½ ² ٣ ๓",
    "Boeing 737-800 / MD-11 & DR-400",
    "café naïve coöperate Ångström",
    "cafe\u0301 combining e\u0301\u0301",
    "ﬁne ﬂuﬀy ligatures",
    "ＦＵＬＬ ｗｉｄｔｈ",
    "“curly” ‘quotes’ — dashes – … ‹›«»",
    "&amp; &lt;b&gt; &quot;x&quot; &#39;y&#39; &nbsp; &eacute; &#x1F600; &notanentity;",
    "&amp;amp; &amp;lt; &amp;amp;amp;",
    "<p>html</p> <br/> <!-- comment -->",
    "sÃ© mojibake doesnâ€™t",
    "😀 😃😄 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ❤️ ☃",
    "日本語のテキスト 中文字符 한국어 문장",
    "Привет, мир! Ελληνικά ΟΔΟΣ İstanbul ıI ß ẞ ǅ",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดี",
    "mixedΑΒΓabcабв123一二三",
    "\x00\x01\x02 control \x7f \x85 \x1b[31mred\x1b[0m",
    "zero\u200bwidth\u200djoin\ufeffbom soft\u00adhyphen",
    "\u202eright to left\u202c \u2028line\u2029para",
    "\ud800 lone \udfff surrogates",
    "\ufffd \uffff \U0010ffff \ue000",
    "under_score snake_case_name CamelCaseName",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?`~",
    "...---===+++ ?!?!?!",
    "http://example.org/path?query=1&b=2#frag user@example.org",
    "C:\\path\\to\\file $HOME ~/.cache",
    "</w> a</w> <|notaspecial|> <| |>",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "x" * 3000,
    "ab" * 500 + " " + "é" * 500,
    "word " * 1000,
    "a centered satellite photo of annual crop land.",
    "a photo of a 2012 Ferrari FF Coupe, a type of car.",
    "black-eyed susan, bird of paradise, canna lily",
    "H₂O CO₂ x² ∑∏∫ ≤≥≠ √2 π≈3.14 µm °C №5 ™®©",
    "z̸̢͎̈́a̷̰͗l̶̺̽g̴̮̈́o̶̧̕",
]


@pytest.fixture(scope="module", params=[49408, 16514, 600], ids=lambda size: f"vocab{size}")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Ours, and transformers' on the vocabulary files of the same size."""
    size = request.param
    folder = tmp_path_factory.mktemp("clip")
    packed = files("pbprompt.vision.towers") / "assets" / "bpe_simple_vocab_16e6.txt.gz"
    with packed.open("rb") as raw, gzip.open(raw, "rt", encoding="utf-8") as lines:
        merges = [line.rstrip("\n") for line in islice(lines, 1, 1 + size - 514)]
    from transformers import CLIPTokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    words = letters + [f"{letter}</w>" for letter in letters] + [merge.replace(" ", "") for merge in merges]
    words += ["<|startoftext|>", "<|endoftext|>"]
    assert len(words) == size
    (folder / "vocab.json").write_text(json.dumps({word: k for k, word in enumerate(words)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    return Tokenizer(size), CLIPTokenizer.from_pretrained(folder)


def theirs(reference: Any, text: str) -> list[int]:
    return reference(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_identical_to_transformers(pair, text: str) -> None:
    ours, reference = pair
    assert ours.encode(text) == theirs(reference, clean(text))


def comparable(text: str) -> bool:
    """Whether transformers' normalisation keeps a cleaned text, and both know its characters.

    Libraries follow different versions of Unicode, but all of them know what the oldest one knew.
    """
    return (
        unicodedata.normalize("NFC", text) == text
        and "ſ" not in text  # OpenAI's pattern ignores case, so that 'ſ is 's; transformers' does not
        and not any(unicodedata.ucd_3_2_0.category(letter) == "Cn" for letter in text)
    )


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60) | st.text(alphabet="abcdeST '’&;#<|>1!é\u00a0😀\n", max_size=40))
def test_identical_to_transformers_on_any_text(pair, text: str) -> None:
    ours, reference = pair
    cleaned = clean(text)
    if comparable(cleaned):
        assert ours.encode(text) == theirs(reference, cleaned)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_decode_spells_the_cleaned_text(text: str) -> None:
    tokenizer = Tokenizer()
    without_spaces = "".join(clean(text).split())
    assert "".join(tokenizer.decode(tokenizer.encode(text)).split()) == without_spaces


def test_known_ids_of_openai() -> None:
    ids, lengths = Tokenizer()(["a photo of a cat.", "Motorbike", ""])
    assert ids.shape == (3, 77) and ids.dtype == torch.long
    assert lengths.tolist() == [8, 3, 2]
    assert ids[0, :9].tolist() == [49406, 320, 1125, 539, 320, 2368, 269, 49407, 0]
    assert ids[1, :4].tolist() == [49406, 33341, 49407, 0]
    assert ids[2, :3].tolist() == [49406, 49407, 0]


def test_ids_of_the_embedded_model() -> None:
    check = json.loads((Path(__file__).parent / "lite_check.json").read_text())
    tokenizer = Tokenizer(16514, 32)
    for case in check["texts"]:
        ids, lengths = tokenizer(case["text"])
        assert ids[0, : lengths[0]].tolist() == case["ids"]
        assert not ids[0, lengths[0] :].any()


def test_special_strings_are_tokens() -> None:
    tokenizer = Tokenizer()
    assert tokenizer.encode("cat<|startoftext|>dog <|ENDOFTEXT|>") == [2368, 49406, 1929, 49407]
    assert tokenizer.decode([49406, 2368, 49407]) == "<|startoftext|>cat <|endoftext|>"


def test_length_ends_at_the_first_eot() -> None:
    """CLIP reads the feature at the first EOT, also where the text spells one out."""
    ids, lengths = Tokenizer()("cat <|endoftext|> dog")
    assert ids[0, :5].tolist() == [49406, 2368, 49407, 1929, 49407]
    assert lengths.tolist() == [3]


def test_decode_replaces_broken_bytes() -> None:
    tokenizer = Tokenizer()
    first, *_ = tokenizer.encode("\ue000")
    assert tokenizer.decode([first]) == "\ufffd"
    assert tokenizer.decode(torch.tensor([2368])) == "cat "


def test_cutting_is_reported_and_keeps_eot() -> None:
    tokenizer = Tokenizer(context_length=8)
    long = "one two three four five six seven"
    with pytest.warns(TruncationWarning, match=r"'one two three four five six seven' is 9 tokens.*holds 8"):
        ids, lengths = tokenizer(["cat", long])
    assert ids[1].tolist() == [49406, *tokenizer.encode(long)[:6], 49407]
    assert lengths.tolist() == [3, 8]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer("one two three four five six")


def test_no_texts() -> None:
    ids, lengths = Tokenizer()([])
    assert ids.shape == (0, 77) and lengths.shape == (0,)


@pytest.mark.parametrize(("size", "context"), [(513, 77), (600, 1), (0, 77)])
def test_impossible_sizes_are_refused(size: int, context: int) -> None:
    with pytest.raises(InputError, match="at least"):
        Tokenizer(size, context)


def test_more_merges_than_there_are() -> None:
    with pytest.raises(InputError, match="larger than CLIP's merges"):
        Tokenizer(300_000).encode("cat")


def test_travels_between_processes() -> None:
    assert pickle.loads(pickle.dumps(Tokenizer(600, 16))) == Tokenizer(600, 16)


def test_a_special_in_a_class_name_is_text() -> None:
    tokenizer = Tokenizer()
    (named,), (plain,) = (named_prompts(tokenizer, [name], 0) for name in ("cat <|endoftext|> dog", "cat"))
    assert named.count(tokenizer.eot) == plain.count(tokenizer.eot) == 1
    (text,) = text_prompts(tokenizer, ["a photo of a <|endoftext|>."])
    assert text.index(tokenizer.eot) == len(text) - 1
