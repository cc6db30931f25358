"""Settings: frozen dataclasses, to and from plain dictionaries, changed by `key=value`."""

import json
import reprlib
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from pbprompt.errors import InputError, first_line, suggest

C = TypeVar("C")
MOST_VALUES = 100_000  # of a YAML file, some four seconds; sentences for a thousand classes are half of that
_short = reprlib.Repr()  # what an error quotes
_short.maxlevel, _short.maxstring, _short.maxother = 3, 200, 200


class _Plain(yaml.SafeLoader):
    """Without aliases, by which few bytes are gigabytes once they are written out; of so many values at most,
    and no key twice."""

    _values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias (*name): write out what it stands for")
        self._values += 1
        if self._values > MOST_VALUES:
            raise yaml.YAMLError(f"over {MOST_VALUES:,} values: write less")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys):
            twice = max(keys, key=keys.count)
            raise yaml.YAMLError(f"{_short.repr(twice)} is there twice: keep one")
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """What a text of YAML says, or a `YAMLError`: see `_Plain`."""
    if text.startswith("[["):  # lists of sentences may be pages, which JSON reads in a thousandth of the time
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    try:
        return yaml.load(text, _Plain)
    except (ValueError, AttributeError, RecursionError) as error:  # 2024-13-45 is no day, `[[[[…` too deep
        raise yaml.YAMLError(first_line(error)) from None


def from_dict(kind: type[C], values: Mapping[str, Any], noun: str = "setting", inside: str = "") -> C:
    """A dataclass from plain values; a key that is unknown or missing, or a wrong value, is an error.

    `noun` is what errors call a field, `inside` the dotted path to the dataclass within another.
    """
    hints = get_type_hints(kind)
    for key in values:
        if key not in hints:
            raise InputError(f"unknown {noun} {inside + key!r}: {suggest(key, hints)}")
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise InputError(f"{noun} {inside + item.name!r} is missing: give it")
    return kind(**{key: _fit(inside + key, value, hints[key], noun) for key, value in values.items()})


def to_dict(config: Any) -> dict[str, Any]:
    """Settings as plain values, as JSON has them: lists for tuples."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return values


def with_overrides(config: C, overrides: Iterable[str]) -> C:
    """Settings changed by `key=value` words; values are read as YAML scalars."""
    hints = get_type_hints(type(config))
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals:
            raise InputError(f"override {word!r}: write it as key=value")
        if key not in hints:
            raise InputError(f"override {word!r}: unknown setting {key!r}: {suggest(key, hints)}")
        try:
            value = read_yaml(text)
        except yaml.YAMLError:
            value = text
        if hints[key] is str and not isinstance(value, str):
            value = text  # words that YAML takes for something else: none at all, no, 2
        config = replace(config, **{key: _fit(key, value, hints[key])})  # type: ignore[type-var]
    return config


def describe(config: Any) -> list[tuple[str, Any, str]]:
    """(name, value, help) of each setting; the help is the field's metadata."""
    return [(item.name, getattr(config, item.name), item.metadata.get("help", "")) for item in fields(config)]


def _fit(key: str, value: Any, hint: Any, noun: str = "setting") -> Any:
    """The value in the field's type, or an error that says what would fit."""
    origin = get_origin(hint)
    if origin is Literal:
        if value not in get_args(hint):
            choices = ", ".join(map(str, get_args(hint)))
            raise InputError(f"{noun} {key!r} is {_short.repr(value)}: choose one of {choices}")
        return value
    if origin in (Union, types.UnionType):
        for option in get_args(hint):
            try:
                return _fit(key, value, option, noun)
            except InputError:
                continue
    elif hint is Any:
        return value
    elif origin in (tuple, list) and isinstance(value, list | tuple):  # tuple[kind, ...]
        return origin(_fit(key, one, get_args(hint)[0], noun) for one in value)
    elif origin in (Mapping, dict) and isinstance(value, Mapping):
        return {name: _fit(f"{key}.{name}", one, get_args(hint)[1], noun) for name, one in value.items()}
    elif is_dataclass(hint) and isinstance(value, Mapping):
        return from_dict(hint, value, noun, f"{key}.")  # type: ignore[arg-type]
    elif hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3 as a word
        except (ValueError, OverflowError):
            pass
    elif hint is type(None) and value is None:
        return None
    elif isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    wanted = getattr(hint, "__name__", str(hint))
    raise InputError(f"{noun} {key!r} is {_short.repr(value)}: it takes {wanted}")
