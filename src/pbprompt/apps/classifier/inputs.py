"""From what people have to what a method reads: paths, pictures, arrays or features; and labels.

| X                                          | is                                                            |
|--------------------------------------------|---------------------------------------------------------------|
| a list or array of paths                   | images, whose features are kept in the cache                  |
| one path, a folder or a glob               | the image, or the images in it, sorted by their paths         |
| a list of PIL images or uint8 [h, w, 3]    | images; a single PIL image is a list of one                   |
| a uint8 array [n, h, w, 3]                 | images                                                        |
| `Features`, `Encoded`, numbers [n, 1+m, d] | features of the backbone: the global vector, then m patches   |
| numbers [n, d]                             | global vectors alone: each is its image's one and only patch; |
|                                            | of several backbones side by side, in their order             |

The last line is Eq. 5 with M = 1 and u₁ = f(x): an image of which nothing but the global vector is known is a
point in the joint space. A method that transports patches then works as it is, no setting changed.
"""

# ruff: noqa: N803 - X is scikit-learn's name
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from pbprompt.apps.classifier.estimator import DataConversionWarning
from pbprompt.errors import InputError
from pbprompt.vision.features.cache import FeatureCache, Features
from pbprompt.vision.features.encode import default_batch, encode_records, share_of_batch
from pbprompt.vision.features.progress import Progress
from pbprompt.vision.images import names
from pbprompt.vision.images.decoding import Decoder
from pbprompt.vision.images.images import open_image, upright_rgb
from pbprompt.vision.images.items import Item
from pbprompt.vision.images.stream import Record, list_images
from pbprompt.vision.images.workers import available_cpus
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.several import side_by_side

ClassNames = Mapping[Any, str] | Sequence[str] | None
PATHS = (str, os.PathLike)
LONGEST = 1e12  # entry of a feature whose square, summed, float32 holds with room to spare
KINDS = "paths, PIL images, a uint8 array [n, h, w, 3] or features [n, d]"


def encode_inputs(X: Any, backbone: Backbone, *, progress: bool = False) -> Encoded:
    """Any X of the table above as features of the backbone, on the CPU."""
    if isinstance(X, Features | Encoded):
        if X.global_.shape[-1] != backbone.embed_dim:
            raise InputError(_width(X.global_.shape[-1], backbone.embed_dim))
        return Encoded(X.global_.cpu(), X.patches.cpu())
    pictures = as_pictures(X)
    if pictures is None:
        table = torch.from_numpy(feature_table(X, backbone.embed_dim))
        if len(backbone.towers) > 1:
            whole = table if table.ndim == 2 else table[:, 0]
            whole = side_by_side(whole.split(backbone.widths, dim=1))
            return Encoded(whole, whole[:, None][:, :0])
        return Encoded(table, table[:, None]) if table.ndim == 2 else Encoded(table[:, 0], table[:, 1:])
    if all(isinstance(picture, PATHS) for picture in pictures):
        bank = FeatureCache(backbone, progress=progress)
        return bank.encode(Path(), [Item(str(Path(path).expanduser()), 0) for path in pictures]).images
    return _encode_pictures(pictures, backbone, progress)


def as_pictures(X: Any) -> list[Any] | None:
    """The images of X, each a path, a PIL image or an array [h, w, 3]; None where X is a table of numbers."""
    if isinstance(X, PATHS):
        return list(list_images(Path(X).expanduser()))
    if isinstance(X, Image.Image):
        return [X]
    if hasattr(X, "__array__"):
        array = np.asarray(X)
        if array.dtype == np.uint8 and array.ndim > 2:
            if array.ndim != 4 or array.shape[-1] != 3:
                raise InputError(
                    f"X is a uint8 array of shape {array.shape}: images have the shape [n, h, w, 3]"
                )
            return list(array)
        if array.ndim != 1 or array.dtype.kind not in "UO":
            return None
        items: Any = array.tolist()
    else:
        items = X
    if not isinstance(items, Sequence) or not any(map(_is_picture, items)):
        return None
    for row, item in enumerate(items):
        if not _is_picture(item):
            raise InputError(f"X[{row}] is {type(item).__name__}, no image: give {KINDS}")
    return list(items)


