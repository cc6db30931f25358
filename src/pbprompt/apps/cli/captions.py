"""`pbprompt captions`: what the sampled prompts of a class mean, in captions."""

from pathlib import Path

import typer

from pbprompt.apps.cli.options import BACKBONE, BY_MODEL, DEVICE, LOOKED_AT, SAMPLES_SHOWN, SEED
from pbprompt.apps.cli.output import print_json, print_table


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

    [bold]pbprompt captions --model model/ --captions captions.txt --class pug --top-k 2[/bold]

    Describe the classes in many ways, and see which of the ways each sampled prompt is close to. Below them
    are the words nearest to its learned tokens, one each; they seldom make sense.
    """
    from pbprompt.apps.cli.explain import model_with
    from pbprompt.apps.explain.prompts import nearest_captions, read_captions

    method = model_with(model, names, backbone, device).method
    texts = read_captions(captions_file, method.backbone.towers[0].tokenizer)
    found = nearest_captions(method, texts, names or None, top_k, samples, seed)
    if as_json:
        for prompt in found:
            print_json({"class": prompt.class_name, **prompt.to_dict()})
        return
    rows = []
    for prompt in found:
        near = [(f"{cosine:.3f}", text) for text, cosine in prompt.captions]
        if prompt.words:
            near.append(("words", " ".join(word for word, _ in prompt.words)))
        rows += [
            (*(("", "") if place else (prompt.class_name, prompt.sample + 1)), *line)
            for place, line in enumerate(near)
        ]
    print_table(("class", "prompt", "cosine", "caption"), rows)
