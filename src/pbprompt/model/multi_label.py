"""`MultiLabelModel`: a model of several labels an image, from fit to answers; `TunedModel` is that of one."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.clip.loading.formats import check_finite
from pbprompt.core.label_head import LabelHead
from pbprompt.core.likelihood import unit
from pbprompt.data.items import Item
from pbprompt.data.multi_label import LabelledImage, MultiLabelDataset
from pbprompt.data.names import name_key
from pbprompt.errors import InputError, NoNumberError
from pbprompt.evaluate.multi_label import mean_average_precision, multi_label_figures
from pbprompt.features.bank import FeatureBank, Features
from pbprompt.methods.abilities import MultiLabel, can
from pbprompt.methods.base import Method, MethodConfig, build_method
from pbprompt.model.card import ModelInfo
from pbprompt.model.folder import VERSION, describe_model, read_info, towers_of
from pbprompt.model.manifest import (
    FORMAT,
    HASHES,
    WEIGHTS,
    ModelFiles,
    check_replaceable,
    hashes,
    opened,
    write_model,
)
from pbprompt.model.multi_label_card import multi_label_card
from pbprompt.model.predictor import DIGITS
from pbprompt.model.scoring import zero_shot
from pbprompt.registry import methods
from pbprompt.suggest import suggest
from pbprompt.train.tune import Bank

PATHS_AT_ONCE = 256  # of many files: answers come as they are made
AnyPath = TypeVar("AnyPath", str, Path)


@dataclass(frozen=True)
class Labels:
    """What is said of one image; probabilities are rounded as they are shown."""

    labels: tuple[str, ...]  # at or above their thresholds, likeliest first; may be none
    scores: dict[str, float]  # probability of every label, in the labels' order; they do not sum to 1

    def to_dict(self) -> dict[str, Any]:
        """As it is written: the same fields everywhere."""
        return {"labels": list(self.labels), "scores": self.scores}


@dataclass(frozen=True, eq=False)
class MultiLabelModel:
    """Frozen towers, what tells the labels apart, and what made it."""

    backbone: Backbone
    head: LabelHead
    info: ModelInfo

    def __repr__(self) -> str:
        backbone = self.info.backbone["name"]
        return f"MultiLabelModel({self.info.method!r}, backbone={backbone!r}, {len(self.classes)} labels)"

    @property
    def classes(self) -> tuple[str, ...]:
        return self.info.classes

    @property
    def thresholds(self) -> dict[str, float]:
        """The probability from which on an image is said to have a label."""
        return {
            name: round(value, 2)
            for name, value in zip(self.classes, self.head.threshold.tolist(), strict=True)
        }

    @classmethod
    def fit(
        cls,
        dataset: MultiLabelDataset,
        bank: Bank,
        kind: type[Method],
        config: MethodConfig | None = None,
        *,
        seed: int = 1,
    ) -> Self:
        """Fit a method that takes several labels to all training images.

        `seed` changes nothing but what `info` says: nothing is drawn.
        """
        backbone = bank.backbone
        method = build_method(kind, config or kind.Config(), backbone, seed)
        check_method(method)
        method.prepare(dataset.classes, dataset.template)
        if len(dataset.train) < 2:
            raise InputError(f"{dataset.name} has {len(dataset.train)} training images: give two or more")
        wanted = targets(dataset.train, len(dataset.classes))
        _check_labels(dataset, wanted, method)
        features = bank.encode(dataset.root, _items(dataset.train))
        images = Encoded(features.global_.to(backbone.device), features.patches)
        assert can(method, MultiLabel)  # as `check_method` saw to
        head = method.label_head(images, wanted.to(backbone.device))
        facts = {"dataset": dataset.name, "content_hash": dataset.content_hash}
        facts["images"] = str(len(dataset.train))
        info = replace(describe_model(method, seed=seed, data=facts), several_labels=True)
        return cls(backbone, head, info)

    @classmethod
    def load(
        cls,
        folder: str | Path | ModelFiles,
        backbone: Backbone | str | None = None,
        device: str | torch.device = "cpu",
    ) -> Self:
        """A saved model; `backbone`: one that is loaded already, or where its weights are if they moved."""
        files = opened(folder)
        info, path = read_info(files), files.folder / WEIGHTS
        if not info.several_labels:
            raise InputError(f"{files.folder}: fitted to one label an image: it is a TunedModel")
        towers = towers_of(files.folder, info, backbone, device)
        try:
            state = load(files.part(WEIGHTS) or b"")
            check_finite(path, state)
            head = LabelHead(**state)
            classes, width = len(info.classes), towers.embed_dim
            shapes = [(classes, width), (classes,), (classes,), (classes,)]
            if [tuple(part.shape) for part in head] != shapes:
                raise ValueError(f"not of {classes} labels and {width} dimensions")
        except (OSError, SafetensorError, TypeError, ValueError) as error:
            why = str(error).splitlines()[0]
            raise InputError(f"{path}: does not hold this model's parameters ({why}): fit it again") from None
        return cls(towers, LabelHead(*(part.to(towers.device) for part in head)), info)

    def save(self, folder: str | Path, name: str = "") -> None:
        """Write a model folder, whose card calls it `name`: whole, or a former model stays."""
        place = Path(folder)
        check_replaceable(place)
        state = {key: value.detach().cpu().contiguous() for key, value in self.head._asdict().items()}
        parts = {WEIGHTS: save(state)}
        about = {"format": FORMAT, "version": VERSION, **asdict(self.info), HASHES: hashes(parts)}
        config = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
        card = multi_label_card(self.info, self.thresholds, name or str(folder))
        write_model(place, parts, card.encode(), config.encode())

    def probabilities(self, images: Encoded) -> Float[Tensor, "n k"]:
        """Of every label, as they are shown: rounded."""
        said = self.head.probabilities(unit(images.global_.to(self.backbone.device).float()))
        if not said.isfinite().all():
            raise NoNumberError(
                "the answer is no number, since the towers' features are none: take float32, or encode again"
            )
        return said.double().cpu().mul(10**DIGITS).round().div(10**DIGITS)

    def predict(self, images: Encoded) -> list[Labels]:
        """Which labels each image has, perhaps none, and the probability of every label."""
        levels = self.thresholds
        answers = []
        for row in self.probabilities(images).tolist():
            scores = dict(zip(self.classes, row, strict=True))
            given = [name for name, score in scores.items() if score >= levels[name]]
            answers.append(Labels(tuple(sorted(given, key=lambda name: -scores[name])), scores))
        return answers

    def predict_files(
        self, paths: Sequence[AnyPath], *, progress: bool = True
    ) -> Iterator[tuple[AnyPath, Labels | InputError]]:
        """The answer of each file, in order; an unreadable one gives its error."""
        bank = FeatureBank(self.backbone, progress=progress)
        for at in range(0, len(paths), PATHS_AT_ONCE):
            some = paths[at : at + PATHS_AT_ONCE]
            failures: dict[str, InputError] = {}
            features = bank.encode(Path(), [Item(str(path), 0) for path in some], failures)
            images = Encoded(features.global_, features.patches)
            said = iter(self.predict(images)) if len(features) else iter(())
            yield from ((path, failures.get(str(path)) or next(said)) for path in some)

    def checked(self, dataset: MultiLabelDataset, bank: Bank) -> Self:
        """With its figures on the test split, where there is one."""
        if not dataset.test:
            return self
        figures = {"split": "test", **self.evaluate(dataset, "test", bank)}
        return replace(self, info=replace(self.info, metrics=figures))

    def evaluate(self, dataset: MultiLabelDataset, split: str, bank: Bank) -> dict[str, Any]:
        """Its figures on a split.

        `zero_shot_map` is that of ranking images by their cosine to the names, if the backbone reads names.
        """
        images = dataset.split(split)
        if not images:
            raise InputError(f"{dataset.name} has no {split} images: choose another split")
        columns = self._columns(dataset)
        features = bank.encode(dataset.root, _items(images))
        has = torch.zeros(len(images), len(self.classes), dtype=torch.bool)
        has[:, columns] = targets(images, len(dataset.classes)).bool()
        said = self.probabilities(Encoded(features.global_, features.patches))
        given = said >= torch.tensor(list(self.thresholds.values()), dtype=said.dtype)
        figures = multi_label_figures(said, has, given, self.classes)
        if self.backbone.reads_text:
            figures["zero_shot_map"] = mean_average_precision(self._cosines(features), has)
        return {**figures, "thresholds": self.thresholds}

    def _columns(self, dataset: MultiLabelDataset) -> list[int]:
        """The place of each of the dataset's labels among the model's."""
        known = {name_key(name): place for place, name in enumerate(self.classes)}
        for name in dataset.classes:
            if name_key(name) not in known:
                hint = suggest(name, self.classes)
                raise InputError(f"{dataset.name}: the model does not know the label {name!r}: {hint}")
        return [known[name_key(name)] for name in dataset.classes]

    def _cosines(self, features: Features) -> Float[Tensor, "n k"]:
        names = unit(zero_shot(self.backbone, self.classes, self.info.template).bank[0])
        return (unit(features.global_.to(names)) @ names.T).cpu()


def check_method(method: Method | type[Method]) -> None:
    """Refuse a method that takes one label an image alone, and name those that take several."""
    able = [name for name, kind in methods().items() if can(kind, MultiLabel)]
    if method.name not in able:
        raise InputError(f"{method.name} takes one label an image: to fit several, use {', '.join(able)}")
    if not can(method, MultiLabel):
        raise InputError(f"{method.name} with these settings takes one label an image: use its default ones")


def targets(images: Sequence[LabelledImage], classes: int) -> Float[Tensor, "n k"]:
    """1 where an image has a label, 0 where not."""
    table = torch.zeros(len(images), classes)
    for row, image in enumerate(images):
        table[row, list(image.labels)] = 1
    return table


def _items(images: Sequence[LabelledImage]) -> list[Item]:
    """For a bank, which wants no labels."""
    return [Item(image.path, 0) for image in images]


def _check_labels(dataset: MultiLabelDataset, wanted: Float[Tensor, "n k"], method: Method) -> None:
    """Refuse labels that nothing can be learned of."""
    for name, count in zip(dataset.classes, wanted.sum(0).tolist(), strict=True):
        if count == len(wanted):
            raise InputError(
                f"{dataset.name}: every training image has the label {name!r}, so nothing tells it apart: "
                "leave it out, or add images without it"
            )
        if not count and not method.takes_new_names:
            raise InputError(
                f"{dataset.name}: no training image has the label {name!r}, and {method.name} with these "
                "settings reads no names: give it some, or another prior"
            )
