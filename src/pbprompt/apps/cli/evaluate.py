"""`pbprompt evaluate`: the figures of a saved model on a split."""

import sys
from enum import StrEnum
from functools import partial
from pathlib import Path

import typer

from pbprompt.apps.cli.options import BACKBONE, CLASS_MIX, DEVICE, MODEL, NAMES, ROOT, SAMPLES, SEED
from pbprompt.apps.cli.output import next_step, print_json, quote, refuse
from pbprompt.errors import InputError, install_command


class SplitChoice(StrEnum):
    """Which of the images."""

    train, val, test, all = "train", "val", "test", "all"


def evaluate(
    model: Path = MODEL,
    data: str = typer.Argument(..., help="A folder, table or split file; or a benchmark's name with --root."),
    split: SplitChoice | None = typer.Option(
        None, help="train, val, test or all; else test or, where the data has no split, all its images."
    ),
    samples: int = SAMPLES,
    seed: int = SEED,
    backbone: list[str] = BACKBONE,
    device: str = DEVICE,
    root: Path | None = ROOT,
    classes_file: Path | None = NAMES,
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
    against_model: Path | None = typer.Option(
        None, help="Beside it another model, such as an earlier one, on the same images."
    ),
    together: bool = typer.Option(
        False, "--together", help="Also its figures where the images inform each other."
    ),
    class_mix: str = typer.Option("as-trained", help=f"{CLASS_MIX} Give that of these images."),
    as_json: bool = typer.Option(False, "--json", help="Print everything as one JSON object."),
) -> None:
    """See how good a model is and where it fails: figures, weakest classes, what it confuses.

    Accuracy, NLL and calibration error stand beside zero-shot's, of the same backbone. A class's recall is
    the share of its images that are named so; its precision, the share of images named so that are of it.

    [bold]pbprompt evaluate model/ photos/ --html report.html[/bold]

    [bold]pbprompt evaluate model/ photos/ --against[/bold] puts a table of other classifiers beside it.

    On the test split also how often prediction sets hold the true class, and of which class they do worst.

    A folder without a split is judged whole. Where the model was fitted to that very folder, each image is
    judged by a model that did not see it.

    The data's own class names are used: names the model was not tuned on need no training.

    Of a multi-label model: mAP, and precision, recall and F1 of all labels and of each.
    """
    from pbprompt import distributed
    from pbprompt.apps.audit.duplicates import twins
    from pbprompt.apps.cli.batch import for_class_mix
    from pbprompt.apps.cli.figures import (
        compare_models,
        other_classes,
        others,
        print_figures,
        print_tables,
        twin_words,
    )
    from pbprompt.apps.cli.judged_images import OTHERS_TRAIN, called_as, judged_images
    from pbprompt.apps.explain.cases import of_mistakes
    from pbprompt.apps.pages import plots
    from pbprompt.apps.pages.model_page import write_figures, write_model_page
    from pbprompt.model.decisions import TRAINED
    from pbprompt.model.evaluate import LEFT_OUT, evaluate
    from pbprompt.model.learn import bank_on
    from pbprompt.model.metrics.evaluation import Evaluation
    from pbprompt.model.tuned import TunedModel
    from pbprompt.vision.features.cache import FeatureBank
    from pbprompt.vision.images.fewshot import draw

    tuned = TunedModel.load(model, backbone, distributed.start(device), samples=samples, seed=seed)
    if tuned.multi_label:
        refuse({"--figures": figures_folder}, f"{model} is multi-label, which has no confusion matrix")
        others_given = {"--together": together or None, "--against": against_others or None}
        refuse(
            others_given | {"--class-mix": None if class_mix == TRAINED else class_mix},
            f"{model} is multi-label",
        )
    bank = FeatureBank(tuned.backbone, progress=distributed.is_main() and not as_json)
    part_asked = split.value if split else None
    judged = judged_images(tuned, data, root, classes_file, part_asked, bank, beside_others=against_others)
    dataset, part = judged.dataset, judged.split
    shown = "all" if judged.whole and part != LEFT_OUT else part
    other = "" if tuned.multi_label else other_classes(tuned.classes, dataset.classes)
    tuned = for_class_mix(judged.model, class_mix)
    seed, shots = tuned.info.seed, tuned.info.shots
    few = draw(dataset, shots, seed).apply(dataset) if against_others and shots else dataset
    if against_others and not few.train:
        raise InputError(OTHERS_TRAIN)
    figures, answers = evaluate(tuned, few, part, bank, rivals=against_others)
    if against_others:
        figures["rivals"] |= others(few, part, bank_on(bank, tuned.method.given), seed, tuned.info.data.group)
    if together:
        refuse({"--together": True if part == LEFT_OUT else None}, "it takes images kept aside from the fit")
        features = bank.encode(dataset.root, dataset.split(part))
        figures["together"] = evaluate(tuned.together(features.global_), dataset, part, bank)[0]
    compared = ""
    if against_model is not None:
        refuse(
            {"--against-model": True if part == LEFT_OUT else None}, "it takes images that neither learned"
        )
        former = TunedModel.load(against_model, device=tuned.backbone.device, samples=samples, seed=0)
        if not tuned.multi_label:
            former = former.for_classes(called_as(former, dataset, classes_file).classes, dataset.template)
        figures["models"], compared = compare_models(former, against_model, few, part, bank, answers)
    main = distributed.is_main()
    distributed.stop()
    if not main:
        return
    told = partial(print, file=sys.stderr)
    told(judged.words)
    if other:
        told(f"note: {other}")
    if judged.warning:
        told(f"warning: {judged.warning}")
    elif tuned.info.data.dataset == dataset.name:
        told(twin_words(twins(dataset, part, bank)), end="")
    if html is not None:
        kinds = "labels" if tuned.multi_label else "classes"
        facts = {
            "Model": str(model),
            "Method": tuned.info.method,
            "Backbone": tuned.info.backbone["name"],
            "Data": dataset.name,
            "Images": f"{judged.words}, of {len(tuned.classes)} {kinds}",
        } | ({} if class_mix == TRAINED else {"Class mix": class_mix})
        if other:
            facts["Classes"] = other
        alike = {}
        if isinstance(answers, Evaluation) and part != LEFT_OUT:  # else an image is like itself
            alike = of_mistakes(tuned, answers, dataset.root)
        write_model_page(html, facts, figures, answers, dataset.root, alike)
        told(f"wrote {html}")
    if figures_folder is not None and isinstance(answers, Evaluation):
        files = write_figures(answers, figures_folder, figures.get("trade", ()))
        told(f"wrote {figures_folder}: {', '.join(files)}")
        if not plots.available():
            told(f"pictures need matplotlib: {install_command('plots')}")
    if as_json:
        facts = {"model": str(model), "data": dataset.name, "root": str(dataset.root), "split": shown}
        more = answers.to_dict() if isinstance(answers, Evaluation) else {}
        print_json({**facts, **figures, **more})
        return
    print_figures({"split": shown, **figures})
    if compared:
        print(compared)
    if isinstance(answers, Evaluation):
        print_tables(answers, dataset.root)
    if html is None:
        told("--html FILE writes all of this as one page, with pictures")
    if against_model is None:
        next_step(f"pbprompt next UNLABELLED/ --model {quote(model)}", "which images to label next")
