"""`pbprompt explain`: where in an image a model's prompts look."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from pbprompt.apps.cli.options import BACKBONE, BY_MODEL, DEVICE, SAMPLES_SHOWN, SEED, check_suffix
from pbprompt.apps.cli.output import tell
from pbprompt.errors import InputError
from pbprompt.files import as_text

if TYPE_CHECKING:
    from pbprompt.model.tuned import TunedModel


def explain(
    image: Path = typer.Argument(..., help="An image file."),
    model: Path = BY_MODEL,
    names: list[str] = typer.Option(
        [],
        "--class",
        help="A class to look for, also one new to the model; may be repeated. [the likeliest 3]",
    ),
    reading: Literal["contribution", "prompt-to-patch", "patch-to-prompt", "cases"] = typer.Option(
        "contribution", help="contribution, prompt-to-patch, patch-to-prompt or cases."
    ),
    temperature: float | None = typer.Option(
        None, help="T of the two plans: lower is more pointed. [as the model was trained]"
    ),
    samples: int = SAMPLES_SHOWN,
    seed: int = SEED,
    photographs: Path | None = typer.Option(
        None, help="Of cases: where the training photographs are now, if not where they were."
    ),
    out: Path = typer.Option(..., "--out", "-o", help="The picture to write, a .png."),
    arrays: Path | None = typer.Option(None, help="Also write the maps of all readings, as .npz."),
    backbone: list[str] = BACKBONE,
    device: str = DEVICE,
) -> None:
    """Draw heat maps of where in an image the sampled prompts of a class find it.

    [bold]pbprompt explain photo.jpg --model model/ --out heat.png[/bold]

    [bold]pbprompt explain pug.jpg --model model/ --class pug --reading prompt-to-patch -o a.png[/bold]

    contribution is what each patch adds to the class's logit above the mean of all classes: what a decision
    rests on. prompt-to-patch and patch-to-prompt are the transport plans of the method: where a prompt finds
    itself, and to which class a patch goes; where a plan hardly prefers a place, its colours do not either.
    cases, of a model that was fitted with --set patches=true, are the parts of the image that spoke for a
    class, each beside the training photograph and the place in it that it is most like.
    The values that colours stand for are written above each row. The maps cover the centre square of the
    image, which is what the model sees.
    """
    from pbprompt.apps.explain.cases import cases, draw_cases
    from pbprompt.apps.explain.drawing import CLEAR, draw_heat_maps, save_picture
    from pbprompt.apps.explain.heat_maps import heat_maps
    from pbprompt.model.predictor import SAMPLES
    from pbprompt.vision.images.images import open_image

    if reading == "cases" and arrays is not None:
        raise InputError("--arrays: cases are no maps: leave it out, or use another reading")
    check_suffix("--out", out, ".png")
    check_suffix("--arrays", arrays, ".npz")
    picture = open_image(image)
    tuned = model_with(model, names, backbone, device)
    if reading == "cases":
        found = cases(tuned, picture, names, photographs)
        save_picture(draw_cases(found, picture, tuned), out)
        for one in found:
            like = ", ".join(f"{part.logit:+.3f} {part.photograph.name}" for part in one.parts)
            logit = f"logit by patches {one.logit:+.2f}: {like or 'no part'}"
            print(f"{as_text(one.name)} {one.probability:.1%} ({logit})")
        shown = {part.photograph for one in found for part in one.parts}
        if gone := sorted(file for file in shown if not file.is_file()):
            tell(
                f"{len(gone)} training photographs such as {gone[0]} are not there: give --photographs FOLDER"
            )
    else:
        predictor = replace(tuned, samples=max(samples, SAMPLES), seed=seed).predictor
        maps = heat_maps(predictor, picture, names or None, samples, temperature=temperature)
        save_picture(draw_heat_maps(maps, picture, reading), out)
        if arrays is not None:
            maps.save(arrays)
        sentences = {name: texts for name, *texts in getattr(tuned.method.config, "descriptions", ())}
        for row, (name, probability) in enumerate(zip(maps.classes, maps.probabilities, strict=True)):
            parts = ", ".join(f"{source} {logits[row]:+.2f}" for source, logits in maps.sources.items())
            logits = f" (logits above the mean class: {parts})" if parts else ""
            print(f"{as_text(name)} {probability:.1%}{logits}")
            if name in sentences:
                print(f"  described as: {as_text('; '.join(sentences[name]))}")
        heat = maps.of(reading).mean(0)
        even = [name for name, one in zip(maps.classes, heat, strict=True) if one.max() < CLEAR * one.mean()]
        if even and reading != "contribution":  # a plan that prefers no place of the image
            tell(
                f"{reading} is near even for {', '.join(even)} (no place has {CLEAR} times the mean): see "
                "--reading contribution, or a lower --temperature"
            )
    for written in filter(None, (out, arrays)):
        print(f"written: {written}", file=sys.stderr)


def model_with(model: Path, names: Sequence[str], backbone: Sequence[str], device: str) -> "TunedModel":
    """The tuned model, with the names that it does not know added, and told."""
    from pbprompt.model.tuned import TunedModel
    from pbprompt.vision.images.names import missing_names

    tuned = TunedModel.load(model, backbone, device).single_label()
    new = missing_names(tuned.classes, names)
    if new:
        tuned = tuned.with_classes(new)
        tell(f"new to the model, added by name: {', '.join(new)}")
    return tuned
