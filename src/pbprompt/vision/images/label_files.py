"""What labelling tools export, in their own JSON: images with their labels.

    Label Studio  [{"data": {"image": …}, "annotations": [{"result": […]}]}, …]
                  JSON-MIN: [{"image": …, "choice": …}, …]
    FiftyOne      {"classes": […], "labels": {an image without its suffix: its label, …}}
                  a whole dataset: {"samples": [{"filepath": …, "ground_truth": …}, …]}
    COCO          {"images": […], "annotations": […], "categories": […]}

Boxes and masks count by their class alone. Where an image has several classes the data is multi-label; an
image that was annotated with none is then of none of them, and one that was not annotated is left out.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from pbprompt.errors import InputError
from pbprompt.files import as_text, inside, read_json
from pbprompt.vision.images.build_dataset import SEPARATOR, Choices, Listed, Skipped
from pbprompt.vision.images.items import SPLITS, Dataset, Item
from pbprompt.vision.images.locations import SPLIT_WORDS, files_in, is_address, is_image
from pbprompt.vision.images.tables import COLUMNS, listed

MIN_FIELDS = ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time")
LOCAL_FILES, UPLOADS = "/data/local-files/?d=", re.compile(r"/data/upload/\d+/")  # Label Studio's


class Labelled(NamedTuple):
    """An image as a tool lists it; `labels` are None where nobody has annotated it."""

    where: str
    image: str
    labels: tuple[str, ...] | None
    split: str = ""


Reader = Callable[[Any, Path, Path], Iterator[Labelled]]


def open_label_file(path: Path, root: Path | None, choices: Choices) -> Dataset | None:
    """The dataset of a tool's file; None where it is of no tool, such as a published split file. Paths are
    relative to `root`, else to FiftyOne's `data/` beside the file, else to the file's folder."""
    value = read_json(path)
    reader = next((read for is_of, read in TOOLS if is_of(value)), None)
    if reader is None:
        return None
    root = root or images_of(path, fiftyone=reader is _fiftyone)
    found = list(reader(value, path, root))
    several = any(len({*one.labels}) > 1 for one in found if one.labels)
    whole = all(one.split for one in found)
    rows: list[Listed] = []
    bare: list[Skipped] = []
    for where, image, labels, split in found:
        if is_address(image):
            raise InputError(f"{where}: {image[:80]} is an address: fetch the images, and name their paths")
        name = inside(image, where, absolute=True)
        if several and (odd := [label for label in labels or () if SEPARATOR in label]):
            raise InputError(f"{where}: label {odd[0]!r} has a {SEPARATOR!r} in it: rename it")
        if labels or (several and labels is not None):
            key = SEPARATOR.join(sorted({*labels})) if several else labels[0]
            rows.append(Listed(name, key, split if whole else ""))
        else:
            bare.append((name, "without a label"))
    if not rows:
        raise InputError(f"{path}: none of its {len(found)} images has a label: annotate some first")
    return listed(path, root, rows, several, choices, bare)


def images_of(path: Path, *, fiftyone: bool) -> Path:
    """The folder that a file's paths are relative to, where none is given."""
    data = path.parent / "data"
    return data if fiftyone and data.is_dir() else path.parent


def without_suffix(name: str) -> str:
    return Path(name).with_suffix("").as_posix()


def _get(record: Any, name: str, kind: type, where: str) -> Any:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool) or value == "":
        shown = json.dumps(value)[:40]
        raise InputError(f"{where}: field {name!r} is {shown}, no {kind.__name__}: export the file again")
    return value


