"""`fit`, `predict` and `evaluate`, where a table or a model has several labels an image."""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbprompt.cli.batch import print_answers, written
from pbprompt.cli.output import print_json
from pbprompt.errors import InputError

if TYPE_CHECKING:
    from pbprompt.batch.job import Executor
    from pbprompt.batch.on_ray import Load
    from pbprompt.batch.output import Output
    from pbprompt.batch.parts import Say
    from pbprompt.clip.backbone import Backbone
    from pbprompt.data.stream import Stream
    from pbprompt.methods.base import Method, MethodConfig
    from pbprompt.model.multi_label import Labels

SHOWN_LABELS = 12


def refuse(options: Mapping[str, object], why: str) -> None:
    """Refuse the options that were given and mean nothing here: `options` has those that were not as None."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name}: {why}: leave it out")


def fit_labels(
    data: str,
    out: Path,
    kind: "type[Method]",
    config: "MethodConfig",
    *,
    seed: int,
    backbone: str,
    activation: str | None,
    device: str,
    root: Path | None,
    classes_file: Path | None,
    held: AbstractContextManager[None],
    dry_run: bool,
) -> None:
    """Fit to a table of several labels an image, and save; `held` keeps the folder for this run alone."""
    from rich.console import Console

    from pbprompt.clip.loading.load import load_backbone
    from pbprompt.data.multi_label import open_multi_label
    from pbprompt.features.bank import FeatureBank
    from pbprompt.model.multi_label import MultiLabelModel, check_method
    from pbprompt.model.multi_label_card import least

    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    check_method(kind)
    dataset = open_multi_label(data, root, classes_file=classes_file, seed=seed)
    console.print(dataset.describe())
    bank = FeatureBank(load_backbone(backbone, activation=activation, device=device), progress=True)
    with nullcontext() if dry_run else held:
        model = MultiLabelModel.fit(dataset, bank, kind, config, seed=seed)
        alone = [name for name, n in zip(model.classes, model.head.positives.tolist(), strict=True) if not n]
        if alone:
            console.print(f"known by name alone, since no training image has them: {', '.join(alone)}")
        if dry_run:
            console.print("dry run: fitted, nothing written")
            return
        model = model.checked(dataset, bank)
        model.save(out)
    if model.info.metrics:
        print_label_figures(model.info.metrics)
    console.print(
        f"a label is given where its probability is at least {least(model.thresholds)}: that has the best "
        f"F1 on the {len(dataset.train):,} training images, each left out in turn"
    )
    console.print(f"saved: {out}")


def predict_labels(
    folder: Path,
    stream: "Stream",
    backbone: str | None,
    device: str,
    top_k: int,
    as_json: bool,
    features: bool,
    output: "Output | None",
    choose: "Callable[[Callable[[], Load]], Executor]",
) -> None:
    """Say which labels images have; `choose` gives what answers, wherever that loads the model."""
    from pbprompt.batch.job import Job
    from pbprompt.model.manifest import opened
    from pbprompt.model.multi_label import MultiLabelModel

    files = opened(folder)
    in_csv = output is not None and output.suffix == ".csv"

    def load() -> "tuple[Backbone, Say]":
        model = MultiLabelModel.load(files, backbone, device)
        if not in_csv:
            return model.backbone, model.predict
        return model.backbone, lambda images: [_InCsv(said) for said in model.predict(images)]

    known_by = {"model": hashlib.sha256(json.dumps(dict(files.config)).encode()).hexdigest()}
    job = Job(*load(), stream, known_by, features)
    if output is None:
        print_answers(job, as_json, lambda rows: _print_answers(rows, top_k))
    else:
        written(job, output, choose(lambda: load))


def evaluate_labels(
    folder: Path,
    data: str,
    split: str,
    *,
    backbone: str | None,
    device: str,
    root: Path | None,
    classes_file: Path | None,
    as_json: bool,
) -> None:
    """The figures of a model of several labels on a split."""
    from pbprompt.data.multi_label import is_multi_label, open_multi_label
    from pbprompt.features.bank import FeatureBank
    from pbprompt.model.multi_label import MultiLabelModel

    if not is_multi_label(data):
        raise InputError(
            f"{data}: {folder} gives several labels an image: give a table with a column 'labels', as in "
            "beach|dog"
        )
    model = MultiLabelModel.load(folder, backbone, device)
    # a table without splits is split by seed: another seed would test on what was trained on
    dataset = open_multi_label(data, root, classes_file=classes_file, seed=model.info.seed)
    figures = model.evaluate(dataset, split, FeatureBank(model.backbone, progress=not as_json))
    if as_json:
        facts = {"model": str(folder), "data": dataset.name, "root": str(dataset.root), "split": split}
        print_json({**facts, **figures})
    else:
        print_label_figures({"split": split, **figures})


def print_label_figures(figures: Mapping[str, Any]) -> None:
    """All labels together beside the names alone, then the labels, the worst first."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    console = Console(markup=False, highlight=False)
    table = Table("", *(_right(name) for name in ("mAP", "F1", "precision", "recall")), box=None)
    if "zero_shot_map" in figures:
        table.add_row("names alone", _percent(figures["zero_shot_map"]), "", "", "")
    for name in ("micro", "macro"):
        shown = [_percent(figures[name][key]) for key in ("f1", "precision", "recall")]
        table.add_row(name, _percent(figures["map"]) if name == "micro" else "", *shown)
    console.print(table)
    console.print(
        f"{figures['split']} split, {figures['images']:,} images; {figures['labels_there']:,} labels there, "
        f"{figures['labels_given']:,} given; {figures['exact']:.1%} of the images have all of theirs right",
        style="dim",
    )
    listed = [one for one in figures["labels"] if one["images"]]
    worst = sorted(listed, key=lambda one: one["average_precision"])[:SHOWN_LABELS]
    columns = ("images", "given", "AP", "F1", "precision", "recall", "threshold")
    table = Table(Column("label", overflow="fold"), *map(_right, columns), box=None)
    for one in worst:
        shares = [_percent(one[key]) for key in ("average_precision", "f1", "precision", "recall")]
        threshold = f"{figures['thresholds'][one['class']]:.2f}"
        table.add_row(Text(one["class"]), str(one["images"]), str(one["answered"]), *shares, threshold)
    console.print(
        f"Labels, the worst {len(worst)} of {len(listed)}" if len(listed) > len(worst) else "Labels"
    )
    console.print(table)
    if missing := figures["labels_without_image"]:
        console.print(f"{missing} labels that no image of the split has are in no mean", style="dim")


def _right(name: str) -> Any:
    from rich.table import Column

    return Column(name, justify="right")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"


class _InCsv:
    """In a CSV labels stand as `fit` reads them."""

    def __init__(self, said: "Labels") -> None:
        self._said = said

    def to_dict(self) -> dict[str, Any]:
        from pbprompt.data.tables import SEPARATOR

        return self._said.to_dict() | {"labels": SEPARATOR.join(self._said.labels)}


def _print_answers(rows: "Sequence[tuple[str, Labels]]", top_k: int) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    names = [f"{place}." for place in range(1, min(top_k, len(rows[0][1].scores)) + 1)]
    table = Table(Column("image", overflow="fold"), Column("labels", overflow="fold"), *names, box=None)
    for name, said in rows:
        best = sorted(said.scores.items(), key=lambda pair: -pair[1])[: len(names)]
        cells = [f"{label} {score:.1%}" for label, score in best]
        table.add_row(*map(Text, (name, ", ".join(said.labels) or "–", *cells)))
    wide = None if sys.stdout.isatty() else 200  # a file or a pipe has no screen to fit
    Console(width=wide, markup=False, highlight=False).print(table)
