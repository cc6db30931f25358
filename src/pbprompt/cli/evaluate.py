"""`pbprompt evaluate`: the figures of a saved model on a split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.cli.output import print_json, refuse, tell
from pbprompt.errors import install_command

if TYPE_CHECKING:
    from rich.table import Table

    from pbprompt.data.items import Dataset
    from pbprompt.features.bank import FeatureBank
    from pbprompt.model.tuned import TunedModel

SHOWN_LABELS = 12


def evaluate(
    model: Path = typer.Argument(..., help="A folder that `pbprompt fit` wrote."),
    data: str = typer.Argument(..., help="A folder, table or split file; or a benchmark's name with --root."),
    split: str = typer.Option("test", help="train, val or test."),
    samples: int = typer.Option(20, min=1, help="Prompts sampled for each class."),
    seed: int = typer.Option(0, help="Seed of the sampled prompts."),
    backbone: str | None = typer.Option(None, help="Where the model's backbone is now, if it has moved."),
    device: str = typer.Option("auto", help="auto (a GPU where there is one), cpu, cuda or cuda:N."),
    root: Path | None = typer.Option(None, help="Where the benchmarks are (or $PBPROMPT_DATA)."),
    classes_file: Path | None = typer.Option(None, help="Maps folder names or labels to class names."),
    html: Path | None = typer.Option(
        None, help="Write the model report, one page with pictures of what it confuses, to this file."
    ),
    figures_folder: Path | None = typer.Option(
        None, "--figures", help="Write the confusion matrix and more, as CSV, SVG and PNG, into this folder."
    ),
    against_others: bool = typer.Option(
        False,
        "--against",
        help="Beside it what others make of the same training images: class mean, nearest neighbours, linear "
        "probe, and scikit-learn's LR, LDA, kNN and SVM by cross-validation.",
    ),
    together: bool = typer.Option(
        False, "--together", help="Also its figures where the images inform each other."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print everything as one JSON object."),
) -> None:
    """See how good a model is and where it fails: figures, weakest classes, what it confuses.

    Accuracy, NLL and calibration error stand beside zero-shot's, of the same backbone. A class's recall is
    the share of its images that are named so; its precision, the share of images named so that are of it.

    [bold]pbprompt evaluate model/ photos/ --html report.html[/bold]

    [bold]pbprompt evaluate model/ photos/ --against[/bold] puts a table of other classifiers beside it.

    On the test split also how often prediction sets hold the true class, and of which class they do worst.

    The data's own class names are used: names the model was not tuned on need no training.

    Of a multi-label model: mAP, and precision, recall and F1 of all labels and of each.
    """
    from rich.console import Console

    from pbprompt import distributed
    from pbprompt.data.sources import open_dataset
    from pbprompt.evaluate.answers import Answers
    from pbprompt.features.bank import FeatureBank
    from pbprompt.findings.corrections import corrected
    from pbprompt.findings.duplicates import twins
    from pbprompt.model.tuned import TunedModel
    from pbprompt.report import plots
    from pbprompt.report.model_figures import terminal_tables, write_figures
    from pbprompt.report.model_page import write_label_page, write_model_page

    tuned = TunedModel.load(model, backbone, distributed.start(device), samples=samples, seed=seed)
    if tuned.multi_label:
        refuse({"--figures": figures_folder}, f"{model} is multi-label, which has no confusion matrix")
        refuse({"--together": together or None}, f"{model} is multi-label")
    # data without a split is split by seed: another seed would test on what was trained on
    dataset = open_dataset(data, root, classes_file=classes_file, seed=tuned.info.seed)
    decided = tuned.info.data.get("options", {}).get("corrections")
    if decided and tuned.info.data.get("dataset") == dataset.name and Path(decided).exists():
        dataset = corrected(dataset, Path(decided))[0]
    bank = FeatureBank(tuned.backbone, progress=distributed.is_main() and not as_json)
    other = ""
    if not tuned.multi_label:
        other = _other_classes(tuned.classes, dataset.single_label().classes)
        tuned = tuned.for_classes(dataset.classes, dataset.template)
    figures, answers = tuned.judge(dataset, split, bank)
    if against_others:
        refuse({"--against": tuned.multi_label or None}, f"{model} is multi-label")
        figures["rivals"] = _others(tuned, dataset, split, bank)
    if together:
        features = bank.encode(dataset.root, dataset.split(split))
        figures["together"] = tuned.together(features.global_).evaluate(features, sets=False)
    main = distributed.is_main()
    distributed.stop()
    if not main:
        return
    told = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    if other:
        told.print(f"note: {other}")
    if split != "train" and _split_anew(tuned.info.data, dataset):
        told.print(
            f"warning: {dataset.name} is not as it was when the model was fitted, and is split by seed: "
            "images that it was trained on may be among these"
        )
    if split != "train" and tuned.info.data.get("content_hash") == dataset.whole.content_hash:
        told.print(twin_words(twins(dataset, split, bank)), end="")
    if html is not None:
        kinds = "labels" if tuned.multi_label else "classes"
        facts = {
            "Model": str(model),
            "Method": tuned.info.method,
            "Backbone": tuned.info.backbone["name"],
            "Data": dataset.name,
            "Split": f"{split}, {len(answers):,} images of {len(tuned.classes)} {kinds}",
        }
        if other:
            facts["Classes"] = other
        if isinstance(answers, Answers):
            write_model_page(html, facts, figures, answers, dataset.root)
        else:
            write_label_page(html, facts, figures, answers, dataset.root)
        told.print(f"wrote {html}")
    if figures_folder is not None and isinstance(answers, Answers):
        told.print(f"wrote {figures_folder}: {', '.join(write_figures(answers, figures_folder))}")
        if not plots.available():
            told.print(f"pictures need matplotlib: {install_command('plots')}")
    if as_json:
        facts = {"model": str(model), "data": dataset.name, "root": str(dataset.root), "split": split}
        more = answers.to_dict() if isinstance(answers, Answers) else {}
        print_json({**facts, **figures, **more})
        return
    print_figures({"split": split, **figures})
    console = Console(highlight=False)
    if isinstance(answers, Answers):
        for part in terminal_tables(answers, dataset.root, console.width):
            console.print(part)
    if html is None:
        told.print("--html FILE writes all of this as one page, with pictures")


def _others(tuned: "TunedModel", dataset: "Dataset", split: str, bank: "FeatureBank") -> dict[str, Any]:
    """Each fitted to the training images that the model was: its draw, or all of the data's."""
    from pbprompt.data.fewshot import draw
    from pbprompt.model.against import against
    from pbprompt.model.scoring import rival_figures

    seed, shots = tuned.info.seed, tuned.info.shots
    few = draw(dataset, shots, seed).apply(dataset) if shots else dataset
    train, test = (bank.encode(dataset.root, items) for items in (few.train, dataset.split(split)))
    found = rival_figures(tuned.backbone, tuned.classes, train, test, seed, tuned.info.method)
    for name, row in against(train, test, seed):
        tell(f"{name}: done")
        found[name] = row
    return found


