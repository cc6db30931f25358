"""`pbprompt backbones`: which models can be loaded, and whether one of them is sound."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pbprompt.clip.backbone import Backbone
    from pbprompt.data.items import Dataset
    from pbprompt.features.bank import FeatureBank, Features

app = typer.Typer(help="Image and image-text models: list, check.", invoke_without_command=True)


@app.callback()
def list_families(context: typer.Context) -> None:
    """List the families that can be loaded, their ids, and which of these are in the local cache."""
    if context.invoked_subcommand is not None:
        return
    from pbprompt.clip.families import families
    from pbprompt.clip.loading.hub import in_cache
    from pbprompt.errors import install_command

    for family in families():
        about = (
            f"{family.name}: {family.parameters} parameters, {family.pixels} pixels, licence {family.licence}"
        )
        typer.secho(about, bold=True)
        for name in family.ids:
            print(f"  {name}{'  (here)' if in_cache(name) else ''}")
    for family in families():
        if family.missing:
            print(f"{family.name} needs an extra: {install_command(family.missing)}")
    print("Others of a family work by their hub id too. Licences are a reminder: read a model's own page.")


@app.command()
def check(
    backbone: Annotated[str, typer.Argument(help="Name, file, folder or hub id.")],
    activation: Annotated[
        str | None, typer.Option(help="quick_gelu or gelu, for weights that do not tell.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
) -> None:
    """Load a model, encode the sample images, and print its shapes, logit scale and zero-shot accuracy.

    Of an image tower without text, the accuracy is that of the class means of the sample's training images.
    """
    from pbprompt.clip.loading.load import load_backbone
    from pbprompt.data.sources import open_dataset
    from pbprompt.features.bank import FeatureBank

    towers = load_backbone(backbone, activation=activation, device=device)
    sample = open_dataset("sample")
    bank = FeatureBank(towers, progress=False)
    features = bank.encode(sample.root, sample.test)
    see = towers.preprocess
    resized = f", short side {see.resize}" if see.resize else ""
    how, accuracy = _accuracy(towers, sample, bank, features)
    rows = {
        "images": f"{see.size} × {see.size}, {see.fit}, {see.interpolation}{resized}",
        "joint space": f"{towers.embed_dim} wide, {towers.grid[0]} × {towers.grid[1]} patches",
        "text tower": _text_tower(towers),
        "features": f"{list(features.global_.shape)}, patches {list(features.patches.shape)}",
        "activation": towers.config.activation,
        "logit scale": f"{towers.logit_scale:.4g}",
        "logit bias": "none" if towers.logit_bias is None else f"{towers.logit_bias:.4g}",
        "fingerprint": towers.fingerprint,
        f"{how} on sample": f"{accuracy:.1%} of {len(features)} images, {len(sample.classes)} classes",
    }
    for what, found in rows.items():
        print(f"{what:<22} {found}")


def _text_tower(towers: "Backbone") -> str:
    if not towers.reads_text:
        return "none: classes are known by their images alone"
    text = towers.text_sizes
    return (
        f"{text.layers} layers, {text.width} wide, {text.context_length} positions, "
        f"{text.vocab_size:,} tokens"
    )


def _accuracy(
    towers: "Backbone", sample: "Dataset", bank: "FeatureBank", test: "Features"
) -> tuple[str, float]:
    """By names where it reads them, or else by the means of the training images."""
    from pbprompt.model.predictor import zero_shot
    from pbprompt.model.scoring import fitted_figures, score

    if towers.reads_text:
        return "zero-shot", score(zero_shot(towers, sample.classes, sample.template), test)["accuracy"]
    folds = [(bank.encode(sample.root, sample.train), test)]
    found = fitted_figures("nearest-mean", towers, sample.classes, sample.template, folds, seed=1)
    return "class means", found["accuracy"]
