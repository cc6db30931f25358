"""`pbprompt backbones`: which models can be loaded, and whether one of them is sound."""

import typer

from pbprompt.apps.cli.options import ACTIVATION, DEVICE

app = typer.Typer(help="Image and image-text models: list, check.", invoke_without_command=True)


@app.callback()
def list_families(context: typer.Context) -> None:
    """List the families that can be loaded, their ids, and which of these are in the local cache."""
    if context.invoked_subcommand is not None:
        return
    from pbprompt.errors import install_command
    from pbprompt.vision.towers.loading.hub import families, in_cache

    for one in families():
        about = f"{one.parameters} parameters, {one.pixels} pixels, licence {one.licence}"
        typer.secho(f"{one.name}: {about}", bold=True)
        for name in one.ids:
            print(f"  {name}{'  (here)' if in_cache(name) else ''}")
    for one in families():
        if one.missing:
            print(f"{one.name} needs an extra: {install_command(one.missing)}")
    print("Others of a family work by their hub id too. Licences are a reminder: read a model's own page.")


@app.command()
def check(
    backbone: str = typer.Argument(..., help="Name, file, folder or hub id."),
    activation: str | None = ACTIVATION,
    device: str = DEVICE,
) -> None:
    """Load a model, encode the sample images, and print its shapes, logit scale and zero-shot accuracy.

    Of an image tower without text, the accuracy is that of the class means of the sample's training images.
    """
    from pbprompt.model.predictor import predict_features, zero_shot
    from pbprompt.model.scoring import Fit, score
    from pbprompt.registry import find_method
    from pbprompt.vision.features.cache import FeatureCache
    from pbprompt.vision.images.build_dataset import OF_A_DRAW
    from pbprompt.vision.images.sources import open_dataset
    from pbprompt.vision.towers.loading.load import load_backbone

    towers = load_backbone(backbone, activation=activation, device=device)
    sample = open_dataset("sample", held_out=OF_A_DRAW)
    bank = FeatureCache(towers, progress=False)
    features = bank.encode(sample.root, sample.test)
    see, classes, template = towers.preprocess, sample.classes, sample.template
    resized = f", short side {see.resize}" if see.resize else ""
    if towers.reads_text:
        text = towers.text_sizes
        layers = f"{text.layers} layers, {text.width} wide"
        reads = f"{layers}, {text.context_length} positions, {text.vocab_size:,} tokens"
        how, answers = "zero-shot", predict_features(zero_shot(towers, classes, template), features)
    else:
        reads = "none: classes are known by their images alone"
        kind, train = find_method("nearest-mean"), bank.encode(sample.root, sample.train)
        answers = Fit(kind, towers, classes, template, seed=1).answers(train, features)
        how = "class means"
    accuracy = score(answers, features)["accuracy"]
    rows = {
        "images": f"{see.size} × {see.size}, {see.fit}, {see.interpolation}{resized}",
        "joint space": f"{towers.embed_dim} wide, {towers.grid[0]} × {towers.grid[1]} patches",
        "text tower": reads,
        "features": f"{list(features.global_.shape)}, patches {list(features.patches.shape)}",
        "activation": towers.config.activation,
        "logit scale": f"{towers.logit_scale:.4g}",
        "logit bias": "none" if towers.logit_bias is None else f"{towers.logit_bias:.4g}",
        "fingerprint": towers.fingerprint,
        f"{how} on sample": f"{accuracy:.1%} of {len(features)} images, {len(classes)} classes",
    }
    for what, found in rows.items():
        print(f"{what:<22} {found}")