def _label_studio(tasks: list[Any], path: Path, root: Path) -> Iterator[Labelled]:
    """A task's annotation, or of several the one that is marked as ground truth; all where they agree."""
    controls: set[str] = set()
    field = "" if any("data" in task for task in tasks) else _min_field(tasks, path)
    for place, task in enumerate(tasks):
        where = f"{path} task {place}"
        if field:  # JSON-MIN, of annotated tasks alone
            value = task.get(field, {"choices": []})
            labels = _get(value, "choices", list, where) if isinstance(value, dict) else [value]
            labels = tuple(_get({"choice": label}, "choice", str, where) for label in labels)
            yield Labelled(where, _image_of(task, where, root), labels)
            continue
        made = _get({"annotations": [], **task}, "annotations", list, where)
        made = [one for one in made if isinstance(one, dict) and not one.get("was_cancelled")]
        made = [one for one in made if one.get("ground_truth")] or made
        annotations: dict[tuple[str, ...], None] = {}
        for one in made:
            chosen: set[str] = set()
            for result in _get(one, "result", list, where):
                texts = _get(result, "value", dict, where).get(_get(result, "type", str, where))
                if isinstance(texts, list) and all(isinstance(text, str) and text for text in texts):
                    controls.add(str(result.get("from_name")))
                    chosen |= {*texts}
            annotations[tuple(sorted(chosen))] = None
        if len(controls) > 1:
            raise InputError(f"{where}: labels of several controls, {sorted(controls)}: keep those of one")
        if len(annotations) > 1:
            both = " and ".join(", ".join(labels) or "none" for labels in annotations)
            raise InputError(f"{where}: annotations contradict each other ({both}): mark one as ground truth")
        image = _image_of(_get(task, "data", dict, where), f"{where} data", root)
        yield Labelled(where, image, next(iter(annotations), None))


def _image_of(fields: Any, where: str, root: Path) -> str:
    """A path under `root` of what Label Studio calls an image: local files, or its uploads."""
    named = [name for name in COLUMNS["image"] if name in fields] or [*fields]
    if len(named) > 1 and named[0] not in COLUMNS["image"]:
        raise InputError(f"{where}: which of {named[:4]} is the image? call it 'image'")
    image: str = _get(fields, named[0] if named else "image", str, where)
    if LOCAL_FILES in image:
        return unquote(image.partition(LOCAL_FILES)[2])
    if upload := UPLOADS.match(image):
        kept = image.removeprefix("/data/")
        return kept if (root / kept).is_file() else image[upload.end() :]
    return image


def _min_field(tasks: list[dict[str, Any]], path: Path) -> str:
    """What the labels of JSON-MIN are called: as the project's control is."""
    names = {name: None for task in tasks for name in task if name not in (*MIN_FIELDS, *COLUMNS["image"])}
    usual = [name for name in ("choice", *COLUMNS["label"]) if name in names]
    if not usual and len(names) != 1:
        raise InputError(f"{path}: which of {[*names][:6]} holds the labels? call it 'choice'")
    return [*usual, *names][0]


def _fiftyone(value: dict[str, Any], path: Path, root: Path) -> Iterator[Labelled]:
    classes = value.get("classes")
    files: dict[str, list[str]] = {}  # by path without suffix, which is how images are named
    if not all(Path(name).is_absolute() for name in value["labels"]):
        for file, name in files_in(root):
            if is_image(file):
                files.setdefault(without_suffix(name), []).append(name)

    def label(target: Any, where: str) -> str:
        target = target.get("label") if isinstance(target, dict) else target
        if type(target) is int and isinstance(classes, list) and 0 <= target < len(classes):
            target = classes[target]
        return str(_get({"label": target}, "label", str, where))

    for name, target in value["labels"].items():
        where = f"{path} labels[{name[:80]!r}]"
        named = [name] if Path(name).is_absolute() else files.get(name, [name])
        if len(named) > 1:
            raise InputError(f"{where}: {named[0]} and {named[1]} have this name: rename one")
        targets = target if isinstance(target, list) else [target]
        labels = None if target is None else tuple(label(one, where) for one in targets)
        yield Labelled(where, named[0], labels)


def _samples(value: dict[str, Any], path: Path, root: Path) -> Iterator[Labelled]:
    kinds = {"Classification": "", "Classifications": "classifications", "Detections": "detections"}
    fields = {
        name: None
        for sample in value["samples"]
        if isinstance(sample, dict)
        for name, label in sample.items()
        if isinstance(label, dict) and str(label.get("_cls")) in kinds
    }
    if len(fields) > 1 and "ground_truth" not in fields:
        raise InputError(f"{path}: labels in several fields, {[*fields][:4]}: call the true one ground_truth")
    field = "ground_truth" if len(fields) > 1 else next(iter(fields), "")
    for place, sample in enumerate(value["samples"]):
        where = f"{path} samples[{place}]"
        image = _get(sample, "filepath", str, where)
        labels, target, tags = None, sample.get(field), sample.get("tags")
        words = map(str, tags) if isinstance(tags, list) else ()
        split = next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "")
        if isinstance(target, dict):
            within = kinds.get(str(target.get("_cls")), "")
            some = _get(target, within, list, where) if within else [target]
            labels = tuple(_get(one, "label", str, where) for one in some)
        yield Labelled(where, image, labels, split)


