"""`pbprompt evaluate`: the figures of a saved model on a split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pbprompt.cli.output import print_json
from pbprompt.errors import InputError, install_command

if TYPE_CHECKING:
    from pbprompt.data.items import Dataset


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
    as_json: bool = typer.Option(False, "--json", help="Print everything as one JSON object."),
) -> None:
    """See how good a model is and where it fails: figures, weakest classes, what it confuses.

    Accuracy, NLL and calibration error stand beside zero-shot's, of the same backbone. A class's recall is
    the share of its images that are named so; its precision, the share of images named so that are of it.

    [bold]pbprompt evaluate model/ photos/ --html report.html[/bold]

    On the test split also how often prediction sets hold the true class, and of which class they do worst.

    The data's own class names are used: names the model was not tuned on need no training.

    Of a model of several labels an image: mAP, and precision, recall and F1 of all labels and of each.
    """
    from rich.console import Console

    from pbprompt import distributed
    from pbprompt.cli.fit import print_figures
    from pbprompt.cli.multi_label import evaluate_labels, refuse
    from pbprompt.data.sources import open_dataset
    from pbprompt.features.bank import FeatureBank
    from pbprompt.model.manifest import has_several_labels
    from pbprompt.model.tuned import TunedModel
    from pbprompt.report import plots
    from pbprompt.report.model_figures import terminal_tables, write_figures
    from pbprompt.report.model_page import write_model_page

    if has_several_labels(model):
        refuse(
            {"--html": html, "--figures": figures_folder},
            f"{model} gives several labels an image, of which there is no page and no confusion matrix",
        )
        evaluate_labels(
            model,
            data,
            split,
            backbone=backbone,
            device=device,
            root=root,
            classes_file=classes_file,
            as_json=as_json,
        )
        return
    tuned = TunedModel.load(model, backbone, distributed.start(device), samples=samples, seed=seed)
    # a folder without a split is split by seed: another seed would test on what was trained on
    dataset = open_dataset(data, root, classes_file=classes_file, seed=tuned.info.seed)
    items = dataset.split(split)
    if not items:
        raise InputError(f"{dataset.name} has no {split} items: choose another --split")
    bank = FeatureBank(tuned.backbone, progress=distributed.is_main() and not as_json)
    other = _other_classes(tuned.classes, dataset.classes)
    tuned = tuned.for_classes(dataset.classes, dataset.template)
    features = bank.encode(dataset.root, items)
    figures, answers = tuned.judge(features, [item.path for item in items], sets=split == "test")
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
    if html is not None:
        facts = {
            "Model": str(model),
            "Method": tuned.info.method,
            "Backbone": tuned.info.backbone["name"],
            "Data": dataset.name,
            "Split": f"{split}, {len(items):,} images of {len(dataset.classes)} classes",
        }
        if other:
            facts["Classes"] = other
        write_model_page(html, facts, figures, answers, dataset.root)
        told.print(f"wrote {html}")
    if figures_folder is not None:
        told.print(f"wrote {figures_folder}: {', '.join(write_figures(answers, figures_folder))}")
        if not plots.available():
            told.print(f"pictures need matplotlib: {install_command('plots')}")
    if as_json:
        facts = {"model": str(model), "data": dataset.name, "root": str(dataset.root), "split": split}
        print_json({**facts, **figures, **answers.to_dict()})
        return
    print_figures({"split": split, **figures})
    console = Console(highlight=False)
    for part in terminal_tables(answers, dataset.root, console.width):
        console.print(part)
    if html is None:
        told.print("--html FILE writes all of this as one page, with pictures")


def _split_anew(fitted: Mapping[str, str | int], dataset: "Dataset") -> bool:
    """Whether the data has changed since, and has no split of its own that would hold."""
    same_name = fitted.get("dataset") == dataset.name
    by_seed = any(note.startswith("Split ") for note in dataset.notes)
    return same_name and by_seed and fitted.get("content_hash") != dataset.content_hash


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
