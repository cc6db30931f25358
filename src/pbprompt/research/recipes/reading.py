"""Recipes as YAML: those of the package, and one as its dataclass; what is wrong is told with key and fix."""

from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

import yaml

from pbprompt.config import from_dict, read_yaml
from pbprompt.errors import InputError, first_line
from pbprompt.files import read_text

T = TypeVar("T")


def names_in(folder: str = "") -> list[str]:
    """Of the recipes that come with the package, in this folder of it."""
    entries = (entry.name for entry in _packaged(folder).iterdir())
    return sorted(name.removesuffix(".yaml") for name in entries if name.endswith(".yaml"))


def is_file(name_or_path: str) -> bool:
    """Whether a user's own file is meant, and no name."""
    return Path(name_or_path).suffix in (".yaml", ".yml")


def parsed(name_or_path: str, fix: str, folder: str = "") -> tuple[dict[str, Any], str]:
    """The mapping that a user's file or a recipe of the package holds, and where it is."""
    own, where = is_file(name_or_path), name_or_path if is_file(name_or_path) else f"{name_or_path}.yaml"
    text = read_text(Path(where)) if own else (_packaged(folder) / where).read_text(encoding="utf-8")
    try:
        values = read_yaml(text)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not YAML ({first_line(error)}): fix it") from None
    if not isinstance(values, dict):
        raise InputError(f"{where}: not a recipe: {fix}")
    return values, where


def _packaged(folder: str) -> Traversable:
    return files("pbprompt.research.recipes") / folder


def read(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """The values as a dataclass; one word alone is a list of one, where a list is wanted."""
    hints = get_type_hints(kind)
    lists = {
        key: listed(value, where, key) for key, value in values.items() if get_origin(hints.get(key)) is tuple
    }
    try:
        return from_dict(kind, {**values, **lists}, "key")
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def listed(value: Any, where: str, key: str) -> list[Any] | tuple[Any, ...]:
    """The list under a key, which is not empty."""
    values = value if isinstance(value, list | tuple) else [value]
    if (isinstance(values, list) and not values) or None in values:
        raise InputError(f"{where}: {key} is empty: list one or more")
    return values


def words(values: Any, where: str, key: str) -> tuple[str, ...]:
    """A mapping of settings as `key=value` words."""
    if not isinstance(values, dict):
        raise InputError(f"{where}: {key} is {values!r}: write it as {{setting: value}}")
    return tuple(f"{setting}={value}" for setting, value in values.items())


def check_positive(values: Mapping[str, Any], where: str, *keys: str) -> None:
    """Refuse numbers below 1, and what is no whole number."""
    for key in keys:
        if key in values and (type(values[key]) is not int or values[key] < 1):
            raise InputError(f"{where}: {key} is {values[key]!r}: give a whole number above 0")