def _split_anew(fitted: Mapping[str, str | int], dataset: "Dataset") -> bool:
    """Whether the data has changed since, and has no split of its own that would hold."""
    same_name = fitted.get("dataset") == dataset.name
    return same_name and dataset.split_by_seed and fitted.get("content_hash") != dataset.content_hash


def _other_classes(own: Sequence[str], asked: Sequence[str]) -> str:
    """In what the data's classes are not those the model was tuned on, which makes the task another one."""
    from pbprompt.data.items import some
    from pbprompt.explain.prompts import missing_names

    new, left_out = missing_names(own, asked), missing_names(asked, own)
    parts = [f"known by name alone: {some(new)}"] if new else []
    parts += (
        [f"no possible answer here, since the data has no such class: {some(left_out)}"] if left_out else []
    )
    return "; ".join(parts)


def twin_words(found: Sequence[str]) -> str:
    """A line on images of a split that are training images too; nothing where none are."""
    from pbprompt.data.items import some
    from pbprompt.files import as_text

    if not found:
        return ""
    return (
        f"warning: {len(found):,} of these images are training images too, so that the figures flatter: "
        f"{some(map(as_text, found))} (`pbprompt look` lists duplicates)\n"
    )


def print_figures(metrics: dict[str, Any]) -> None:
    """Tuned beside zero-shot and, where they were fitted, plain classifiers of the same training images."""
    from rich.console import Console

    if "map" in metrics:
        print_label_figures(metrics)
        return
    plain = {"zero-shot": metrics["zero_shot"]} if "zero_shot" in metrics else {}
    joint = {"together": metrics["together"]} if "together" in metrics else {}
    Console().print(figures_table({**plain, **metrics.get("rivals", {}), "tuned": metrics, **joint}))
    Console().print(f"[dim]{metrics['split']} split, {metrics['images']} images[/]")
    if sets := metrics.get("sets"):
        Console(markup=False, highlight=False, soft_wrap=True).print(
            f"sets for --coverage {sets['asked']:g} hold the true class of {sets['coverage']:.1%} of them, "
            f"and of {sets['hard_coverage']:.1%} of the hardest quarter, with {sets['mean_size']:.1f} "
            f"classes on average; worst class: {sets['worst_class']}, {sets['worst_class_coverage']:.1%} of "
            f"{sets['worst_class_images']}"
        )


def figures_table(rows: Mapping[str, Mapping[str, Any]]) -> "Table":
    """Accuracy, NLL and ECE of each."""
    from rich.table import Table

    from pbprompt.model.scoring import RIVALS

    table = Table("", "accuracy", "NLL", "ECE", box=None)
    for name, values in rows.items():
        shown = f"{values['accuracy']:.2%}", f"{values['nll']:.3f}", f"{values['ece']:.2%}"
        table.add_row(RIVALS.get(name, name), *shown)
    return table


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
