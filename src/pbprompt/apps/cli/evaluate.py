"""`pbprompt evaluate`: the figures of a saved model on a split."""

import sys
from functools import partial
from pathlib import Path

import typer
from rich.console import Console

from pbprompt.apps.cli.output import print_json, refuse
from pbprompt.errors import install_command


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
    from pbprompt import distributed
    from pbprompt.apps.audit.corrections import corrected
    from pbprompt.apps.audit.duplicates import twins
    from pbprompt.apps.cli.figures import other_classes, others, print_figures, twin_words
    from pbprompt.apps.pages import plots
    from pbprompt.apps.pages.model_figures import terminal_tables, write_figures
    from pbprompt.apps.pages.model_page import write_model_page
    from pbprompt.model.metrics.answers import Answers
    from pbprompt.model.tuned import TunedModel
    from pbprompt.prompts.loop.tune import bank_on
    from pbprompt.vision.features.cache import FeatureBank
    from pbprompt.vision.images.fewshot import draw
    from pbprompt.vision.images.sources import open_dataset

    tuned = TunedModel.load(model, backbone, distributed.start(device), samples=samples, seed=seed)
    if tuned.multi_label:
        refuse({"--figures": figures_folder}, f"{model} is multi-label, which has no confusion matrix")
        others_given = {"--together": together or None, "--against": against_others or None}
        refuse(others_given, f"{model} is multi-label")
    # data without a split is split by seed: another seed would test on what was trained on
    dataset = open_dataset(data, root, classes_file=classes_file, seed=tuned.info.seed)
    fitted = tuned.info.data
    decided = fitted.options.get("corrections")
    if isinstance(decided, str) and fitted.dataset == dataset.name and Path(decided).exists():
        dataset = corrected(dataset, Path(decided))[0]
    bank = FeatureBank(tuned.backbone, progress=distributed.is_main() and not as_json)
    other = ""
    if not tuned.multi_label:
        other = other_classes(tuned.classes, dataset.single_label().classes)
        tuned = tuned.for_classes(dataset.classes, dataset.template)
    seed, shots = tuned.info.seed, tuned.info.shots
    few = draw(dataset, shots, seed).apply(dataset) if against_others and shots else dataset
    figures, answers = tuned.judge(few, split, bank, rivals=against_others)
    if against_others:
        figures["rivals"] |= others(few, split, bank_on(bank, tuned.method.given), seed)
    if together:
        features = bank.encode(dataset.root, dataset.split(split))
        figures["together"] = tuned.together(features.global_).judge(dataset, split, bank)[0]
    main = distributed.is_main()
    distributed.stop()
    if not main:
        return
    told = partial(print, file=sys.stderr)
    if other:
        told(f"note: {other}")
    changed = fitted.dataset == dataset.name and fitted.content_hash != dataset.content_hash
    if split != "train" and changed and dataset.split_by_seed:
        told(
            f"warning: {dataset.name} is not as it was when the model was fitted, and is split by seed: "
            "images that it was trained on may be among these"
        )
    if split != "train" and fitted.content_hash == dataset.whole.content_hash:
        told(twin_words(twins(dataset, split, bank)), end="")
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
        write_model_page(html, facts, figures, answers, dataset.root)
        told(f"wrote {html}")
    if figures_folder is not None and isinstance(answers, Answers):
        files = write_figures(answers, figures_folder, figures.get("trade", ()))
        told(f"wrote {figures_folder}: {', '.join(files)}")
        if not plots.available():
            told(f"pictures need matplotlib: {install_command('plots')}")
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
        told("--html FILE writes all of this as one page, with pictures")
