"""Frozen features: every image is encoded once, and read back ever after.

The towers never change, so the feature of an image is a function of (weights, precision, transform, file).
Those four are its key; a training view adds (seed, epoch, item).
"""

import contextlib
import copy
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt import distributed
from pbprompt.errors import InputError, NoNumberError
from pbprompt.files import cache_folder
from pbprompt.vision.features.claims import PORTIONS, Claims
from pbprompt.vision.features.encode import Encoding, default_batch, encode_records, share_of_batch
from pbprompt.vision.features.progress import Progress
from pbprompt.vision.features.store import GIB, FeatureStore, ShardWriter, file_hashes, keep_below_limit
from pbprompt.vision.images.crops import Crop, Hashed, TrainingView
from pbprompt.vision.images.decoding import Decoder, worthwhile_processes
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.stream import Record
from pbprompt.vision.images.transforms import Preprocess
from pbprompt.vision.images.workers import available_cpus
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.several import Several, side_by_side

MEMORY_GIB = 4.0  # of patches, beyond which they are mapped from a file

Index = slice | Sequence[int] | Int[Tensor, " k"]
Mark = TypeVar("Mark")


def feature_folder() -> Path:
    """Where features are kept unless a `FeatureCache` has a folder of its own."""
    return cache_folder() / "features"


@dataclass(frozen=True, eq=False)
class Features:
    """Images as the frozen tower sees them, in the order of the items; no vector is normalised."""

    global_: Float[Tensor, "n d"]  # float32
    patches: Float[Tensor, "n m e"]  # float16, in memory or mapped from a file; e is d, but for states
    labels: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> Encoded:
        return Encoded(self.global_, self.patches)

    def subset(self, index: Index) -> "Features":
        """The rows at `index`; a slice shares memory."""
        rows = index
        if not isinstance(rows, slice):  # of none too, which torch would take for real numbers
            rows = torch.as_tensor(rows, dtype=torch.long, device=self.labels.device)
        return Features(self.global_[rows], self.patches[rows], self.labels[rows])

    def to(self, device: torch.device | str) -> "Features":
        return Features(self.global_.to(device), self.patches.to(device), self.labels.to(device))

    @staticmethod
    def concatenate(parts: Sequence["Features"]) -> "Features":
        columns = zip(*((part.global_, part.patches, part.labels) for part in parts), strict=True)
        return Features(*map(torch.cat, columns))


