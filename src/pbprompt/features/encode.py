"""Running the frozen image tower over many files."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.clip.backbone import Backbone
from pbprompt.data.decoders import Decoders
from pbprompt.data.loading import Result, load_images
from pbprompt.data.transforms import normalise
from pbprompt.errors import InputError


class EncodedBatch(NamedTuple):
    """Features of the files at `indices`, not normalised; patches in half precision."""

    indices: list[int]
    global_: Float[Tensor, "b d"]
    patches: Float[Tensor, "b m d"]


def default_batch(device: torch.device) -> int:
    """Large on a GPU. On a CPU few: their activations stay in its caches."""
    return 4 if device.type == "cpu" else 64


def encode_files(
    backbone: Backbone,
    files: Sequence[Path],
    pixels: Callable[..., Tensor],
    *,
    keys: Sequence[str] | None,
    draft: int | None,
    batch: int,
    workers: int | None,
    decoders: Decoders | None,
    to: torch.device,
    failures: dict[int, InputError],
) -> Iterator[EncodedBatch]:
    """Yield batches in order, on the device `to`; other threads decode the next ones meanwhile.

    `pixels` makes the bytes that the tower sees of an image; batches of them are normalised beside the tower.
    `keys` go to it, as views need, `draft` to the decoder; `workers` and `decoders` are for `load_images`.
    Files that cannot be read are put into `failures`.

    On a CPU every processor runs the tower on batches of its own. That is as fast as sharing each batch
    between all of them, and more than twice as fast when other programs keep the processors busy, since no
    thread waits for another after every layer.
    """
    threads = torch.get_num_threads()
    on_cpu = backbone.device.type == "cpu"
    towers = threads if on_cpu else 1
    batch = min(batch, -(-len(files) // towers)) if on_cpu else batch
    pool = ThreadPoolExecutor(
        towers, thread_name_prefix="encode", initializer=torch.set_num_threads, initargs=(1,)
    )
    pending: deque[Future[EncodedBatch]] = deque()
    try:
        loaded = load_images(files, pixels, keys=keys, workers=workers, draft=draft, decoders=decoders)
        for indices, images in _batches(loaded, batch, failures):
            pending.append(pool.submit(_encode, backbone, files, indices, images, to))
            if len(pending) > towers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # the pool's number is also what later threads would start with


def _batches(
    loaded: Iterator[Result], batch: int, failures: dict[int, InputError]
) -> Iterator[tuple[list[int], list[Tensor]]]:
    indices: list[int] = []
    images: list[Tensor] = []
    for index, image in loaded:
        if isinstance(image, InputError):
            failures[index] = image
            continue
        indices.append(index)
        images.append(image)
        if len(images) == batch:
            yield indices, images
            indices, images = [], []
    if images:
        yield indices, images


@torch.inference_mode()
def _encode(
    backbone: Backbone, files: Sequence[Path], indices: list[int], images: list[Tensor], to: torch.device
) -> EncodedBatch:
    seen, test = torch.stack(images).to(backbone.device), backbone.preprocess
    encoded = backbone.image(normalise(seen, test.mean, test.std))
    global_, patches = encoded.global_.float(), encoded.patches.half()
    finite = (global_.isfinite().all(dim=1) & patches.isfinite().flatten(1).all(dim=1)).tolist()
    if not all(finite):
        file = files[indices[finite.index(False)]]
        raise InputError(f"{file}: its features overflow in {backbone.dtype}: use float32, or other weights")
    return EncodedBatch(indices, global_.to(to), patches.to(to))
