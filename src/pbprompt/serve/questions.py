"""What clients ask besides sending images: fields, checked."""

import math
from dataclasses import dataclass
from typing import Any

from pbprompt.explain.heatmaps import READINGS, Reading
from pbprompt.serve.limits import Limits, Refused


@dataclass(frozen=True)
class Wishes:
    """What a client of /predict asks for besides the images."""

    top_k: int | None = None
    reject_at: float = 0.9
    coverage: float = 0.9

    @staticmethod
    def of(fields: dict[str, Any]) -> "Wishes":
        _only(fields, "top_k", "reject_at", "coverage")
        return Wishes(
            top_k=_whole_number(fields["top_k"], "top_k") if "top_k" in fields else None,
            reject_at=_share(fields.get("reject_at", 0.9), "reject_at"),
            coverage=_share(fields.get("coverage", 0.9), "coverage"),
        )


@dataclass(frozen=True)
class Question:
    """What a client of /explain asks about the image."""

    name: str
    samples: int
    reading: Reading
    format: str

    @staticmethod
    def of(fields: dict[str, Any], limits: Limits) -> "Question":
        _only(fields, "class", "samples", "reading", "format")
        if not isinstance(fields.get("class"), str):
            raise Refused(422, "class: send the name of one")
        reading = fields.get("reading", "evidence")
        if reading not in READINGS:
            raise Refused(422, f"reading: send {', '.join(READINGS)}")
        form = fields.get("format", "json")
        if form not in ("json", "png"):
            raise Refused(422, "format: send json or png")
        samples = _whole_number(fields.get("samples", 4), "samples", limits.samples)
        return Question(fields["class"], samples, reading, form)


def class_names(fields: dict[str, Any], limits: Limits) -> list[str]:
    """The names that POST /classes brings: {"names": […]} or {"name": …}."""
    names = fields.get("names", [fields["name"]] if "name" in fields else None)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise Refused(422, 'send {"names": ["red panda", …]}')
    if len(names) > limits.classes:
        raise Refused(422, f"{len(names)} names: {limits.classes} classes are allowed")
    return names


def _only(fields: dict[str, Any], *known: str) -> None:
    """Refuse fields that mean nothing here: a misspelt one would be ignored in silence."""
    if unknown := fields.keys() - set(known):
        raise Refused(422, f"field {min(unknown)[:40]!a} is unknown: there are {', '.join(known)}")


def _whole_number(value: Any, name: str, highest: int | None = None) -> int:
    """A field that counts from 1."""
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if number < 1 or (highest and number > highest):
        raise Refused(422, f"{name}: send a whole number from 1" + (f" to {highest}" if highest else ""))
    return number


def _share(value: Any, name: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not 0 < number < 1:
        raise Refused(422, f"{name}: send a share between 0 and 1, such as 0.9")
    return number