def _is_picture(item: Any) -> bool:
    return isinstance(item, (*PATHS, Image.Image)) or (isinstance(item, np.ndarray) and item.ndim == 3)


def feature_table(X: Any, width: int | None = None) -> NDArray[np.float32]:
    """Numbers [n, d] or [n, 1 + m, d], all of them finite, where d is `width` (None: any)."""
    if hasattr(X, "tocsr"):
        raise InputError("X is a sparse matrix, and features are dense: give X.toarray()")
    try:
        table = np.asarray(X)
    except ValueError:
        raise InputError(f"X is ragged, so no table of features: give {KINDS}") from None
    if table.dtype.kind == "c":
        raise InputError("Complex data not supported: give real features")
    if table.ndim not in (2, 3):
        hint = ". Reshape your data: X.reshape(1, -1) is one image's features" if table.ndim == 1 else ""
        raise InputError(f"X has the shape {table.shape}: give {KINDS}{hint}")
    if len(table) == 0 or table.shape[-1] == 0:
        what = "sample(s)" if len(table) == 0 else "feature(s)"
        raise InputError(f"Found array with 0 {what} (shape={table.shape}) while a minimum of 1 is required.")
    try:
        with np.errstate(over="ignore"):  # what overflows is told below
            table = table.astype(np.float32)
    except ValueError as error:
        raise InputError(f"X holds no numbers ({error}): give {KINDS}") from None
    if not np.isfinite(table).all():
        raise InputError("X contains NaN, inf or a value too large for float32: leave such images out")
    axes = tuple(range(1, table.ndim))
    size = np.maximum(table.max(axes, keepdims=True), -table.min(axes, keepdims=True))
    if ((size > LONGEST) | ((size > 0) & (size < 1 / LONGEST))).any():  # directions alone count
        table /= np.where(size, size, 1).astype(np.float32)
    if width is not None and table.shape[-1] != width:
        raise InputError(_width(table.shape[-1], width))
    if table.ndim == 3 and table.shape[1] < 2:
        raise InputError(
            f"X has the shape {table.shape}: behind the global vector come patches; or give [n, d]"
        )
    return table


def _width(given: int, expected: int) -> str:
    return (
        f"X has {given} features, but PromptClassifier is expecting {expected} features as input: "
        "give images, or features of the same backbone (see `encode`)"
    )


def _encode_pictures(pictures: list[Any], backbone: Backbone, progress: bool) -> Encoded:
    """Images in memory, a batch at a time; patches in half precision, as those of files are."""
    size = share_of_batch(backbone, default_batch(backbone.device), len(pictures))
    batches = (
        (at, [Record(f"X[{at + n}]", as_image(one)) for n, one in enumerate(pictures[at : at + size])])
        for at in range(0, len(pictures), size)
    )
    parts = []
    with Progress("encoding images", shown=progress) as bar:
        bar.expect(len(pictures))
        for _, found in encode_records(backbone, batches, Decoder(available_cpus())):
            if found.failures:
                raise next(iter(found.failures.values()))
            parts.append((found.global_, found.patches.cpu()))
            bar.advance(len(found.records))
    return Encoded(*(torch.cat(kind) for kind in zip(*parts, strict=True)))


def as_image(picture: Any) -> Image.Image:
    """The image at a path, a PIL image or a uint8 array [h, w, 3]: upright and RGB, whichever it was."""
    if isinstance(picture, PATHS):
        return open_image(Path(picture).expanduser())
    if isinstance(picture, Image.Image):
        return upright_rgb(picture)
    array = np.asarray(picture)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[-1] != 3:
        raise InputError(
            f"X holds an array of {array.dtype} and shape {array.shape}: images are uint8 [h, w, 3]"
        )
    return Image.fromarray(array)


