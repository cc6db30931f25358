"""Hugging Face datasets (extra `hf`): copied once into the cache as image files and a JSONL table."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError, first_line, needing
from pbprompt.files import as_text, cache_folder, is_special, write_bytes, write_text
from pbprompt.vision.images.build_dataset import Choices
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.images.stream.folders import SPLIT_WORDS
from pbprompt.vision.images.tables import open_table

PREFIX = "hf:"
_MARKS = ("dataset_dict.json", "dataset_info.json")  # what `save_to_disk` leaves in a folder


def is_saved_dataset(folder: Path) -> bool:
    """Whether the folder was written by the `datasets` library."""
    return any((folder / mark).is_file() for mark in _MARKS)


def open_huggingface(source: str, choices: Choices) -> Dataset:
    """The dataset behind `hf:owner/name`, or in a folder that `save_to_disk` wrote.

    It must have one image column and one class label. Files are named by split and position, so labels,
    draws and hashes do not depend on where the cache is.
    """
    with needing(f"{source}: Hugging Face datasets need an extra", "hf"):
        import datasets
    if not source.startswith(PREFIX):
        for path in Path(source).rglob("*"):
            if is_special(path):
                raise InputError(f"{path}: a pipe, socket or device, no regular file: remove it")
    try:
        if source.startswith(PREFIX):
            loaded = datasets.load_dataset(source.removeprefix(PREFIX))
        else:
            loaded = datasets.load_from_disk(source)
    except Exception as error:  # the library's own errors, the network's and the disk's
        raise InputError(f"{source}: cannot be loaded ({first_line(error)}): check the name") from None
    parts = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    table = _cache_folder(source, parts) / "index.jsonl"
    if not table.is_file():
        lines = [
            json.dumps(row, ensure_ascii=False) for row in _export(datasets, source, parts, table.parent)
        ]
        write_text(table, "\n".join(lines) + "\n")  # last, so that its presence means the copy is whole
    dataset = open_table(table, None, choices)
    name = source.removeprefix(PREFIX).rstrip("/").split("/")[-1]
    return replace(dataset, name=as_text(name))


def _cache_folder(source: str, parts: dict[str, Any]) -> Path:
    marks = [source, *(f"{split} {len(part)} {part._fingerprint}" for split, part in sorted(parts.items()))]
    digest = hashlib.sha256("\n".join(marks).encode("utf-8", "backslashreplace")).hexdigest()
    return cache_folder() / "huggingface" / digest[:16]


def _export(datasets: Any, source: str, parts: dict[str, Any], folder: Path) -> Iterator[dict[str, str]]:
    """Write every image file, as its original bytes where the dataset holds them; yield the table's rows."""
    known = {split: part for split, part in parts.items() if split.lower() in SPLIT_WORDS}
    if not known:
        raise InputError(f"{source}: splits are {', '.join(parts)}: one must be train, validation or test")
    for split, part in known.items():
        image, label = _columns(source, part.features)
        feature = part.features[label]
        for place, row in enumerate(part.cast_column(image, datasets.Image(decode=False))):
            value = row[image]
            content = value["bytes"] if value["bytes"] is not None else _content(source, value["path"])
            file = f"{split}/{place:07d}{Path(value['path'] or '').suffix.lower()}"
            write_bytes(folder / file, content)
            key = feature.int2str(row[label]) if hasattr(feature, "int2str") else str(row[label])
            # A dataset of training images alone is left to the seeded split.
            yield {"image": file, "label": key, **({"split": split} if len(known) > 1 else {})}


def _content(source: str, path: str | None) -> bytes:
    """Of an image that a dataset names by a path, which anybody may have written there."""
    if path is None or not Path(path).is_file():  # the reader of a pipe or device may wait for ever
        raise InputError(f"{source}: names an image {path}, which is no regular file: fix the dataset")
    return Path(path).read_bytes()


def _columns(source: str, features: dict[str, Any]) -> tuple[str, str]:
    images = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    labels = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
    labels = ["label"] if "label" in features else labels
    if len(images) != 1 or len(labels) != 1:
        raise InputError(
            f"{source}: columns {', '.join(features)}: needs one image column and one class label column"
        )
    return images[0], labels[0]
