"""What `evaluate` and `fit` print of a model's figures, and what they should be read with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from pbprompt.apps.cli.output import print_table, screen, tell
from pbprompt.files import as_text
from pbprompt.model.calibration import chosen
from pbprompt.model.card import GROUP_HEADS, TRADE_HEADS, class_cells, group_cells, judged_on, trade_cells
from pbprompt.model.evaluate import LEFT_OUT, evaluate
from pbprompt.model.learn import Bank, bank_on
from pbprompt.model.metrics.classification import worst_first
from pbprompt.model.metrics.evaluation import Evaluation, MultiLabelEvaluation
from pbprompt.model.metrics.resampling import sign_test
from pbprompt.model.scoring import RIVALS, against
from pbprompt.model.series import series_of
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.items import Dataset, some
from pbprompt.vision.images.names import missing_names

SHOWN_LABELS = 12
MOST_IN_MATRIX = 12  # classes whose confusion matrix fits a terminal
MOST_CLASSES, MOST_PAIRS = 12, 5
SURELY = 1.645  # standard errors: by chance in one case of twenty


def others(few: Dataset, split: str, bank: Bank, seed: int, group: str = "") -> dict[str, Any]:
    """scikit-learn's classifiers, each fitted to the training images that the model was; `group`: how their
    series are told."""
    train = bank.encode(few.root, few.train)
    test = None if split == LEFT_OUT else bank.encode(few.root, few.whole.split(split))
    found = {}
    groups = series_of(few, few.train, bank, group)
    for name, figures in against(train, test, seed, groups):
        tell(f"{name}: done")
        found[name] = figures
    return found


def other_classes(own: Sequence[str], asked: Sequence[str]) -> str:
    """In what the data's classes are not those the model was tuned on, which makes the task another one."""
    parts = {
        "known by name alone": missing_names(own, asked),
        "no possible answer here, since the data has no such class": missing_names(asked, own),
    }
    return "; ".join(f"{what}: {some(names)}" for what, names in parts.items() if names)


def twin_words(found: Sequence[str]) -> str:
    """A line on images of a split that are training images too; nothing where none are."""
    if not found:
        return ""
    return (
        f"warning: {len(found):,} of these images are among the others too, so that the figures flatter: "
        f"{some(map(as_text, found))} (`pbprompt look` lists duplicates)\n"
    )


