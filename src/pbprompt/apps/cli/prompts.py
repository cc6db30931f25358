"""`pbprompt research prompts`, `captions`: how alike sampled prompts are, where they lie, what they mean."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pbprompt.apps.cli.explain import model_with
from pbprompt.apps.cli.options import (
    BACKBONE,
    BY_MODEL,
    DEVICE,
    LOOKED_AT,
    ROOT,
    SAMPLES_SHOWN,
    SEED,
    check_suffix,
)
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

    [bold]pbprompt research prompts --model model/ --class pug --words 5[/bold]

    [bold]pbprompt research prompts --model model/ --samples 20 --map map.png --images photos/[/bold]

    `alike` is the mean cosine between two sampled prompts of a class: 1 means that all say the same. Words
    are those nearest to each learned token by cosine; a low cosine means that the word says little. The map
    shows the two principal axes (PCA) of prompts and images; as .csv it is written as numbers.
    """
    import numpy as np

    from pbprompt.apps.explain.prompt_map import draw_prompt_map, map_prompts
    from pbprompt.apps.explain.prompts import prompt_words, sampled_prompts
    from pbprompt.apps.pages.plots import save
    from pbprompt.files import write_text
    from pbprompt.vision.images.names import class_rows
    from pbprompt.vision.similarity import pair_cosine

    check_suffix("--map", map_file, ".png", ".svg", ".csv")
    if images and map_file is None:
        raise InputError("--images: they go onto a map: give --map map.png too")
    tuned = model_with(model, names, backbone, device)
    method = tuned.method
    chosen = class_rows(method.classes, names or method.classes)
    classes = [method.classes[row] for row in chosen]
    drawn = sampled_prompts(method, samples, seed)[:, chosen]
    alike = pair_cosine(drawn).tolist() if len(drawn) > 1 else [None] * len(chosen)
    spoken = prompt_words(method, chosen, words, samples, seed) if words else [[] for _ in chosen]
    if words and not spoken[0][0]:
        tell(f"no words: {method.name} has no token embeddings to show: use a model of pbprompt or coop")
        spoken = [[] for _ in chosen]
    rows: list[tuple[str, ...]] = []
    for name, cosine, own in zip(classes, alike, spoken, strict=True):
        if as_json:
            print_json({"class": name, "cosine": cosine, "words": own})
        start = (name, "one prompt" if cosine is None else f"{cosine:.3f}")
        rows += [] if own else [start]
        for number, sample in enumerate(own, 1):
            cells = (" ".join(f"{word} {near:.2f}" for word, near in token) for token in sample)
            rows.append((*(start if number == 1 else ("", "")), str(number), *cells))
    if not as_json:
        tokens = map(str, range(1, max(map(len, rows)) - 2))
        print_table(("class", "alike", *(["prompt"] if any(spoken) else []), *tokens), rows)
    if map_file is not None:
        features, labels = np.empty((0, drawn.shape[-1])), np.empty(0, np.int64)
        if images:
            features, labels = _image_features(method, classes, images, per_class, root, tuned.info.seed)
        found = map_prompts(drawn.float().cpu().numpy(), features, labels, classes)
        if map_file.suffix.lower() == ".csv":
            write_text(map_file, found.as_csv())
        else:
            save(draw_prompt_map(found), map_file)
        print(f"written: {map_file}", file=sys.stderr)


def _image_features(
    method: "Method", classes: list[str], data: str, per_class: int, root: Path | None, seed: int
) -> tuple[Any, Any]:
    """Features of some test images (or others, where there are none) of the classes, and their labels."""
    import random

    from pbprompt.vision.features.cache import FeatureCache
    from pbprompt.vision.images.items import Item
    from pbprompt.vision.images.names import by_any_name, called
    from pbprompt.vision.images.sources import open_dataset

    # with the model's seed, the split that `fit` made: its test images were not trained on
    dataset = open_dataset(data, root, seed=seed).single_label()
    known, items = by_any_name(classes), []
    for label, name in enumerate(dataset.classes):
        if rows := called(known, name):
            own = [item for item in dataset.test or dataset.val or dataset.train if item.label == label]
            some = random.Random(seed).sample(own, min(per_class, len(own)))
            items += [Item(item.path, rows[0]) for item in some]
    if not items:
        raise InputError(
            f"--images {data}: has no image of {', '.join(classes[:3])}…: give data of these classes"
        )
    features = FeatureCache(method.backbone).encode(dataset.root, items)
    return features.global_.float().numpy(), features.labels.numpy()


def captions(
    model: Path = BY_MODEL,
    captions_file: Path = typer.Option(..., "--captions", help="A UTF-8 text file, one caption per line."),
    names: list[str] = LOOKED_AT,
    top_k: int = typer.Option(5, min=1, help="How many captions to show for each prompt."),
    samples: int = SAMPLES_SHOWN,
    seed: int = SEED,
    backbone: list[str] = BACKBONE,
    device: str = DEVICE,
    as_json: bool = typer.Option(
        False, "--json", help="A JSON object per line: class, prompt, captions, words."
    ),
) -> None:
    """Find the captions nearest to each sampled prompt of a class, by the cosine of their text features.

    [bold]pbprompt research captions --model model/ --captions captions.txt --class pug --top-k 2[/bold]

    Describe the classes in many ways, and see which of the ways each sampled prompt is close to. Below them
    are the words nearest to its learned tokens, one each; they seldom make sense.
    """
    from pbprompt.apps.explain.prompts import nearest_captions, read_captions

    method = model_with(model, names, backbone, device).method
    texts = read_captions(captions_file, method.backbone.towers[0].tokenizer)
    rows: list[tuple[object, ...]] = []
    for prompt in nearest_captions(method, texts, names or None, top_k, samples, seed):
        if as_json:
            print_json({"class": prompt.class_name, **prompt.to_dict()})
        start: tuple[object, ...] = (prompt.class_name, prompt.sample + 1)
        for text, cosine in prompt.captions:
            rows.append((*start, f"{cosine:.3f}", text))
            start = ("", "")
        if prompt.words:
            rows.append((*start, "words", " ".join(word for word, _ in prompt.words)))
    if not as_json:
        print_table(("class", "prompt", "cosine", "caption"), rows)
