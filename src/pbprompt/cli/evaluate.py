"""`pbprompt evaluate`: the figures of a saved model on a split."""

from pathlib import Path

import typer

from pbprompt.cli.output import print_json
from pbprompt.errors import InputError


def evaluate(
    model: Path = typer.Argument(..., help="A folder that `pbprompt fit` wrote."),
    data: str = typer.Argument(..., help="A folder, table or split file; or a benchmark's name with --root."),
    split: str = typer.Option("test", help="train, val or test."),
    samples: int = typer.Option(20, min=1, help="Prompts sampled for each class."),
    seed: int = typer.Option(0, help="Seed of the sampled prompts."),
    backbone: str | None = typer.Option(None, help="Where the model's backbone is now, if it has moved."),
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:N."),
    root: Path | None = typer.Option(None, help="Where the benchmarks are (or $PBPROMPT_DATA)."),
    classes_file: Path | None = typer.Option(None, help="Maps folder names or labels to class names."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Accuracy, NLL, calibration error and more, with zero-shot of the same backbone beside them.

    On the test split also how often prediction sets hold the true class, and of which class they do worst.

    The data's own class names are used: names the model was not tuned on need no training.
    """
    from pbprompt import distributed
    from pbprompt.cli.fit import print_figures
    from pbprompt.data.sources import open_dataset
    from pbprompt.features.bank import FeatureBank
    from pbprompt.model.tuned import TunedModel

    tuned = TunedModel.load(model, backbone, distributed.start(device), samples=samples, seed=seed)
    # a folder without a split is split by seed: another seed would test on what was trained on
    dataset = open_dataset(data, root, classes_file=classes_file, seed=tuned.info.seed)
    items = dataset.split(split)
    if not items:
        raise InputError(f"{dataset.name} has no {split} items: choose another --split")
    bank = FeatureBank(tuned.backbone, progress=distributed.is_main() and not as_json)
    tuned = tuned.for_classes(dataset.classes, dataset.template)
    figures = tuned.evaluate(bank.encode(dataset.root, items), sets=split == "test")
    main = distributed.is_main()
    distributed.stop()
    if not main:
        return
    if as_json:
        print_json({"model": str(model), "data": dataset.name, "split": split, **figures})
    else:
        print_figures({"split": split, **figures})