def print_figures(metrics: dict[str, Any], *, verbose: bool = True) -> None:
    """Tuned beside zero-shot and, where they were fitted, plain classifiers of the same training images."""
    if "map" in metrics:
        print_label_figures(metrics)
        return
    plain = {"zero-shot": metrics["zero_shot"]} if "zero_shot" in metrics else {}
    joint = {"together": metrics["together"]} if "together" in metrics else {}
    models = metrics.get("models", {})
    compare({**plain, **metrics.get("rivals", {}), **models, "tuned": metrics, **joint}, verbose=verbose)
    typer.secho(f"on {judged_on(metrics)}", dim=True)
    if verbose:
        typer.secho("NLL: surprise at the truth; ECE: stated certainty less truth; both best at 0", dim=True)
    if verbose and "macro_recall" in metrics:
        print(f"each class counted the same, {metrics['macro_recall']:.2%} are right")
    if verbose and (sets := metrics.get("sets")):
        print(
            f"sets for --coverage {sets['asked']:g} hold the true class of {sets['coverage']:.1%} of them, "
            f"and of {sets['hard_coverage']:.1%} of the hardest quarter, with {sets['mean_size']:.1f} "
            f"classes on average; worst class: {sets['worst_class']}, {sets['worst_class_coverage']:.1%} of "
            f"{sets['worst_class_images']}"
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
    best = max(
        (name for name in rivals if name in RIVALS), key=lambda one: rivals[one]["accuracy"], default=""
    )
    if not best:
        return ""
    own, other = metrics["accuracy"], rivals[best]["accuracy"]
    if other - own <= SURELY * ((own * (1 - own) + other * (1 - other)) / images) ** 0.5:
        return ""
    return (
        f"the {RIVALS[best]} is clearly ahead of {method} on these images ({other:.1%} right against "
        f"{own:.1%}): --method {best} fits it"
    )


def compare_models(
    former: TunedModel,
    name: Path,
    dataset: Dataset,
    split: str,
    bank: Bank,
    now: Evaluation | MultiLabelEvaluation,
) -> tuple[dict[str, Any], str]:
    """The figures of another model on the same images, and how sure the difference is, in words."""
    figures, before = evaluate(former, dataset, split, bank_on(bank, former.backbone))
    if not (isinstance(now, Evaluation) and isinstance(before, Evaluation)):
        return {str(name): figures}, ""
    better, worse = int((now.right & ~before.right).sum()), int((~now.right & before.right).sum())
    words = f"right now and wrong by {name}: {better:,} images; the other way: {worse:,}"
    if better != worse:
        words += f" (chance alone makes such a difference in {sign_test(better, worse):.0%} of cases)"
    return {str(name): figures}, words


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
    worst = worst_first(answers.per_class)[:MOST_CLASSES]
    every = len(worst) == len(answers.classes)
    title = "Classes" if every else f"Weakest {len(worst)} of {len(answers.classes)} classes"
    typer.secho(f"\n{title}", bold=True)
    rows = [(one.name, *class_cells(one)) for one in (answers.per_class if every else worst)]
    heads: tuple[str, ...] = ("images", "recall", "precision", "F1")
    print_table(("class", *heads), rows, right=heads, pad_edge=False)
    cell = max(len(str(answers.confusion.max())), len(str(len(answers.classes)))) + 2
    if len(answers.classes) <= MOST_IN_MATRIX and 20 + cell * len(answers.classes) <= screen().width:
        typer.secho("\nConfusion matrix: a row per true class, a column per answer", bold=True)
        numbers = [str(place + 1) for place in range(len(answers.classes))]
        matrix = [
            (
                f"{place + 1} {name}",
                *(
                    Text(str(count) if count else "·", "bold" if at == place else "red" if count else "dim")
                    for at, count in enumerate(counts)
                ),
            )
            for place, (name, counts) in enumerate(
                zip(answers.classes, answers.confusion.tolist(), strict=True)
            )
        ]
        print_table(("", *numbers), matrix, right=numbers, pad_edge=False)
    if not answers.confused:
        return
    count = len(answers.confused)
    more = f", {MOST_PAIRS} of {count}" if count > MOST_PAIRS else ""
    typer.secho(
        f"\nMost confused pairs{more}, with the image it was surest of, below {as_text(str(root))}", bold=True
    )
    pairs = [
        (
            answers.classes[pair.true],
            answers.classes[pair.taken_for],
            f"{pair.images} of {answers.per_class[pair.true].images}",
            answers.paths[answers.examples(pair, 1)[0]],
        )
        for pair in answers.confused[:MOST_PAIRS]
    ]
    columns = ("true class", "taken for", "images", "for example")
    print_table(columns, pairs, right=("images",), paths=("for example",), pad_edge=False)


def print_label_figures(figures: Mapping[str, Any]) -> None:
    """All labels together beside the names alone, then the labels, the worst first."""
    columns: tuple[str, ...] = ("mAP", "F1", "precision", "recall")
    rows: list[tuple[object, ...]] = []
    if "zero_shot_map" in figures:
        rows.append(("names alone", _percent(figures["zero_shot_map"])))
    for name in ("micro", "macro"):
        shown = [_percent(figures[name][key]) for key in ("f1", "precision", "recall")]
        rows.append((name, _percent(figures["map"]) if name == "micro" else "", *shown))
    print_table(("", *columns), rows, right=columns)
    typer.secho(
        f"{figures['split']} split, {figures['images']:,} images; {figures['labels_there']:,} labels there, "
        f"{figures['labels_given']:,} given; {figures['exact']:.1%} of the images have all of theirs right",
        dim=True,
    )
    listed = [one for one in figures["labels"] if one["images"]]
    worst = sorted(listed, key=lambda one: one["average_precision"])[:SHOWN_LABELS]
    columns = ("images", "given", "AP", "F1", "precision", "recall", "threshold")
    rows = []
    for one in worst:
        shares = [_percent(one[key]) for key in ("average_precision", "f1", "precision", "recall")]
        threshold = f"{figures['thresholds'][one['class']]:.2f}"
        rows.append((one["class"], one["images"], one["answered"], *shares, threshold))
    print(f"Labels, the worst {len(worst)} of {len(listed)}" if len(listed) > len(worst) else "Labels")
    print_table(("label", *columns), rows, right=columns)
    if missing := figures["labels_without_image"]:
        typer.secho(f"{missing} labels that no image of the split has are in no mean", dim=True)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"
