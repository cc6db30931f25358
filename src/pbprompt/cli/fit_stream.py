"""`fit`, where the images come as a stream: one pass over all of them."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pbprompt.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from pbprompt.clip.backbone import Backbone
    from pbprompt.methods.base import Method, MethodConfig


def fit_streamed(
    data: str,
    out: Path,
    kind: "type[Method]",
    config: "MethodConfig",
    backbone: "Backbone",
    console: "Console",
    *,
    seed: int,
    classes_file: Path | None,
    allow_urls: bool,
) -> None:
    """Fit in one pass, and save. Ctrl-C, or whatever ends it: the same command goes on."""
    from pbprompt import distributed
    from pbprompt.cli.fit import tell_calibration
    from pbprompt.data.assemble import Choices
    from pbprompt.data.names import from_folder, from_label, read_classes_file
    from pbprompt.data.stream import Stream
    from pbprompt.model.claim import claim
    from pbprompt.model.streamed import check_streams, fit_gathered, gather_stream, kept_beside

    mapping = None if classes_file is None else read_classes_file(classes_file)
    choices = Choices(seed=seed, mapping=mapping, mapping_from=str(classes_file))
    try:
        stream = Stream([data], allow_urls=allow_urls)
    except InputError as error:
        raise InputError(f"{error}: add --allow-urls") from None
    check_streams(kind, config, backbone)

    def going_on(images: int) -> None:
        console.print(f"going on after the {images:,} images that are gathered already")

    checkpoint, main = kept_beside(out, stream, backbone), distributed.is_main()
    with claim(out) if main else nullcontext():
        try:
            found = gather_stream(stream, backbone, checkpoint=checkpoint, going_on=going_on)
            naming = from_folder if Path(data).expanduser().is_dir() else from_label
            model = fit_gathered(
                found, backbone, kind, config, choices, source=data, seed=seed, naming=naming
            )
            model = model.with_left_out()
            if main:
                model.save(out)
        except KeyboardInterrupt:
            console.print(_tell_stopped(checkpoint.path.exists()))
            raise
        distributed.stop()
        checkpoint.remove()
    if not main:
        return
    console.print(f"{data}: {len(model.classes):,} classes; {found.images:,} images, in one pass")
    if found.other_splits:
        console.print(f"{found.other_splits:,} images of val and test were not learned from")
    if found.failed:
        some = "; ".join(found.failures)
        which = "1 image" if found.failed == 1 else f"{found.failed:,} images"
        console.print(f"left out, since unreadable: {which} ({some})")
    console.print(tell_calibration(model.calibration))
    console.print(f"saved: {out}")


def _tell_stopped(kept: bool) -> str:
    """What the same command does after Ctrl-C."""
    if not kept:
        return "stopped before anything was gathered: the same command starts again"
    return "stopped: what was gathered is kept, and the same command goes on from there"