def unlabelled_rows(y: Any, others: int = 2) -> NDArray[np.bool_]:
    """Where y has no label: None or, beside so many other whole numbers or more, scikit-learn's −1."""
    try:
        given = [] if y is None or np.asarray(y).ndim == 0 else np.asarray(y).tolist()
    except ValueError:  # lists of unlike lengths, which `read_labels` refuses
        given = []
    numbers = {label for label in given if type(label) is int}
    known = len(numbers - {-1}) >= others and all(type(label) is int or label is None for label in given)
    return np.array([label is None or (known and label == -1) for label in given], dtype=bool)


def read_labels(y: Any, images: int, fewest: int = 2) -> NDArray[Any]:
    """y as a vector of at least `fewest` classes: strings, whole numbers or booleans, one for each image."""
    if y is None:
        raise InputError("PromptClassifier requires y to be passed, but the target y is None: give labels")
    if _several_labels(y):
        raise InputError(
            "y has several labels an image, and PromptClassifier takes one: fit a table with a column "
            "'labels' by `pbprompt fit`"
        )
    labels = np.asarray(y)
    given = np.asarray(y, dtype=object)
    if labels.dtype.kind == "U" and not all(isinstance(label, str) for label in given.ravel()):
        labels = given  # a 1 beside a "1", of which numpy makes text
    if labels.ndim == 2 and labels.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected: give y.ravel()",
            DataConversionWarning,
            stacklevel=3,
        )
        labels = labels.ravel()
    if labels.shape != (images,):
        raise InputError(f"y has the shape {labels.shape}: give one label for each of the {images} images")
    if labels.dtype.kind in "fc":
        if labels.dtype.kind == "c":
            raise InputError("Complex data not supported: give labels")
        if not np.isfinite(labels).all():
            raise InputError("y contains NaN or infinity: give every image a label")
        if (labels != np.rint(labels)).any():
            raise InputError("Unknown label type: continuous values in y: give classes, not quantities")
    kinds = {type(label) for label in labels.tolist()}
    if len(kinds) > 1 or not kinds <= {str, int, float, bool}:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"Unknown label type: y holds {found}: give strings or whole numbers, all of a kind")
    labels = np.array(labels.tolist())  # of objects: what they are
    if len(classes := np.unique(labels)) < fewest:
        raise InputError(f"y has 1 class ({classes.tolist()[0]!r}): a classifier needs at least two")
    return labels


def _several_labels(y: Any) -> bool:
    """Whether y has lists or sets of labels, or a table with a column for each; one of a single is none."""
    rows = y.tolist() if isinstance(y, np.ndarray) else y
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        return False
    lists = [row for row in rows if isinstance(row, list | tuple | set | frozenset)]
    return any(len(row) != 1 for row in lists)


def read_groups(given: Any, images: int) -> NDArray[Any]:
    """The series of each image, as text."""
    groups = np.asarray(given, dtype=object)
    if groups.shape != (images,):
        raise InputError(f"groups has the shape {groups.shape}: name the series of each of {images} images")
    return np.array([str(group) for group in groups], dtype=object)


def read_sample_weight(given: Any, images: int) -> NDArray[np.float64] | None:
    """One weight for each image, 0 or more."""
    if given is None:
        return None
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("sample_weight holds no numbers: give one for each image") from None
    if weights.ndim == 0:  # scikit-learn's callers may give one for all
        weights = np.full(images, float(weights))
    if weights.shape != (images,):
        raise InputError(
            f"sample_weight has the shape {weights.shape}: give one weight for each of the {images} images"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InputError("sample_weight holds a negative number, NaN or infinity: give weights of 0 or more")
    if not weights.any():
        raise InputError("sample_weight is zero for every image: give some of them weight")
    return weights


def names_of(labels: Sequence[Any], class_names: ClassNames) -> tuple[str, ...]:
    """The labels as texts, each with what the text tower reads: its name in `class_names`, or else itself."""
    chosen = []
    for label in labels:
        try:
            name = label if class_names is None else class_names[label]
        except (LookupError, TypeError):
            raise InputError(
                f"class_names: none for label {label!r}: give {{label: name}}, or a list for labels 0, 1, …"
            ) from None
        chosen.append(names.from_label(str(name)))
    texts = [str(label) for label in labels]
    names.check_distinct(texts, chosen, "y")
    return names.with_names(texts, dict(zip(texts, chosen, strict=True)))
