"""Images to try the page on: those that the model was judged by, where they still are; else drawings."""

import base64
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pbprompt.apps.serve.schemas import Samples
from pbprompt.errors import InputError
from pbprompt.files import file_hash
from pbprompt.vision.images.catalog import SAMPLE
from pbprompt.vision.images.images import small_jpeg

SIDE = 224  # about what a tower sees
DRAWINGS = {
    "cat": "mammal/1f408.webp",
    "guitar": "musical-instrument/1f3b8.webp",
    "apple": "fruit/1f34e.webp",
    "engine": "train/1f682.webp",
    "owl": "bird/1f989.webp",
    "hammer": "tool/1f528.webp",
}


def samples_of(to_try: Sequence[Sequence[str]]) -> Samples:
    """Small copies of the images that a model names: class, file and hash of each."""
    own = dict(_unchanged(to_try))
    drawn = {name: _small(SAMPLE / "images" / "fluent" / file) for name, file in DRAWINGS.items()}
    return Samples(samples=own or drawn, drawn=not own)


def _unchanged(listed: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Whoever made the model may have named any file of this machine: one whose hash it knew is taken."""
    for entry in listed:
        match entry:
            case [name, file, digest]:
                with contextlib.suppress(OSError, InputError):  # no image, or not to be read by us
                    if file_hash(Path(file)) == digest:
                        yield name, _small(Path(file))


def _small(file: Path) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(small_jpeg(file, SIDE, quality=80)).decode()
