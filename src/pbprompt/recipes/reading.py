"""A recipe's YAML as its dataclass; what is wrong is told with the file, the key and the fix."""

from collections.abc import Mapping
from typing import Any, TypeVar, get_origin, get_type_hints

import yaml

from pbprompt.config import from_dict
from pbprompt.errors import InputError

T = TypeVar("T")


def parsed(text: str, where: str, fix: str) -> dict[str, Any]:
    """The mapping that a text holds."""
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError: 2024-13-45, no such day
        raise InputError(f"{where}: not YAML ({str(error).splitlines()[0]}): fix it") from None
    if not isinstance(values, dict):
        raise InputError(f"{where}: not a recipe: {fix}")
    return values


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