class FeatureCache:
    """Encodes items with a frozen backbone and keeps what can be used again.

    `cache` is where features are stored, kept below a limit by removing the least recently used; `batch`
    images go through the tower at once (default: what suits the device); `workers` threads decode (default:
    one a processor). Patches beyond `MEMORY_GIB` go to a mapped temporary file.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        cache: Path | None = None,
        batch: int | None = None,
        workers: int | None = None,
        progress: bool = True,
    ) -> None:
        self.backbone = backbone
        self.cache = cache or feature_folder()
        self.batch = batch or default_batch(backbone.device)
        self.workers = workers
        self.progress = progress
        self.encoded = 0  # by the last call; the others were read
        self._images_seen = 0

    def on(self, backbone: Backbone) -> Self:
        other = copy.copy(self)
        other.backbone = backbone
        return other

    def encode(
        self, root: Path, items: Sequence[Item], failures: dict[str, InputError] | None = None
    ) -> Features:
        """The items, whose paths are below `root`, under the test transform.

        With `failures`, unreadable images are put there by path and left out, instead of raised.
        """
        fresh = self._encode_at_once(root, items)
        features = self._seen_by(lambda test: [test.cropper], root, items, failures=failures)
        self.encoded += fresh
        if not failures:
            return features
        return features.subset([row for row, item in enumerate(items) if item.path not in failures])

    def encode_files(
        self, batches: Iterable[tuple[Mark, Sequence[Record]]]
    ) -> Iterator[tuple[Mark, Encoding]]:
        """As `encode_records`, of records whose images are files of this machine."""
        for mark, records in batches:
            failures: dict[str, InputError] = {}
            paths = [str(record.content) for record in records]
            features = self.encode(Path(), [Item(path, 0) for path in paths], failures)
            failed = {place: failures[path] for place, path in enumerate(paths) if path in failures}
            yield mark, Encoding(records, failed, features.global_, features.patches)

    def views(self, root: Path, items: Sequence[Item], *, seed: int, epoch: int) -> Features:
        """One fresh training view an item: a pure function of (seed, epoch, item), not stored.

        On a GPU with room for it they stay there.
        """
        return self._seen_by(lambda test: [test.view(seed, epoch)], root, items, stored=False)

    def fixed_views(self, root: Path, items: Sequence[Item], *, seed: int, views: int) -> Features:
        """The training views of epochs 0 to views − 1, stored; row v·n + i is view v of item i of n."""
        return self._seen_by(lambda test: [test.view(seed, epoch) for epoch in range(views)], root, items)

    def _seen_by(
        self,
        croppers_of: Callable[[Preprocess], Sequence[Crop | TrainingView]],
        root: Path,
        items: Sequence[Item],
        *,
        stored: bool = True,
        failures: dict[str, InputError] | None = None,
    ) -> Features:
        """All items under each cropper. Of several backbones each sees and keeps them by itself; what they
        see stands side by side. Of several processes each encodes its share, and all get everything."""
        each = [self.on(tower) for tower in self.backbone.towers]
        if len(each) > 1:
            seen = [one._seen_by(croppers_of, root, items, stored=stored, failures=failures) for one in each]
            self.encoded = sum(one.encoded for one in each)
            global_ = side_by_side([one.global_ for one in seen])
            return Features(global_, global_[:, None][:, :0], seen[0].labels)
        test, device = self.backbone.preprocess, self.backbone.device
        croppers = croppers_of(test)
        store = self._store(test.identity_of(croppers[0])) if stored else None
        if failures is not None or distributed.world()[1] == 1:
            return self._collect(root, items, croppers, store, failures)
        labels, parts = torch.tensor([item.label for item in items]), []
        for cropper in croppers:
            mine = distributed.agreed(
                partial(self._collect, root, distributed.own(items), [cropper], store, None)
            )
            global_, patches = (distributed.gather(one.to(device), len(items)).cpu() for one in mine.images)
            parts.append(Features(global_, patches, labels))
        return Features.concatenate(parts)

    def _encode_at_once(self, root: Path, items: Sequence[Item]) -> int:
        """What none of several backbones has seen is decoded once for all, and kept by each. Returns how many
        features that made."""
        several = self.backbone
        if not isinstance(several, Several) or distributed.world()[1] > 1:
            return 0
        stores = [self.on(tower)._store(tower.preprocess.identity) for tower in several.towers]
        known = set().union(*(store.places() for store in stores))
        digests = file_hashes(self.cache, root, [item.path for item in items])
        new = {one: path for path, one in digests.items() if isinstance(one, str) and one not in known}
        keys, size, fresh = list(new), share_of_batch(several, self.batch, len(new)), 0
        parts = (keys[at : at + size] for at in range(0, len(keys), size))
        batches = ((part, [Record(new[key], Hashed(root / new[key], key)) for key in part]) for part in parts)
        with contextlib.ExitStack() as kept, Progress("encoding images", shown=self.progress) as progress:
            writers = [kept.enter_context(ShardWriter(store)) for store in stores]
            progress.expect(len(keys))
            for part, found in encode_records(several.as_they_are(), batches, self._decoder(len(keys))):
                good = [key for place, key in enumerate(part) if place not in found.failures]
                seen_by_each = several.each_of(found.encoded) if good else ()
                for writer, seen in zip(writers, seen_by_each, strict=False):
                    writer.add(good, *seen.to("cpu"))
                fresh += len(good) * len(stores)
                progress.advance(len(good))
                if not all(writer.store for writer in writers):  # nothing can be kept: each sees for itself
                    return 0
        return fresh

    def _store(self, transform: str) -> FeatureStore:
        return FeatureStore(
            self.cache,
            backbone=self.backbone.config.name,
            fingerprint=self.backbone.fingerprint,
            precision=str(self.backbone.dtype).removeprefix("torch."),
            transform=transform,
        )

    def _collect(
        self,
        root: Path,
        items: Sequence[Item],
        croppers: Sequence[Crop | TrainingView],
        store: FeatureStore | None,
        known_failures: dict[str, InputError] | None,
    ) -> Features:
        """All items under the first cropper, then under the next one; failures are kept, where they are to
        be, or else raised."""
        root, count = Path(root), len(items)
        features = self._allocate([item.label for item in items] * len(croppers), kept=store is not None)
        failures = {} if known_failures is None else known_failures
        # Without a store nothing is hashed: an item is known by its path.
        digests = {item.path: item.path for item in items}
        if store is not None:
            for path, digest in file_hashes(self.cache, root, list(digests)).items():
                if isinstance(digest, InputError):
                    failures[path] = digest
                else:
                    digests[path] = digest

        def record(item: Item) -> Record:
            file = root / item.path
            return Record(item.path, Hashed(file, digests[item.path]) if store else file)

        self.encoded = 0
        with Progress("encoding images", shown=self.progress) as progress:
            for number, cropper in enumerate(croppers):
                rows = features.subset(slice(number * count, (number + 1) * count))
                keys = [_key(cropper, digests[item.path], item) for item in items]
                self._fill(rows, items, keys, record, cropper, store, failures, progress)
        if store is not None and self.encoded:
            keep_below_limit(self.cache)
        if failures and known_failures is None:
            raise _unreadable(list(failures.values()), len(digests))
        return features

    def _fill(
        self,
        rows: Features,
        items: Sequence[Item],
        keys: list[str],
        record: Callable[[Item], Record],
        cropper: Crop | TrainingView,
        store: FeatureStore | None,
        failures: dict[str, InputError],
        progress: Progress,
    ) -> None:
        """Read what is stored into the rows, encode the rest."""
        missing = list(range(len(items))) if store is None else store.read(keys, rows.global_, rows.patches)
        first: dict[str, int] = {}  # the same image twice is encoded once
        for row in missing:
            if items[row].path not in failures:
                first.setdefault(keys[row], row)

        def encode(some: list[int], writer: ShardWriter) -> None:
            size = share_of_batch(self.backbone, self.batch, len(some))
            parts = (some[at : at + size] for at in range(0, len(some), size))
            batches = ((part, [record(items[row]) for row in part]) for part in parts)
            for part, found in encode_records(self.backbone, batches, self._decoder(len(some)), cropper):
                for place, error in found.failures.items():
                    if isinstance(error, NoNumberError):  # of the weights, and not of this image alone
                        raise error
                    failures[items[part[place]].path] = error
                targets = [row for place, row in enumerate(part) if place not in found.failures]
                global_, patches = (one.to(rows.patches.device) for one in (found.global_, found.patches))
                rows.global_[targets], rows.patches[targets] = global_, patches
                writer.add([keys[row] for row in targets], global_, patches)
                progress.advance(len(targets))
                self.encoded += len(targets)

        wanted = list(first.values())
        # every beginning of a portion costs a GPU more than a CPU
        portions = PORTIONS if self.backbone.device.type == "cpu" else PORTIONS // 4
        while wanted:
            progress.expect(len(wanted))
            if store is None:
                encode(wanted, ShardWriter(None))
            else:
                with Claims(self.cache, store.folder) as claims, ShardWriter(store) as writer:
                    for places in claims.share([keys[row] for row in wanted], portions):
                        portion = [wanted[place] for place in places]
                        # others may have been faster
                        left = store.read(keys, rows.global_, rows.patches, portion)
                        progress.advance(len(portion) - len(left))
                        encode(left, writer)
                        writer.flush()  # while the portion is still claimed
            unknown = rows.global_[:, 0].isnan().tolist()  # what a tower makes is finite, or an error
            for row in missing:
                source = first.get(keys[row], row)
                if unknown[row] and not unknown[source]:
                    rows.global_[row], rows.patches[row] = rows.global_[source], rows.patches[source]
                    unknown[row] = False
            # where the first of some that are the same was not to be had, each is looked at by itself
            wanted = [row for row in missing if unknown[row] and items[row].path not in failures]

    def _decoder(self, images: int) -> Decoder:
        """Processes to decode with beside a GPU; on a CPU the tower needs the processors itself."""
        self._images_seen += images
        alone = self.workers is None and distributed.world()[1] == 1  # nobody else has these processors
        on_gpu = self.backbone.device.type == "cuda"
        processes = worthwhile_processes(self._images_seen) if alone and on_gpu else None
        return processes or Decoder(self.workers or available_cpus())

    def _allocate(self, labels: list[int], *, kept: bool) -> Features:
        side, dim = self.backbone.grid, self.backbone.embed_dim
        shape = (len(labels), side[0] * side[1], self.backbone.patch_width)
        size = 2 * shape[0] * shape[1] * shape[2]
        device = self.backbone.device
        if not kept and device.type == "cuda" and size < torch.cuda.mem_get_info(device)[0] // 4:
            patches = torch.zeros(shape, dtype=torch.float16, device=device)  # a second epoch fits beside it
        elif size > MEMORY_GIB * GIB:
            patches = _mapped(shape, self.cache)
        else:
            patches = torch.zeros(shape, dtype=torch.float16)
        global_ = torch.full((len(labels), dim), torch.nan, device=patches.device)  # until it is known
        return Features(global_, patches, torch.tensor(labels, dtype=torch.long, device=patches.device))


def without_unreadable(dataset: Dataset, features: FeatureCache) -> tuple[Dataset, dict[str, InputError]]:
    """The dataset without them, and why each cannot be read; the features of the others are kept."""
    failures: dict[str, InputError] = {}
    features.encode(dataset.root, dataset.items, failures)
    if not failures:
        return dataset, {}
    skipped = (*dataset.skipped, *((path, "unreadable") for path in failures))
    left = dataset.with_labels(lambda item: None if item.path in failures else item.label, skipped=skipped)
    return left, failures


def _key(cropper: Crop | TrainingView, digest: str, item: Item) -> str:
    """What beside weights and transform decides the features of an item."""
    if isinstance(cropper, Crop):
        return digest
    return hashlib.sha256(json.dumps([digest, cropper.seed, cropper.epoch, item.path]).encode()).hexdigest()


def _mapped(shape: tuple[int, int, int], folder: Path) -> Tensor:
    """A float16 tensor in a temporary file that goes away with it."""
    with contextlib.suppress(OSError):  # a cache that cannot be changed
        folder.mkdir(parents=True, exist_ok=True)
    place = folder if os.access(folder, os.W_OK) else None  # else where the system has such files
    with tempfile.NamedTemporaryFile(dir=place, prefix=".patches.") as file:
        flat = torch.from_file(file.name, shared=True, size=math.prod(shape), dtype=torch.float16)
    return flat.view(shape)  # the name is gone, the mapping keeps the file until the tensor is freed


def _unreadable(errors: list[InputError], of: int) -> InputError:
    if len(errors) == 1:
        return InputError(f"{errors[0]}: fix or remove it")
    shown = "; ".join(str(error) for error in errors[:5])
    more = f"; and {len(errors) - 5:,} more" if len(errors) > 5 else ""
    return InputError(
        f"{len(errors):,} of {of:,} images cannot be read: {shown}{more}: fix or remove "
        "them (`pbprompt look` lists all)"
    )
