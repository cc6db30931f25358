"""Keys and lists of a recipe's YAML, refused with the file, the key and the fix."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import yaml

from pbprompt.config import from_dict
from pbprompt.errors import InputError
from pbprompt.suggest import suggest

T = TypeVar("T")


def parsed(text: str, where: str, fix: str) -> dict[str, Any]:
    """The mapping that a text holds."""
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError: 2024-13-45, no such day
        raise InputError(f"{where}: not YAML ({str(error).splitlines()[0]}): mend it") from None
    if not isinstance(values, dict):
        raise InputError(f"{where}: not a recipe: {fix}")
    return values


def listed(value: Any, where: str, key: str) -> list[Any]:
    """The list under a key; one word alone is a list of one."""
    values = value if isinstance(value, list) else [value]
    if not values or None in values:
        raise InputError(f"{where}: {key} is empty: list one or more")
    return values


def words(values: Any, where: str, key: str) -> tuple[str, ...]:
    """A mapping of settings as `key=value` words."""
    if not isinstance(values, dict):
        raise InputError(f"{where}: {key} is {values!r}: write it as {{setting: value}}")
    return tuple(f"{setting}={value}" for setting, value in values.items())


def typed(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    try:
        return from_dict(kind, values, "key")
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def known_keys(values: Mapping[str, Any], kind: type, where: str) -> None:
    names = [item.name for item in fields(kind)]
    for key in values:
        if key not in names:
            raise InputError(f"{where}: unknown key {key!r}: {suggest(str(key), names)}")
