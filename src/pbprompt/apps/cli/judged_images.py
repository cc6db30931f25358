"""Which images `pbprompt evaluate` judges a model by, and what is to be said of them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pbprompt import distributed
from pbprompt.apps.audit.corrections import corrected
from pbprompt.errors import InputError
from pbprompt.model.evaluate import LEFT_OUT, can_leave_out
from pbprompt.model.series import by_path
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureBank, without_unreadable
from pbprompt.vision.images.build_dataset import NONE, Shares
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.images.names import by_any_name, called, known_as
from pbprompt.vision.images.series import from_rows
from pbprompt.vision.images.sources import open_dataset

ALL = "all"
OTHERS_TRAIN = "--against fits others to the model's own training images: give the data that it was fitted to"


class Judged(NamedTuple):
    """The images, and how they stand to the model."""

    model: TunedModel
    """prepared for the data's classes"""
    dataset: Dataset
    split: str
    """of the dataset, or left-out"""
    words: str
    whole: bool
    """whether it is all of the data"""
    warning: str


def judged_images(
    model: TunedModel,
    data: str,
    root: Path | None,
    classes_file: Path | None,
    split: str | None,
    bank: FeatureBank,
    *,
    beside_others: bool = False,
) -> Judged:
    """Those of a split that is asked for; else the test split; else, where data has none, all of them.

    What a model was fitted to whole is judged by leaving out, where that can be done. `beside_others`: whose
    training images must be among them, which is refused before images are read where that can be told.
    """
    fitted = model.info.data
    dataset, own = _as_fitted(model, data, root, classes_file, bank, beside_others)
    dataset, dropped = regrouped(dataset, fitted.regrouped)
    dataset = called_as(model, dataset, classes_file)
    if not model.multi_label:
        model = model.for_classes(dataset.single_label().classes, dataset.template)
    whole, undivided = len(dataset.items), len(dataset.train) == len(dataset.items)
    notes = [dropped] if dropped else []
    if unreadable := sum(why == "unreadable" for _, why in dataset.skipped):
        lost = "1 image" if unreadable == 1 else f"{unreadable:,} images"
        notes.append(f"left out, since unreadable: {lost} (`pbprompt look` names them)")
    if undivided and split is None and own and not fitted.added and can_leave_out(model, dataset):
        words = f"the {whole:,} images that it was fitted to, each judged by a model that did not see it"
        return Judged(model, dataset, LEFT_OUT, f"{dataset.name}: {words}", True, "; ".join(notes))
    part = split or (ALL if undivided else "test")
    if part == ALL:
        dataset = replace(dataset, train=(), val=(), test=dataset.items, held_out=NONE)
    count = len(dataset.split("test" if part == ALL else part))
    if not count:
        raise InputError(f"{data} has no {part} images: leave --split out to judge them all")
    words = f"all {count:,} images" if count == whole else f"{count:,} {part} images of {whole:,}"
    words += "" if count == whole else " (--split all judges every one)"
    if own and (part in (ALL, "train")):
        notes.append("the model was fitted to images that are among these, so that the figures flatter")
    elif not own and fitted.dataset == dataset.name and (undivided or dataset.split_by_seed):
        notes.append(
            f"{dataset.name} is not as it was when the model was fitted: images that it was fitted to may be "
            "among these"
        )
    part = "test" if part == ALL else part
    return Judged(model, dataset, part, f"{dataset.name}: {words}", count == whole, "; ".join(notes))


def _as_fitted(
    model: TunedModel,
    data: str,
    root: Path | None,
    classes_file: Path | None,
    bank: FeatureBank,
    beside_others: bool,
) -> tuple[Dataset, bool]:
    """The data, split as when the model was fitted to it; and whether it is what the model was fitted to."""
    seed, fitted = model.info.seed, model.info.data
    same = fitted.options.get("data") == str(Path(data).expanduser().absolute())
    series = fitted.group if same and from_rows(fitted.group) else ""  # by which it was split

    def read(held_out: Shares, found: Mapping[str, str] | None = None) -> Dataset:
        dataset = open_dataset(
            data,
            root,
            classes_file=classes_file,
            seed=seed,
            held_out=held_out,
            group=series,
            series=found,
            nested=bool(fitted.options.get("nested")),
        )
        decided = fitted.options.get("corrections")
        if isinstance(decided, str) and fitted.dataset == dataset.name and Path(decided).exists():
            called = called_as(model, dataset, classes_file)
            labels = dict(zip(called.classes, dataset.classes, strict=True))
            dataset = corrected(called, Path(decided))[0]
            dataset = replace(dataset, classes=tuple(labels[name] for name in dataset.classes))
        return dataset

    def ways(first: Dataset) -> Iterator[Dataset]:
        yield first
        if len(first.train) == len(first.items) and (shares := fitted.held_out):
            yield readable(read((shares[0], shares[1]), by_path(first, bank, fitted.group)))
        yield replace(first, train=first.items, val=(), test=())  # as --hold-out 0 has it

    def readable(dataset: Dataset) -> Dataset:
        files = Path(data).expanduser().exists() and distributed.world()[1] == 1
        return without_unreadable(dataset, bank)[0] if files else dataset

    def own(dataset: Dataset) -> bool:
        of_earlier = called_as(model, dataset, classes_file).content_hash
        return fitted.content_hash in (dataset.labelled_hash, of_earlier)

    first = read(NONE)
    other = not same and fitted.dataset != first.name and len(first.train) == len(first.items)
    if beside_others and other and not fitted.held_out and not own(first):  # a split by series takes features
        raise InputError(OTHERS_TRAIN)
    first = readable(first)
    return next(((dataset, True) for dataset in ways(first) if own(dataset)), (first, False))


def called_as(model: TunedModel, dataset: Dataset, names: Path | None) -> Dataset:
    """The data with the model's names of its classes, unless others are given."""
    pairs = zip(dataset.classes, known_as(model.classes, dataset.classes), strict=True)
    return replace(dataset, classes=tuple(one if names and one == known else known for one, known in pairs))


def regrouped(dataset: Dataset, named: Mapping[str, str | None]) -> tuple[Dataset, str]:
    """The dataset with its classes called as `pbprompt model` has them since; without those it removed."""
    former, new = by_any_name([*named]), [*named.values()]
    if not any(called(former, name) for name in dataset.classes):
        return dataset, ""
    names = [new[rows[0]] if (rows := called(former, name)) else name for name in dataset.classes]
    classes = tuple(dict.fromkeys(name for name in names if name is not None))
    place = [None if name is None else classes.index(name) for name in names]

    found = dataset.with_labels(lambda item: place[item.label], classes=classes)
    gone = len(dataset.items) - len(found.items)
    words = f"{gone:,} images of classes that were removed from the model are left out" if gone else ""
    return found, words