def _coco(value: dict[str, Any], path: Path, root: Path) -> Iterator[Labelled]:
    names = {}
    for place, one in enumerate(value["categories"]):
        where = f"{path} categories[{place}]"
        names[_get(one, "id", int, where)] = _get(one, "name", str, where)
    labels: dict[int, list[str]] = {}
    for place, one in enumerate(value["annotations"]):
        where = f"{path} annotations[{place}]"
        if (category := _get(one, "category_id", int, where)) not in names:
            raise InputError(f"{where}: category_id {category} is none of the categories: export it again")
        labels.setdefault(_get(one, "image_id", int, where), []).append(names[category])
    for place, one in enumerate(value["images"]):
        where = f"{path} images[{place}]"
        own = labels.get(_get(one, "id", int, where), [])
        yield Labelled(where, _get(one, "file_name", str, where), tuple(own))


def _has(value: Any, **kinds: type) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in kinds.items())


TOOLS: tuple[tuple[Callable[[Any], bool], Reader], ...] = (
    (lambda value: isinstance(value, list) and all(isinstance(task, dict) for task in value), _label_studio),
    (lambda value: _has(value, images=list, annotations=list, categories=list), _coco),
    (lambda value: _has(value, labels=dict), _fiftyone),
    (lambda value: _has(value, samples=list), _samples),
)


def read_split_json(path: Path) -> list[tuple[str, str, int, str]]:
    """Split, image, label and class name of each entry of a split file, all checked."""
    value = read_json(path)
    if not isinstance(value, dict) or not any(split in value for split in SPLITS):
        raise InputError(
            f"{path}: no 'train', 'val' or 'test' list in it: give a split file, or what Label Studio, "
            "FiftyOne or COCO write"
        )
    found = []
    for split in SPLITS:
        entries = value.get(split) or []
        if not isinstance(entries, list):
            raise InputError(f"{path}: {split!r} is not a list: write [[path, label, name], …]")
        for place, entry in enumerate(entries):
            where = f"{path} {split}[{place}]"
            match entry:
                case [str(image), int(label), str(name)] if not isinstance(label, bool) and label >= 0:
                    found.append((split, inside(image, where), label, name))
                case _:
                    shown = json.dumps(entry)[:60]
                    raise InputError(f"{where}: {shown} is not [path, label, name]: correct the entry")
    return found


def split_dataset(
    path: Path,
    root: Path | None,
    name: str,
    naming: Callable[[Sequence[str]], tuple[str, ...]],
    template: str,
    prefix: str = "",
) -> Dataset:
    """The dataset of a split file, labels and order as in the file; `naming` makes class names of what it
    calls them, and `prefix` is put before every path.

    Paths are relative to `root`; without one, to the file's own folder or the first folder in it that holds
    the first image, since published files lie beside the image folder.
    """
    entries = read_split_json(path)
    keys: dict[int, str] = {}
    for _, image, label, key in entries:
        if keys.setdefault(label, key) != key:
            raise InputError(f"{path}: label {label} is {keys[label]!r} and {key!r} ({image}): keep one name")
    missing = next((label for label in range(len(keys)) if label not in keys), None if keys else 0)
    if missing is not None:
        raise InputError(f"{path}: no item has label {missing}: labels must run from 0 without gaps")
    if root is None:
        first = entries[0][1]
        near = [path.parent, *sorted(child for child in path.parent.iterdir() if child.is_dir())]
        root = next((folder for folder in near if (folder / first).is_file()), None)
        if root is None:
            raise InputError(
                f"{path}: its first image {first} is not beside it: name the image folder as root"
            )
    folder = f"{prefix}/" if prefix else ""
    train, val, test = (
        tuple(Item(folder + image, label) for part, image, label, _ in entries if part == split)
        for split in SPLITS
    )
    classes = naming([keys[label] for label in range(len(keys))])
    return Dataset(as_text(name), root, classes, train, val, test, template)
