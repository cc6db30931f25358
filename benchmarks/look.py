"""How much of what is planted in a dataset does `pbprompt look` find?

    python -m benchmarks.look --root DATA
    python -m benchmarks.look --root DATA --write benchmarks/results/look.md

Training images of each dataset, with planted (1) wrong labels, (2) copies of images: of the file, saved again
as JPEG, at half the size, and cropped by up to 5 % on each side, (3) images of another dataset. Thresholds
were chosen on Caltech101 and OxfordPets; the other sets were only measured.
"""

import argparse
import io
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import torch
from jaxtyping import Bool
from PIL import Image
from torch import Tensor

from pbprompt.apps.audit.audit import look
from pbprompt.apps.audit.leave_one_out import Judgement, confident_classes, judge, label_errors, outliers
from pbprompt.files import write_text
from pbprompt.markdown import table
from pbprompt.model.predictor import zero_shot
from pbprompt.research.provenance import commit
from pbprompt.vision.features.cache import FeatureCache, Features
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.loading.load import load_backbone

DATASETS = ("caltech101", "oxford_pets", "flowers102", "grocery", "sample")
CHOSEN_ON = ("caltech101", "oxford_pets")
FLIPPED, FOREIGN, COPIES = 0.05, 0.02, 50
START, END = "<!-- made by python -m benchmarks.look -->\n", "<!-- end -->\n"


@dataclass(frozen=True)
class Rate:
    """Of what was planted, the share found; of what was found, the share planted."""

    recall: float
    precision: float

    def __str__(self) -> str:
        return f"{100 * self.recall:.0f} / {100 * self.precision:.0f}"


def rate(found: Bool[Tensor, " n"], planted: Bool[Tensor, " n"]) -> Rate:
    both = float((found & planted).sum())
    return Rate(both / max(1, int(planted.sum())), both / max(1, int(found.sum())))


def mean_rate(rates: Sequence[Rate]) -> Rate:
    return Rate(fmean(one.recall for one in rates), fmean(one.precision for one in rates))


def rows_mask(rows: Sequence[int], count: int) -> Bool[Tensor, " n"]:
    mask = torch.zeros(count, dtype=torch.bool)
    mask[list(rows)] = True
    return mask


class Bench:
    """One dataset's training images and their features."""

    def __init__(self, name: str, root: str | None, backbone: Backbone) -> None:
        whole = open_dataset(name, root)
        self.dataset = replace(whole, val=(), test=())
        self.bank = FeatureCache(backbone, progress=True)
        self.features = self.bank.encode(self.dataset.root, self.dataset.train)
        self.texts = zero_shot(backbone, whole.classes, whole.template).bank[0]

    def answers(self, features: Features) -> Judgement:
        scale = float(self.bank.backbone.logit_scale)
        said = judge(features.global_, features.labels, self.texts, scale)
        assert said is not None
        return said

    @cached_property
    def clean(self) -> Judgement:
        """With nothing planted."""
        return self.answers(self.features)

    def wrong_labels(self, seed: int) -> tuple[Rate, Rate, Rate, float]:
        """Our rule, plain confident learning, every disagreement; and what our rule marks of clean data."""
        true, classes = self.features.labels, len(self.dataset.classes)
        generator = torch.Generator().manual_seed(seed)
        flipped = torch.randperm(len(true), generator=generator)[: round(FLIPPED * len(true))]
        labels = true.clone()
        labels[flipped] += torch.randint(1, classes, (len(flipped),), generator=generator)
        labels %= classes
        said = self.answers(replace(self.features, labels=labels))
        ours = rows_mask([error.row for error in label_errors(said)], len(true))
        confident = confident_classes(said)
        plain = (confident >= 0) & (confident != labels)
        differs = (said.probabilities.argmax(1) != labels) & said.judged
        planted = labels != true
        unplanted = len(label_errors(self.clean)) / len(true)
        return rate(ours, planted), rate(plain, planted), rate(differs, planted), unplanted

    def foreign_images(self, others: Features, seed: int) -> float:
        """Images of another dataset under random labels: their share of as many least familiar images."""
        generator = torch.Generator().manual_seed(seed)
        count = round(FOREIGN * len(self.features))
        some = others.subset(torch.randperm(len(others), generator=generator)[:count])
        labels = torch.randint(len(self.dataset.classes), (count,), generator=generator)
        both = Features.concatenate([self.features, replace(some, labels=labels)])
        lowest = outliers(self.answers(both).odds, count / len(both))
        return fmean(far.row >= len(self.features) for far in lowest)

    def duplicates(self, seed: int) -> tuple[dict[str, float], int]:
        """The share of planted copies found beside their original, by kind; and groups without any copy."""
        source = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "given").symlink_to(self.dataset.root.resolve())
            items = [replace(item, path=f"given/{item.path}") for item in self.dataset.train]
            copies: dict[str, tuple[str, str]] = {}  # path -> (kind, path of the original)
            for kind, make in KINDS.items():
                for at, item in enumerate(source.sample(items, min(COPIES, len(items)))):
                    made = make(root / item.path, root / f"{kind}-{at:03}", source).name
                    copies[made] = (kind, item.path)
                    items.append(Item(made, item.label))
            seen = look(
                Dataset(self.dataset.name, root, self.dataset.classes, tuple(items)),
                backbone=self.bank.backbone,
            )
        found = dict.fromkeys(KINDS, 0)
        others = 0
        for group in seen.duplicates:
            paths = {seen.images[row].path for row in group.rows}
            inside = paths & set(copies)
            others += not inside
            for path in inside:
                found[copies[path][0]] += copies[path][1] in paths
        return {kind: count / COPIES for kind, count in found.items()}, others


