"""`pbprompt prompts`: how alike a model's sampled prompts are, which words they are near, where they lie."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.apps.cli.options import BACKBONE, BY_MODEL, DEVICE, LOOKED_AT, ROOT, SAMPLES_SHOWN, SEED
from pbprompt.apps.cli.output import print_json, print_table, tell
from pbprompt.errors import InputError

if TYPE_CHECKING:
    from pbprompt.learners.method import Method


def prompts(
    model: Path = BY_MODEL,
    names: list[str] = LOOKED_AT,
    words: int = typer.Option(3, min=0, help="Nearest vocabulary words of each learned token; 0: none."),
    samples: int = SAMPLES_SHOWN,
    seed: int = SEED,
    map_file: Path | None = typer.Option(
        None, "--map", help="Draw a map of the prompts: .png, .svg or .csv."
    ),
    images: str = typer.Option(
        "", help="A dataset whose images go onto the map: folder, table or benchmark."
    ),
    per_class: int = typer.Option(20, min=1, help="Images of each class on the map, at most."),
    root: Path | None = ROOT,
    backbone: list[str] = BACKBONE,
    device: str = DEVICE,
    as_json: bool = typer.Option(False, "--json", help="A JSON object per class: class, cosine, words."),
) -> None:
    """Show how alike the sampled prompts of each class are, the words near them, and a map of them.

    [bold]pbprompt prompts --model model/ --class pug --words 5[/bold]

    [bold]pbprompt prompts --model model/ --samples 20 --map map.png --images photos/[/bold]

    `alike` is the mean cosine between two sampled prompts of a class: 1 means that all say the same. Words
    are those nearest to each learned token by cosine; a low cosine means that the word says little. The map
    shows the two principal axes (PCA) of prompts and images; as .csv it is written as numbers.
    """
    import numpy as np

    from pbprompt.apps.cli.explain import model_with
    from pbprompt.apps.explain.prompt_map import draw_prompt_map, map_prompts
    from pbprompt.apps.explain.prompts import prompt_words, sampled_prompts
    from pbprompt.apps.pages.plots import save
    from pbprompt.files import write_text
    from pbprompt.vision.images.names import class_rows
    from pbprompt.vision.similarity import pair_cosine

    if map_file is not None and map_file.suffix.lower() not in (".png", ".svg", ".csv"):
        raise InputError(f"--map {map_file}: is written as .png, .svg or .csv: give a name that ends so")
    if images and map_file is None:
        raise InputError("--images: they go onto a map: give --map map.png too")
    tuned = model_with(model, names, backbone, device)
    method = tuned.method
    rows = class_rows(method.classes, names or method.classes)
    drawn = sampled_prompts(method, samples, seed)[:, rows]
    chosen = [method.classes[row] for row in rows]
    alike = pair_cosine(drawn).tolist() if len(drawn) > 1 else [None] * len(rows)
    spoken = prompt_words(method, rows, words, samples, seed) if words else [[] for _ in rows]
    if words and not spoken[0][0]:
        tell(f"no words: {method.name} has no token embeddings to show: use a model of pbprompt or coop")
        spoken = [[] for _ in rows]
    if as_json:
        for name, cosine, own in zip(chosen, alike, spoken, strict=True):
            print_json({"class": name, "cosine": cosine, "words": own})
    else:
        _print_table(chosen, alike, spoken)
    if map_file is not None:
        features, labels = np.empty((0, drawn.shape[-1])), np.empty(0, np.int64)
        if images:
            features, labels = _image_features(method, chosen, images, per_class, root, tuned.info.seed)
        found = map_prompts(drawn.float().cpu().numpy(), features, labels, chosen)
        if map_file.suffix.lower() == ".csv":
            write_text(map_file, found.as_csv())
        else:
            save(draw_prompt_map(found), map_file)
        print(f"written: {map_file}", file=sys.stderr)


# of a class: samples, tokens, then the nearest words of that token with their cosines
Spoken = list[list[list[tuple[str, float]]]]


def _print_table(classes: Sequence[str], alike: Sequence[float | None], spoken: Sequence[Spoken]) -> None:
    tokens = max((len(sample) for own in spoken for sample in own), default=0)
    columns = ["class", "alike", *(["prompt"] if tokens else []), *map(str, range(1, tokens + 1))]
    rows: list[list[str]] = []
    for name, cosine, own in zip(classes, alike, spoken, strict=True):
        start = [name, "one prompt" if cosine is None else f"{cosine:.3f}"]
        if not own:
            rows.append(start)
        for number, sample in enumerate(own, 1):
            cells = [" ".join(f"{word} {near:.2f}" for word, near in token) for token in sample]
            rows.append([*(start if number == 1 else ["", ""]), str(number), *cells])
    print_table(columns, rows)


def _image_features(
    method: "Method", classes: Sequence[str], data: str, per_class: int, root: Path | None, seed: int
) -> tuple[Any, Any]:
    """Features of some test images (or others, where there are none) of the classes, and their labels."""
    import random

    from pbprompt.vision.features.cache import FeatureBank
    from pbprompt.vision.images.items import Item
    from pbprompt.vision.images.names import class_rows, missing_names
    from pbprompt.vision.images.sources import open_dataset

    # with the model's seed, the split that `fit` made: its test images were not trained on
    dataset = open_dataset(data, root, seed=seed).single_label()
    items: list[Item] = []
    for label, name in enumerate(dataset.classes):
        if missing_names(classes, [name]):
            continue
        own = [item for item in dataset.test or dataset.val or dataset.train if item.label == label]
        some = random.Random(seed).sample(own, min(per_class, len(own)))
        items += [Item(item.path, class_rows(classes, [name])[0]) for item in some]
    if not items:
        raise InputError(
            f"--images {data}: has no image of {', '.join(classes[:3])}…: give data of these classes"
        )
    features = FeatureBank(method.backbone).encode(dataset.root, items)
    return features.global_.float().numpy(), features.labels.numpy()
