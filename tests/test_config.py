"""Settings: round trips, `key=value` words and errors that say what would fit."""

import json
import math
from dataclasses import dataclass, field
from typing import Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt import config
from pbprompt.config import describe, from_dict, read_yaml, to_dict, with_overrides
from pbprompt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Shape:
    learning_rate: float = field(default=0.5, metadata={"help": "how fast"})
    epochs: int = 3
    residual: bool = False
    words: str = "a photo of a"
    plan: Literal["ct", "ot"] = "ct"
    limit: int | None = None


def changed(*words):
    return with_overrides(Shape(), words)


def test_round_trip_through_json():
    config = Shape(learning_rate=1e-3, words="", plan="ot", limit=7)
    assert from_dict(Shape, json.loads(json.dumps(to_dict(config)))) == config


def test_missing_keys_keep_their_defaults():
    assert from_dict(Shape, {"epochs": 9}) == Shape(epochs=9)


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("learning_rate=1e-3", "learning_rate", 0.001),
        ("learning_rate=2", "learning_rate", 2.0),
        ("epochs=12", "epochs", 12),
        ("residual=true", "residual", True),
        ("residual=no", "residual", False),
        ("words=", "words", ""),
        ("words=''", "words", ""),
        ("words=this is a", "words", "this is a"),
        ("words=no", "words", "no"),
        ("words=2024-13-45", "words", "2024-13-45"),
        ("words=a=b", "words", "a=b"),
        ("words=[", "words", "["),
        ("plan=ot", "plan", "ot"),
        ("limit=4", "limit", 4),
        ("limit=null", "limit", None),
    ],
)
def test_a_word_sets_one_field(word, key, value):
    found = changed(word)
    assert getattr(found, key) == value and type(getattr(found, key)) is type(value)
    assert to_dict(found) == to_dict(Shape()) | {key: value}


def test_later_words_win():
    assert changed("epochs=1", "residual=true", "epochs=2") == Shape(epochs=2, residual=True)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("epochs", "key=value"),
        ("epoch=3", "did you mean 'epochs'"),
        ("zzz=3", "known are learning_rate, epochs"),
        ("epochs=1.5", "it takes int"),
        ("epochs=true", "it takes int"),
        ("learning_rate=true", "it takes float"),
        ("learning_rate=fast", "'fast': it takes float"),
        ("learning_rate=" + "9" * 400, "it takes float"),
        ("learning_rate=", "it takes float"),
        ("residual=1", "it takes bool"),
        ("plan=xt", "choose one of ct, ot"),
        ("plan=", "choose one of ct, ot"),
        ("limit=soon", "int | None"),
    ],
)
def test_bad_words_say_what_would_fit(word, says):
    with pytest.raises(InputError) as error:
        changed(word)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_bad_dictionaries():
    with pytest.raises(InputError, match="did you mean 'residual'"):
        from_dict(Shape, {"residuals": True})
    with pytest.raises(InputError, match="'words' is 3: it takes str"):
        from_dict(Shape, {"words": 3})


def test_describe():
    rows = describe(Shape(epochs=8))
    assert rows[0] == ("learning_rate", 0.5, "how fast") and rows[1] == ("epochs", 8, "")
    assert [name for name, _, _ in rows] == list(to_dict(Shape()))


@settings(deadline=None, max_examples=200)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_survives(value):
    assert changed(f"learning_rate={value!r}").learning_rate == value


@settings(deadline=None, max_examples=100)
@given(st.integers(-(10**18), 10**18), st.booleans())
def test_whole_numbers_and_truths_survive(number, truth):
    found = changed(f"epochs={number}", f"residual={str(truth).lower()}")
    assert found.epochs == number and found.residual is truth


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(to_dict(Shape()))) | st.text(max_size=8), st.text(max_size=20))
def test_any_word_either_fits_or_is_an_input_error(key, text):
    try:
        found = changed(f"{key}={text}")
    except InputError:
        return
    name = f"{key}={text}".partition("=")[0]
    value = to_dict(found)[name]
    assert from_dict(Shape, to_dict(found)) == found or math.isnan(value)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "- " * 50_000, "2024-13-45", "!!timestamp x", "!!int x", "9" * 10_000]
)
def test_what_yaml_cannot_make_is_an_error_of_its_own(text):
    with pytest.raises(yaml.YAMLError):
        read_yaml(f"a: {text}")


def test_yaml_of_very_many_values_or_with_a_key_twice_is_refused(monkeypatch):
    monkeypatch.setattr(config, "MOST_VALUES", 100)
    assert read_yaml("a: [" + "[]," * 90 + "]") == {"a": [[]] * 90}
    with pytest.raises(yaml.YAMLError, match="over 100 values"):
        read_yaml("a: [" + "[]," * 100 + "]")
    assert read_yaml("1: x\na: {b: 1, c: {b: 2}}") == {1: "x", "a": {"b": 1, "c": {"b": 2}}}
    with pytest.raises(yaml.YAMLError, match="'cat' is there twice: keep one"):
        read_yaml("dog: w\ncat: x\ncat: y")


def test_aliases_that_write_out_to_gigabytes_are_refused_and_errors_quote_little():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(yaml.YAMLError, match="an alias"):
        read_yaml("\n".join(levels))
    deep = ["x" * 10_000] * 1000
    for _ in range(20):
        deep = [deep] * 10
    with pytest.raises(InputError) as caught:
        from_dict(Shape, {"epochs": deep})
    assert len(str(caught.value)) < 500
