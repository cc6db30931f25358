"""`open_dataset`: one function that tells the kinds of dataset apart, and reads class folders itself."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError, first_line, needing, suggest
from pbprompt.files import as_text, cache_folder, is_special, write_bytes, write_text
from pbprompt.vision.images import catalog
from pbprompt.vision.images.build_dataset import (
    NONE,
    Choices,
    Listed,
    Shares,
    Skipped,
    build_dataset,
    keep_images,
)
from pbprompt.vision.images.catalog import Benchmark
from pbprompt.vision.images.items import DEFAULT_TEMPLATE, Dataset, some
from pbprompt.vision.images.label_files import open_label_file, split_dataset
from pbprompt.vision.images.locations import SPLIT_WORDS, UNLABELLED, Labels, files_in, subfolders
from pbprompt.vision.images.names import from_folder
from pbprompt.vision.images.series import check_groups
from pbprompt.vision.images.tables import TABLES, open_table

ROOT_VARIABLE = "PBPROMPT_DATA"
PREFIX = "hf:"
_MARKS = ("dataset_dict.json", "dataset_info.json")  # what `save_to_disk` leaves in a folder


def open_dataset(
    source: str | Path,
    root: str | Path | None = None,
    *,
    classes_file: str | Path | None = None,
    template: str | None = None,
    seed: int = 1,
    held_out: Shares = NONE,
    fewest: int = 2,
    alike: bool = False,
    group: str = "",
    series: Mapping[str, str] | None = None,
    nested: bool = False,
) -> Dataset:
    """The dataset behind a path or a name; `describe()` on it says what was found.

    - a benchmark's name (`caltech101`), found under `root` or PBPROMPT_DATA; `sample` needs neither;
      `pacs:photo` is one domain of it;
    - a folder of class folders, or of train, val and test folders that hold class folders;
    - a .csv, .tsv or .jsonl table (image, label, and if you like split and domain), multi-label where its
      column is called `labels`;
    - a .json file: what Label Studio, FiftyOne or COCO write, or a split file in the published format;
    - `hf:owner/name`, or a folder written by the `datasets` library's `save_to_disk`.

    Args:
        source: the path or the name.
        root: where benchmarks are; else the folder that a table's or split file's paths are relative to.
        classes_file: names to read, by label, for classes of your own data.
        template: replaces "a photo of a {}.", with {} for the class.
        seed: of what is held out.
        held_out: shares of each class to validate and to test, where the data has no split; without them
            all of it is to be trained on.
        fewest: classes that it must have.
        alike: whether two classes may have one name, as `SKU-17` and `SKU 17` have: refused otherwise.
        group: what makes photographs a series (`series.py`): `folder`, `exif` or a table's column.
        series: that of each image, by its path, where it was found otherwise.
        nested: of folders within folders the innermost are the classes, and those above their groups.

    Example:
        >>> dataset = open_dataset("sample")
        >>> len(dataset.classes), len(dataset.train), len(dataset.test)
        (28, 896, 640)
    """
    if template is not None and template.count("{}") != 1:
        raise InputError(f"template {template!r}: write it with one {{}} where the class name goes")
    choices = Choices.of(
        classes_file,
        seed=seed,
        template=template or DEFAULT_TEMPLATE,
        held_out=held_out,
        fewest=fewest,
        alike=alike,
        group=group,
        series=series or {},
        nested=nested,
    )
    dataset = _opened(source, root, choices, template)
    check_groups(dataset.items, group)
    return dataset


def _opened(source: str | Path, root: str | Path | None, choices: Choices, template: str | None) -> Dataset:
    benchmark, domain, folder = _benchmark(source)
    if benchmark is not None:
        if choices.mapping is not None:
            raise InputError(f"{benchmark.title}: its class names are the protocol's: leave --names out")
        given = root or folder or os.environ.get(ROOT_VARIABLE)
        given = catalog.SAMPLE if benchmark.name == "sample" else given  # embedded, wherever the others are
        if not given:
            raise InputError(
                f"{benchmark.title}: name the folder that has {benchmark.folder}/ as root, "
                f"or set {ROOT_VARIABLE}"
            )
        dataset = benchmark.open(given)
        dataset = dataset.only(domain) if domain else dataset
        return dataset if template is None else replace(dataset, template=template)
    if str(source).startswith(PREFIX):
        return open_huggingface(str(source), choices)
    path = Path(source).expanduser()
    images = None if root is None else Path(root).expanduser()
    if path.is_dir():
        return open_huggingface(str(path), choices) if is_saved_dataset(path) else _folders(path, choices)
    if path.is_file():
        if path.suffix.lower() in TABLES:
            return open_table(path, images, choices)
        if path.suffix.lower() == ".json":
            if (found := open_label_file(path, images, choices)) is not None:
                return found
            naming = partial(choices.names, where=str(path))
            return split_dataset(path, images, path.stem, naming, choices.template)
        raise InputError(f"{path}: not a dataset: give a folder, a .csv, .tsv, .jsonl or .json file")
    if path.suffix or len(path.parts) > 1:
        raise InputError(f"{path} does not exist: give a folder, a table, a split file or a benchmark's name")
    near = suggest(str(source), catalog.benchmarks())
    raise InputError(f"{path}: no such folder or file here, and no benchmark of that name: {near}")


def _benchmark(source: str | Path) -> tuple[Benchmark | None, str, Path | None]:
    """A benchmark by its name, perhaps with `:domain`, or by the path of its own folder, which is then given.

    A name wins over a folder of that name in the working folder; write `./name` for the folder.
    """
    if isinstance(source, str) and "/" not in source and os.sep not in source:
        name, _, domain = source.partition(":")
        named = catalog.lookup(name)
        if named is not None:
            return named, domain, None
    path = Path(source).expanduser()
    for entry in catalog.benchmarks().values():
        if path.resolve().name == entry.folder and (path / entry.marker).exists():
            return entry, "", path
    return None, "", None


def _folders(root: Path, choices: Choices) -> Dataset:
    """Class folders: `<class>/…`, or `train|val|test/<class>/…`.

    Images may lie at any depth below their class folder.
    """
    folders = subfolders(root)
    if not folders:
        raise InputError(f"{root}: no class folders in it: put each class's images in a folder of its own")
    labels = Labels(folders)
    rows: list[Listed] = []
    skipped: list[Skipped] = []
    deep = 0
    for _, path in files_in(root):
        label, split = labels.of(path)
        if label:
            within = path.split("/")[bool(split) : -1]
            deep += len(within) > 1
            *above, label = within if choices.nested else [label]
            rows.append(Listed(path, label, split, above=tuple(reversed(above))))
        else:
            outside = path.split("/")[0] not in labels.unlabelled
            skipped.append((path, "outside the class folders" if outside else "without a label"))
    kept, no_images = keep_images(root, rows)
    return build_dataset(
        root.resolve().name,
        root,
        kept,
        choices,
        where=str(root),
        naming=from_folder,
        notes=_folder_notes(root, labels, {row.key for row in kept}, choices, deep=0 < len(rows) == deep),
        skipped=[*no_images, *skipped],
        remedy="put JPEG, PNG, WebP or similar files into its class folders",
    )


def _folder_notes(
    root: Path, labels: Labels, keys: set[str], choices: Choices, *, deep: bool
) -> Iterator[str]:
    """What may be wrong with class folders; `deep`: all images lie in folders within them."""
    codes = [key for key in keys if sum(map(str.isalpha, key)) < 2]
    if choices.mapping is None and 2 * len(codes) > len(keys):
        yield f"Folder names such as {min(codes)!r} are codes: say what they mean by --names FILE"
    folders = {name for parent in [*labels.splits] or [""] for name in subfolders(root / parent)}
    empty = sorted(name for name in folders - keys if name.lower() not in UNLABELLED)
    if empty and not choices.nested:
        yield f"Class folders without images: {some(empty)}"
    if deep and not choices.nested and not choices.group:
        yield (
            "Folders within the class folders are parts of these: --nested makes the innermost the classes, "
            "--group folder makes each a series"
        )
    for name in labels.unlabelled:
        yield f"{name} is no class: --unlabelled {root / name} learns from it"


def is_saved_dataset(folder: Path) -> bool:
    return any((folder / mark).is_file() for mark in _MARKS)


def open_huggingface(source: str, choices: Choices) -> Dataset:
    """The dataset behind `hf:owner/name`, or in a folder that `save_to_disk` wrote.

    It must have one image column and one class label. Files are named by split and position, so labels,
    draws and hashes do not depend on where the cache is.
    """
    with needing(f"{source}: Hugging Face datasets need an extra", "hf"):
        import datasets
    name, far = source.removeprefix(PREFIX), source.startswith(PREFIX)
    if special := None if far else next(filter(is_special, Path(source).rglob("*")), None):
        raise InputError(f"{special}: a pipe, socket or device, no regular file: remove it")
    try:
        loaded = datasets.load_dataset(name) if far else datasets.load_from_disk(source)
    except Exception as error:  # the library's own errors, the network's and the disk's
        raise InputError(f"{source}: cannot be loaded ({first_line(error)}): check the name") from None
    parts = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    marks = [source, *(f"{split} {len(part)} {part._fingerprint}" for split, part in sorted(parts.items()))]
    digest = hashlib.sha256("\n".join(marks).encode("utf-8", "backslashreplace")).hexdigest()
    table = cache_folder() / "huggingface" / digest[:16] / "index.jsonl"
    if not table.is_file():
        rows = _export(datasets, source, parts, table.parent)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        write_text(table, "".join(lines))  # last, so that its presence means the copy is whole
    return replace(open_table(table, None, choices), name=as_text(name.rstrip("/").split("/")[-1]))


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
