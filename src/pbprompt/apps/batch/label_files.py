"""Answers as labelling tools import them, for people to accept or to correct.

    Label Studio  [{"data": {"image": …}, "predictions": [{"score": …, "result": […]}]}, …]
    FiftyOne      {"classes": […], "labels": {an image without its suffix: {"label": …, "confidence": …}, …}}
    COCO          {"images": […], "annotations": […], "categories": […]}; a box is the whole image
    CSV           image,label,score (of a multi-label model image,labels), as `fit` reads it

What the tools then export, `vision/images/label_files.py` reads.
"""

import json
from collections.abc import Iterable, Sequence
from os.path import normpath
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from pbprompt.apps.batch.formats import Written
from pbprompt.errors import InputError
from pbprompt.files import as_csv, as_name, as_text
from pbprompt.vision.images.build_dataset import SEPARATOR
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.label_files import LOCAL_FILES, without_suffix


class Predicted(NamedTuple):
    """An image and its labels with their probabilities; `path` is relative to the tool's folder."""

    file: Path
    path: str
    labels: dict[str, float]


class LabelFile(NamedTuple):
    """A tool's file of so many images, and of which classes."""

    text: str
    images: int
    classes: list[str]
    several: bool


def label_file(answers: Iterable[Written], tool: str, root: Path) -> LabelFile:
    """Answers as one of `TOOLS` imports them; `root`: the folder that its paths are relative to."""
    images: list[Predicted] = []
    classes: dict[str, None] = {}
    several = False
    for answer in answers:
        several = answer.labels is not None
        given = {answer.label: answer.score}
        if answer.labels is not None:
            given = {label: answer.scores[label] for label in answer.labels}
        images.append(_predicted(answer.image, given, root))
        classes |= dict.fromkeys((*answer.scores, *given))
    if not images:
        raise InputError("there is no answer in it: predict some images first")
    return LabelFile(TOOLS[tool](images, [*classes], several), len(images), [*classes], several)


def _predicted(image: str, labels: dict[str, float], root: Path) -> Predicted:
    file = Path(as_name(image))
    if not file.is_file():
        raise InputError(
            f"{image}: no such file: unpack images that are in archives, fetch those from elsewhere, and "
            "stand in the folder that `predict` was run in"
        )
    path = Path(normpath(file.absolute()))
    if not path.is_relative_to(root := Path(normpath(root.absolute()))):
        raise InputError(f"{image}: not in {root}: give the folder of all images as --root")
    return Predicted(file, as_text(path.relative_to(root).as_posix()), labels)


def _label_studio(images: Sequence[Predicted], classes: Sequence[str], several: bool) -> str:
    tasks = []
    for _, path, labels in images:
        chosen = {"from_name": "choice", "to_name": "image", "type": "choices"}
        result = [chosen | {"value": {"choices": [*labels]}}] if labels else []
        prediction = {"score": min(labels.values(), default=None), "result": result}
        tasks.append({"data": {"image": LOCAL_FILES + quote(path)}, "predictions": [prediction]})
    return _json(tasks)


def labelling_config(classes: Iterable[str], several: bool) -> str:
    """Label Studio's labelling configuration that the predictions belong to."""
    choices = "".join(f"<Choice value={quoteattr(name)}/>" for name in classes)
    kind = "multiple" if several else "single"
    shown = '<Image name="image" value="$image"/>'
    return f'<View>{shown}<Choices name="choice" toName="image" choice="{kind}">{choices}</Choices></View>'


def _fiftyone(images: Sequence[Predicted], classes: Sequence[str], several: bool) -> str:
    labels_of: dict[str, Any] = {}
    for _, path, labels in images:
        if (name := without_suffix(path)) in labels_of:
            raise InputError(f"{path}: another image has this name without its suffix: rename one")
        each = [{"label": label, "confidence": score} for label, score in labels.items()]
        labels_of[name] = each if several else each[0]
    return _json({"classes": classes, "labels": labels_of})


def _coco(images: Sequence[Predicted], classes: Sequence[str], several: bool) -> str:
    numbers = {name: number for number, name in enumerate(classes, 1)}
    listed: list[Any] = []
    annotations: list[Any] = []
    for number, (file, path, labels) in enumerate(images, 1):
        width, height = open_image(file).size
        listed.append({"id": number, "file_name": path, "width": width, "height": height})
        whole = {"image_id": number, "bbox": [0, 0, width, height], "area": width * height, "iscrowd": 0}
        for label, score in labels.items():
            kind = {"id": len(annotations) + 1, "category_id": numbers[label], "score": score}
            annotations.append(kind | whole)
    categories = [{"id": number, "name": name} for name, number in numbers.items()]
    return _json({"images": listed, "annotations": annotations, "categories": categories})


def _csv(images: Sequence[Predicted], classes: Sequence[str], several: bool) -> str:
    if several:
        return as_csv([("image", "labels"), *((one.path, SEPARATOR.join(one.labels)) for one in images)])
    rows = ((path, *pair) for _, path, labels in images for pair in labels.items())
    return as_csv([("image", "label", "score"), *rows])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


TOOLS = {"label-studio": _label_studio, "fiftyone": _fiftyone, "coco": _coco, "csv": _csv}
