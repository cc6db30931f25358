"""What `evaluate` and `fit` print of a model's figures, and what they should be read with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from pbprompt.apps.audit.duplicates import twins
from pbprompt.apps.cli.output import print_table, screen
from pbprompt.files import as_text
from pbprompt.model.calibration import chosen
from pbprompt.model.card import GROUP_HEADS, TRADE_HEADS, class_cells, evaluated_on, group_cells, trade_cells
from pbprompt.model.metrics.classification import worst_first
from pbprompt.model.metrics.evaluation import Evaluation
from pbprompt.model.scoring import RIVALS
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.items import Dataset, some

SHOWN_LABELS = 12
MOST_IN_MATRIX = 12  # classes whose confusion matrix fits a terminal
MOST_CLASSES, MOST_PAIRS = 12, 5
SURELY = 1.645  # standard errors: by chance in one case of twenty


def twin_words(dataset: Dataset, split: str, bank: FeatureCache) -> str:
    """A line on images of a split that are training images too; nothing where none are."""
    if not (found := twins(dataset, split, bank)):
        return ""
    return (
        f"warning: {len(found):,} of these images are among the others too, so that the figures flatter: "
        f"{some(map(as_text, found))} (`pbprompt look` lists duplicates)"
    )


def print_figures(metrics: dict[str, Any], *, verbose: bool = True) -> None:
    """Tuned beside zero-shot and, where they were fitted, plain classifiers of the same training images."""
    if "map" in metrics:
        print_label_figures(metrics)
        return
    plain = {"zero-shot": metrics.get("zero_shot"), **metrics.get("rivals", {}), **metrics.get("models", {})}
    rows = {**plain, "tuned": metrics, "together": metrics.get("together")}
    compare({name: row for name, row in rows.items() if row}, verbose=verbose)
    typer.secho(f"on {evaluated_on(metrics)}", dim=True)
    if verbose:
        typer.secho("NLL: surprise at the truth; ECE: stated certainty less truth; both best at 0", dim=True)
        if "macro_recall" in metrics:
            print(f"each class counted the same, {metrics['macro_recall']:.2%} are right")
        if sets := metrics.get("sets"):
            print(
                f"sets for --coverage {sets['asked']:g} hold the true class of {sets['coverage']:.1%} of "
                f"them, and of {sets['hard_coverage']:.1%} of the hardest quarter, with "
                f"{sets['mean_size']:.1f} classes on average; worst class: {sets['worst_class']}, "
                f"{sets['worst_class_coverage']:.1%} of {sets['worst_class_images']}"
            )
    print_trade(metrics.get("trade", ()), "what came of it on these images")
    if rows := metrics.get("groups", ()):
        print("What --back-off promises, and what came of it on these images")
        print_table(GROUP_HEADS, map(group_cells, rows), right=GROUP_HEADS)


def print_trade(trade: Sequence[Mapping[str, Any]], what: str) -> None:
    """Three promises, the share of images answered and of answers right."""
    if rows := chosen(trade):
        print(f"What --reject-at promises, and {what}")
        print_table(TRADE_HEADS, map(trade_cells, rows), right=TRADE_HEADS)


def ahead_words(metrics: Mapping[str, Any], method: str) -> str:
    """What to do where a plain classifier of the same images is right clearly more often; else nothing.

    Clearly: by `SURELY` standard errors of the difference, taken as if each were judged by images of its own.
    """
    rivals, images = metrics.get("rivals", {}), metrics.get("series", metrics.get("images", 0))
    right = {name: rivals[name]["accuracy"] for name in RIVALS if name in rivals}
    if not right:
        return ""
    best, own = max(right, key=lambda name: right[name]), metrics["accuracy"]
    other = right[best]
    if other - own <= SURELY * ((own * (1 - own) + other * (1 - other)) / images) ** 0.5:
        return ""
    return (
        f"the {RIVALS[best]} is clearly ahead of {method} on these images ({other:.1%} right against "
        f"{own:.1%}): --method {best} fits it"
    )


def compare(
    rows: Mapping[str, Mapping[str, Any]], console: Console | None = None, *, verbose: bool = True
) -> None:
    """Print the accuracy of each and, of those who ask for it, NLL and ECE."""
    shown = [
        (RIVALS.get(name, name), f"{of['accuracy']:.2%}", f"{of['nll']:.3f}", f"{of['ece']:.2%}")
        for name, of in rows.items()
    ]
    columns = 4 if verbose else 2
    print_table(("", "accuracy", "NLL", "ECE")[:columns], [row[:columns] for row in shown], console=console)


def print_tables(answers: Evaluation, root: Path) -> None:
    """Classes (the weakest of many), the confusion matrix of few, and the pairs confused most often."""
    names, counts = answers.classes, answers.confusion
    worst, title = worst_first(answers.per_class)[:MOST_CLASSES], "Classes"
    if len(worst) < len(names):
        title = f"Weakest {len(worst)} of {len(names)} classes"
    rows = [
        (one.name, *class_cells(one)) for one in (worst if len(worst) < len(names) else answers.per_class)
    ]
    heads = ("images", "recall", "precision", "F1")
    typer.secho(f"\n{title}", bold=True)
    print_table(("class", *heads), rows, right=heads)
    cell = max(len(str(counts.max())), len(str(len(names)))) + 2
    if len(names) <= MOST_IN_MATRIX and 20 + cell * len(names) <= screen().width:
        typer.secho("\nConfusion matrix: a row per true class, a column per answer", bold=True)
        numbers = [str(place) for place in range(1, len(names) + 1)]
        matrix = []
        for at, (name, row) in enumerate(zip(names, counts.tolist(), strict=True)):
            styles = ["bold" if other == at else "red" if count else "dim" for other, count in enumerate(row)]
            shown = [Text(str(count or "·"), style) for count, style in zip(row, styles, strict=True)]
            matrix.append((f"{at + 1} {name}", *shown))
        print_table(("", *numbers), matrix, right=numbers)
    if not answers.confused:
        return
    more = f", {MOST_PAIRS} of {count}" if (count := len(answers.confused)) > MOST_PAIRS else ""
    below = f"with the image it was surest of, below {as_text(str(root))}"
    typer.secho(f"\nMost confused pairs{more}, {below}", bold=True)
    pairs = []
    for pair in answers.confused[:MOST_PAIRS]:
        images = f"{pair.images} of {answers.per_class[pair.true].images}"
        example = answers.paths[answers.examples(pair, 1)[0]]
        pairs.append((names[pair.true], names[pair.taken_for], images, example))
    columns = ("true class", "taken for", "images", "for example")
    print_table(columns, pairs, right=("images",), paths=("for example",))


def print_label_figures(figures: Mapping[str, Any]) -> None:
    """All labels together beside the names alone, then the labels, the worst first."""
    means = ("mAP", "F1", "precision", "recall")
    rows: list[tuple[object, ...]] = [("names alone", _percent(figures.get("zero_shot_map")), "", "", "")]
    for name, mean in (("micro", figures["map"]), ("macro", None)):
        shares = [_percent(figures[name][key]) for key in ("f1", "precision", "recall")]
        rows.append((name, _percent(mean), *shares))
    print_table(("", *means), rows[0 if "zero_shot_map" in figures else 1 :], right=means)
    typer.secho(
        f"{figures['split']} split, {figures['images']:,} images; {figures['labels_there']:,} labels there, "
        f"{figures['labels_given']:,} given; {figures['exact']:.1%} of the images have all of theirs right",
        dim=True,
    )
    listed = [one for one in figures["labels"] if one["images"]]
    worst = sorted(listed, key=lambda one: one["average_precision"])[:SHOWN_LABELS]
    print(f"Labels, the worst {len(worst)} of {len(listed)}" if len(listed) > len(worst) else "Labels")
    rows = []
    for one in worst:
        shares = [_percent(one[key]) for key in ("average_precision", "f1", "precision", "recall")]
        threshold = f"{figures['thresholds'][one['class']]:.2f}"
        rows.append((one["class"], one["images"], one["answered"], *shares, threshold))
    columns = ("images", "given", "AP", "F1", "precision", "recall", "threshold")
    print_table(("label", *columns), rows, right=columns)
    if missing := figures["labels_without_image"]:
        typer.secho(f"{missing} labels that no image of the split has are in no mean", dim=True)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"