def _copy(original: Path, to: Path, source: random.Random) -> Path:
    return Path(shutil.copy(original, to.with_suffix(original.suffix)))


def _saved_again(original: Path, to: Path, source: random.Random) -> Path:
    return _save(open_image(original), to, 60)


def _half(original: Path, to: Path, source: random.Random) -> Path:
    image = open_image(original)
    return _save(image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC), to, 90)


def _cropped(original: Path, to: Path, source: random.Random) -> Path:
    image = open_image(original)
    left, top, right, bottom = (source.uniform(0, 0.05) for _ in range(4))
    box = (left * image.width, top * image.height, (1 - right) * image.width, (1 - bottom) * image.height)
    return _save(image.crop(box), to, 90)


def _save(image: Image.Image, to: Path, quality: int) -> Path:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    path = to.with_suffix(".jpg")
    path.write_bytes(stream.getvalue())
    return path


KINDS: dict[str, Callable[[Path, Path, random.Random], Path]] = {
    "copied": _copy,
    "saved again (JPEG 60)": _saved_again,
    "half size": _half,
    "cropped": _cropped,
}


def report(root: str | None, names: Sequence[str], seeds: Sequence[int]) -> str:
    backbone = load_backbone("lite")
    benches = {name: Bench(name, root, backbone) for name in names}
    labels, copies, foreign = [], [], []
    for at, (name, bench) in enumerate(benches.items()):
        shown = name + (" (chosen on)" if name in CHOSEN_ON else "")
        *rates, clean = zip(*(bench.wrong_labels(seed) for seed in seeds), strict=True)
        marked = f"{100 * fmean(clean):.1f} %"
        labels.append((shown, f"{len(bench.features):,}", *(str(mean_rate(some)) for some in rates), marked))
        found, others = zip(*(bench.duplicates(seed) for seed in seeds), strict=True)
        shares = [f"{100 * fmean(one[kind] for one in found):.0f} %" for kind in KINDS]
        copies.append((shown, *shares, f"{fmean(others):.0f}"))
        other = names[(at + 1) % len(names)]
        features = benches[other].features
        share = fmean(bench.foreign_images(features, seed) for seed in seeds)
        foreign.append((shown, other, f"{100 * share:.0f} %"))
        print(labels[-1], copies[-1], foreign[-1], sep="\n", flush=True)
    made = f"seeds {', '.join(map(str, seeds))}, `lite`, commit {commit() or 'unknown'}"
    head = ("data", "images", "`look`", "confident learning alone", "every disagreement", "marked when clean")
    return "\n\n".join(
        [
            f"Made by `python -m benchmarks.look --root DATA --write benchmarks/results/look.md`, {made}.",
            f"Wrong labels: {FLIPPED:.0%} of the images got another class. Recall / precision in %.",
            table(head, labels),
            f"Copies: {COPIES} of each kind; a copy is found when it is in one group with its original.",
            table(("data", *KINDS, "groups without a planted copy"), copies),
            f"Least familiar images: {FOREIGN:.0%} of another dataset were added, under random labels.",
            table(("data", "planted from", "planted, of as many least familiar images"), foreign),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", help="where the benchmarks are")
    parser.add_argument("--data", nargs="+", default=list(DATASETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--write", type=Path, help="a page whose marked part the tables replace")
    given = parser.parse_args()
    text = report(given.root, given.data, given.seeds)
    if given.write:
        page = given.write.read_text(encoding="utf-8")
        before, _, rest = page.partition(START)
        write_text(given.write, f"{before}{START}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
