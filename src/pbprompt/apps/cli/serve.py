"""`pbprompt serve`: a tuned model behind HTTP, with a web page to try it."""

import math
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from pbprompt.apps.cli.options import BACKBONE, CLASS_MIX, COSTS, DEVICE, MODEL
from pbprompt.apps.cli.output import importing, tell
from pbprompt.errors import InputError, install_command


def serve(
    model: Path = MODEL,
    host: str = typer.Option("127.0.0.1", help="Address to listen on; 0.0.0.0: every one of this machine."),
    port: int = typer.Option(8000, min=0, max=65535, help="Port to listen on; 0: any free one."),
    api_key: str | None = typer.Option(
        None, envvar="PBPROMPT_API_KEY", help="Clients must send this key; better given as the variable."
    ),
    backbone: list[str] = BACKBONE,
    device: str = DEVICE,
    class_mix: str = typer.Option("as-trained", help=CLASS_MIX),
    costs: Path | None = COSTS,
    examples: bool = typer.Option(False, "--examples", help="Let clients teach it: POST /examples."),
    shared_classes: bool = typer.Option(
        False, "--shared-classes", help="Keep classes that clients add, for all: POST and DELETE /classes."
    ),
    label: Path | None = typer.Option(None, help="A folder of images to label, on a page at /label."),
    label_out: Path | None = typer.Option(
        None, help="Table that keeps the labels; default: labels.csv in that folder."
    ),
    photographs: Path | None = typer.Option(
        None,
        help="The training photographs: a model that compares patches then shows to every client which parts "
        "of an image look like which of them.",
    ),
    demo: bool = typer.Option(False, "--demo", help="A tour at /tour, of a model of the sample's classes."),
    behind_proxy: str | None = typer.Option(
        None, help="Address of a proxy in front, whose X-Forwarded-For tells clients apart; default: none."
    ),
    max_queue: int = typer.Option(1024, min=1, help="Images that may wait; beyond that clients get a 429."),
    max_batch: int = typer.Option(32, min=1, help="Images that go through the tower at once."),
    max_upload_mb: float = typer.Option(10.0, min=0.01, max=1024, help="Size of one image, in MiB."),
    max_megapixels: float = typer.Option(40.0, min=0.01, max=1000, help="Pixels of one image, in millions."),
) -> None:
    """Serve a tuned model: POST /predict and /explain, GET /classes, and a web page at /.

    [bold]pbprompt serve model/ --port 8000[/bold]

    [bold]curl -F files=@photo.jpg http://127.0.0.1:8000/predict[/bold]

    The endpoints are described at /docs. Nothing that clients send is written to disk, but labels. Classes
    that they add by name are theirs alone and sent with each request; with --shared-classes they are
    everybody's. These, and with --examples what it learns of their images, last until the server stops.
    Ctrl-C answers what waits, then stops.

    [bold]pbprompt serve model/ --label unlabelled/[/bold] shows the images whose labels would teach the model
    most, one after another; it learns each as soon as you click its class. Every label is in the table at
    once, which `fit` reads, and the same command goes on from there. Only labels are kept: what the model has
    become lasts until the server stops.

    [bold]pbprompt fit sample --shots 1 --out sample-model/[/bold] and then
    [bold]pbprompt serve sample-model/ --demo[/bold] leads through a look at its images, labelling, learning,
    trying, and the cases that an answer rests on, at /tour.
    """
    if api_key == "" or (not api_key and os.environ.get("PBPROMPT_API_KEY") == ""):
        raise InputError("PBPROMPT_API_KEY or --api-key is empty: give a key, or unset it to serve without")
    if api_key and not (api_key.isascii() and api_key.isprintable()):
        raise InputError("--api-key: use plain letters, digits and signs, since it travels in a header")
    if math.isnan(max_upload_mb) or math.isnan(max_megapixels):
        raise InputError("--max-upload-mb and --max-megapixels: give numbers")
    if label_out and not label:
        raise InputError("--label-out: give the folder of images too, with --label")
    if label and (examples or shared_classes):
        raise InputError("--label: leave out --examples and --shared-classes, so that a label can be undone")
    if demo and (label or examples or shared_classes or photographs):
        raise InputError("--demo: leave out --label, --examples, --shared-classes and --photographs")
    try:
        with importing():
            import uvicorn

            from pbprompt.apps.cli.predicting import for_class_mix
            from pbprompt.apps.serve.app import create_app, server_config
            from pbprompt.apps.serve.labelling import Labelling
            from pbprompt.apps.serve.limits import MIB, Limits
            from pbprompt.apps.serve.samples import open_tour
            from pbprompt.model.decisions import read_costs
            from pbprompt.model.tuned import TunedModel
    except ImportError as error:
        if (error.name or "").startswith("pbprompt"):
            raise
        raise InputError(f"serving needs {error.name}: {install_command('serve')}") from None

    image_bytes = int(max_upload_mb * MIB)
    limits = Limits(
        image_bytes=image_bytes,
        request_bytes=max(Limits.request_bytes, 2 * image_bytes),
        image_pixels=int(max_megapixels * 1_000_000),
        queue=max_queue,
        images=min(Limits.images, max_queue),
        batch=max_batch,
    )
    tuned = for_class_mix(TunedModel.load(model, backbone, device), class_mix)
    if costs:
        tuned = tuned.for_costs(read_costs(costs, tuned.classes))
    tour = None
    with ExitStack() as leaving:
        if demo:
            label = Path(leaving.enter_context(TemporaryDirectory(prefix="pbprompt-tour-")))
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder goes then, too
            tour = open_tour(tuned, label)
            photographs = Path(tour.comparing.info.data.root)
        labelling = Labelling.open(tuned, label, label_out) if label else None
        app = create_app(
            tuned,
            limits=limits,
            api_key=api_key,
            host=host,
            examples=examples,
            shared_classes=shared_classes,
            labelling=labelling,
            tour=tour,
            photographs=photographs,
        )
        if labelling:
            for note in labelling.notes:
                tell(note)
            tell(f"{labelling.shown.labelled:,} images labelled, {labelling.shown.left:,} to go: open /label")
        if demo:
            tell("the tour starts at /tour")
        uvicorn.Server(server_config(app, host, port, behind_proxy)).run()
