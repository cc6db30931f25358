"""Photographs of one thing, place or moment: a series, which counts as one piece of evidence.

A row's `group` names its series; "" is a photograph by itself. It comes from a column of a table, or from

    folder    the folder below the class that the file is in
    exif      the camera and the minute it was taken in

Photographs of a series share what a new photograph does not have, such as the light, so that whatever is
split keeps a series together.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images.images import MOST_EXIF, opened
from pbprompt.vision.images.items import Item

FOLDER, EXIF, ALIKE, NONE = "folder", "exif", "near-duplicates", "none"
MAKE, MODEL, DETAILS, TAKEN = 271, 272, 0x8769, 36867  # EXIF's tags
MINUTE = len("2026:01:31 12:59")

Kind = TypeVar("Kind")


def from_rows(by: str) -> bool:
    """Whether what --group says is known before any feature is: all but near duplicates."""
    return by not in ("", ALIKE, NONE)


def folder_of(path: str, label: str) -> str:
    """The folders below that of the class; "" where the file lies in that itself."""
    folders = path.split("/")[:-1]
    below = folders[folders.index(label) + 1 :] if label in folders else folders
    return "/".join([label, *below]) if below else ""


def moment_of(file: Path) -> str:
    """Camera and minute, as the file's EXIF has them; "" where it has no time."""
    try:
        with file.open("rb") as content, opened(content) as image:
            if len(image.info.get("exif", b"")) > MOST_EXIF:
                return ""
            tags = image.getexif()
            taken = str(tags.get_ifd(DETAILS).get(TAKEN, ""))[:MINUTE]
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return ""
    camera = " ".join(str(tags.get(tag, "")).strip("\0 ") for tag in (MAKE, MODEL))
    return f"{camera} {taken}" if len(taken) == MINUTE else ""


def check_groups(items: Sequence[Item], by: str) -> None:
    """Refuse a way by which no image is of a series that has another image."""
    named = [item.group for item in items if item.group]
    if from_rows(by) and len(set(named)) == len(named):
        remedy = {
            FOLDER: "put each series into a folder below its class's",
            EXIF: "no two images have the same camera and minute in their EXIF",
        }.get(by, f"give a table with a column {by!r} that several images share")
        raise InputError(f"--group {by}: no two images are of one series: {remedy}")


def in_series(items: Sequence[Kind], groups: Sequence[str], source: random.Random) -> list[list[Kind]]:
    """The items, those of a series together, in a random order of the series."""
    series: dict[str, list[Kind]] = {}
    for place, (item, group) in enumerate(zip(items, groups, strict=True)):
        series.setdefault(group or f"\n{place}", []).append(item)
    found = list(series.values())
    source.shuffle(found)
    return found


def numbered(items: Sequence[Item]) -> list[int] | None:
    """A number for each item's series; None where no item names one."""
    if not any(item.group for item in items):
        return None
    numbers: dict[str, int] = {}
    return [numbers.setdefault(item.group or f"\n{place}", len(numbers)) for place, item in enumerate(items)]


def apart(items: Sequence[Item], others: Sequence[Item]) -> list[Item]:
    """The items whose series is not among the others'."""
    known = {item.group for item in others} - {""}
    return [item for item in items if item.group not in known]
