"""What tables cost on the machine at hand: runs, training steps and hours, before any is run; and the paper's
own table of computation cost: parameters, and images predicted per second.

    steps = epochs · ⌊images / batch⌋,  seconds a step = a + b·classes

a and b are medians over pairs of steps, one of few classes and one of more, timed in turn behind a warm-up,
on random features under names of ImageNet's lengths. Rows whose settings differ by the size of a number alone
share them. Fresh views are encoded anew in every epoch, and timed too; what is tested is encoded once for
all runs. Where the data are not at hand, a draw is taken to have all its shots of every class.

A prediction is the image tower and the method's logits; class features are made once, as they are in use.
Decoding is left out, and weights are random: they take no other time. The paper's images per second are from
another machine: only the ratios can be compared.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, Method, build_method, make_config
from pbprompt.learners.trained import Trained
from pbprompt.model.predictor import predictive
from pbprompt.prompts.loop.step import Step
from pbprompt.registry import find_method
from pbprompt.research.recipes import Recipe
from pbprompt.research.report.published import published
from pbprompt.research.runs import RunConfig
from pbprompt.vision.images import catalog
from pbprompt.vision.images.fewshot import base_new, draw
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, Encoded, random_backbone
from pbprompt.vision.towers.loading.hub import EMBEDDED
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.resnet import ResNetConfig
from pbprompt.vision.towers.rounding import PRECISIONS
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.tokenizer import AnyTokenizer
from pbprompt.vision.towers.vit import VitConfig

VIT_B16_TEXT = TextConfig(77, 49408, 512, 8, 12)
VIT_B16 = BackboneConfig("ViT-B/16", 512, VitConfig(224, 16, 768, 12, 12), VIT_B16_TEXT)
PAPER_CLASSES = 101  # as Food101 has
PAPER_SAMPLES = 10  # the paper's, in this table
IMAGES = {"cpu": 8, "cuda": 64}  # at once
REPEATS = 3
ROWS = {"CoOp": "coop", "CoCoOp": "cocoop", "PLOT(N=4)": "plot", "PBPrompt": "pbprompt"}
WORDS_TRIED = 4000
NAME_LENGTHS = {1: 35, 2: 35, 3: 15, 4: 9, 5: 4, 6: 1, 8: 1}  # tokens, as ImageNet's thousand names have them
RN50 = replace(VIT_B16, name="RN50", embed_dim=1024, vision=ResNetConfig(224, (3, 4, 6, 3), 64, 32))
LAYOUTS = {"ViT-B/16": VIT_B16, "RN50": RN50}
CLASSES = (2, 10)  # of the timed steps
SPREAD_AT = 100  # classes
PAIRS = (3, 50)  # at least, at most
ENOUGH = 2.0  # seconds of pairs
ENCODED = 4  # images
MOST_IN_A_BATCH = 32  # of the timed steps: larger ones cost little more
WARM_UP = {"cpu": 1, "cuda": 4}  # calls that make what is made once, a CUDA graph among it


@dataclass(frozen=True)
class Cost:
    """Of a row: its runs, their steps, and the hours of one process that does one after the other."""

    label: str
    runs: int
    steps: int
    hours: float | None  # None: its steps cannot be timed here
    most: float | None = None  # hours of its longest run
    spread: float = 0.0  # of its steps' times: half the distance of their quartiles, as a share


class Rate(NamedTuple):
    """Seconds of a step: `fixed + classes · per_class`."""

    fixed: float
    per_class: float
    spread: float


class DryRun:
    """Costs of recipes on one machine; data that are under the root are looked at, other are reckoned."""

    def __init__(self, backbone: str, root: Path | None = None, device: str = "cpu") -> None:
        self._backbone, self._root, self._device = backbone, root, device
        self.sizes = cache(self._sizes)
        self._made = cache(self._build)
        self._rates: dict[Hashable, Rate | None] = {}
        self.reckoned = False

    def cost(self, recipe: Recipe) -> list[Cost]:
        """A line for each row."""
        rows: dict[str, list[RunConfig]] = {row.label: [] for row in recipe.rows}
        for label, run in recipe.expand():
            rows[label].append(run)
        return [self._row(label, runs) for label, runs in rows.items()]

    def method(self, run: RunConfig) -> Method:
        return self._made(run.method, run.preset, run.variant, run.overrides)

    def _build(self, name: str, *settings: Any, precision: str = "float32") -> Method:
        kind, towers = find_method(name), _towers(self._backbone, self._device, precision)
        return build_method(kind, make_config(kind, *settings), towers, seed=1)

    def steps(self, run: RunConfig) -> int:
        """Of a run, as the training loop has it; SHIP's first stage among them."""
        method = self.method(run)
        if not isinstance(method, Trained):
            return 0
        config: Any = method.config
        images, _ = self.sizes(run.task, run.dataset, run.shots, run.seed)
        epochs, budget = method.schedule(run.shots, images)
        steps = budget or epochs * (images // method.images_a_step(images))
        if run.task in ("base-to-new", "cross-dataset") and hasattr(method, "unseen_names"):
            steps += config.synth_epochs * ceil(images / config.synth_batch)
        return steps

    def _row(self, label: str, runs: Sequence[RunConfig]) -> Cost:
        steps = [self.steps(run) for run in runs]
        rates = [self.rate(run) if count else Rate(0, 0, 0) for run, count in zip(runs, steps, strict=True)]
        known = [rate for rate in rates if rate is not None]
        if len(known) < len(runs):
            return Cost(label, len(runs), sum(steps), None)
        hours = [self._hours(*one) for one in zip(runs, steps, known, strict=True)]
        spread = max(rate.spread for rate in known)
        return Cost(label, len(runs), sum(steps), sum(hours), max(hours), spread)

    def _hours(self, run: RunConfig, steps: int, rate: Rate) -> float:
        images, classes = self.sizes(run.task, run.dataset, run.shots, run.seed)
        seconds = steps * (rate.fixed + classes * rate.per_class)
        method = self.method(run)
        if steps and run.views != "centre" and isinstance(method, Trained):
            views = method.schedule(run.shots, images)[0] if run.views == "fresh" else run.views
            seconds += views * images * _seconds_an_image(self._backbone, self._device)
        return seconds / 3600

    def _sizes(self, task: str, name: str, shots: int, seed: int) -> tuple[int, int]:
        """Training images and classes of a run."""
        try:
            whole = open_dataset(name, self._root)
        except InputError:
            entry = catalog.lookup(name.partition(":")[0])
            if entry is None or not entry.classes:
                raise
            self.reckoned = True
            classes = ceil(entry.classes / 2) if task == "base-to-new" else entry.classes
            return classes * shots, classes
        few = draw(whole, shots, seed).apply(whole)
        few = base_new(few)[0] if task == "base-to-new" else few
        return len(few.train), len(few.classes)

    def rate(self, run: RunConfig) -> Rate | None:
        """Of a run's steps; None where they need more than features, or take no longer with more classes."""
        method = self.method(run)
        weighed = {
            key: bool(value) if isinstance(value, float) else value
            for key, value in vars(method.config).items()
            if key not in ("epochs", "budget")
        }
        kind = (run.method, run.precision, *weighed.items())
        if kind not in self._rates:
            self._rates[kind] = None if method.tunes_towers else self._timed(run)
        return self._rates[kind]

    def _timed(self, run: RunConfig) -> Rate | None:
        few, more = CLASSES
        pairs = _seconds([self._step(run, classes) for classes in CLASSES], self._device)
        per_class = median((long - short) / (more - few) for short, long in pairs)
        if per_class <= 0:
            return None
        at = [short + (SPREAD_AT - few) * (long - short) / (more - few) for short, long in pairs]
        low, middle, high = quantiles(at, method="inclusive")
        fixed = median(short for short, _ in pairs) - few * per_class
        return Rate(fixed, per_class, (high - low) / 2 / middle)

    def _step(self, run: RunConfig, classes: int) -> Callable[[], Any]:
        """A training step of a run's method with so many classes."""
        row = (run.method, run.preset, run.variant, run.overrides)
        method = self._build(*row, precision=run.precision)
        assert isinstance(method, Trained)  # it takes steps
        backbone = method.given
        batch = min(method.images_a_step(MOST_IN_A_BATCH), MOST_IN_A_BATCH)
        generator = torch.Generator().manual_seed(1)
        patches = backbone.grid[0] * backbone.grid[1]
        given = Encoded(
            torch.randn(batch, backbone.embed_dim, generator=generator),
            torch.randn(batch, patches, backbone.embed_dim, generator=generator),
        ).to(backbone.device)
        labels = torch.randint(classes, (batch,), generator=generator).to(backbone.device)
        method.prepare(class_names(backbone.tokenizer, classes), "a photo of a {}.")
        shown = Batch(given, labels)
        method.begin_on(lambda epoch: shown, 1)
        step, rows = Step(method, batch), torch.arange(batch, device=backbone.device)
        return lambda: step(shown, rows, 1, 0.0)["total"].item()


@cache
def _towers(name: str, device: str, precision: str = "float32") -> Backbone:
    """The towers, of random weights where they are not embedded: these take no other time."""
    if name in EMBEDDED:
        return load_backbone(name, device=device, dtype=PRECISIONS[precision])
    if name not in LAYOUTS:
        raise InputError(f"--dry-run: towers of {name} are not laid out here: it knows {', '.join(LAYOUTS)}")
    return random_backbone(LAYOUTS[name]).to(device, PRECISIONS[precision])


@cache
def _seconds_an_image(name: str, device: str) -> float:
    backbone = _towers(name, device)
    pixels = random_images(backbone, ENCODED)
    with torch.no_grad():
        times = _seconds([lambda: backbone.image(pixels).global_.sum().item()], device)
    return median(seconds for (seconds,) in times) / ENCODED


def _seconds(work: Sequence[Callable[[], Any]], device: str) -> list[tuple[float, ...]]:
    """Of the calls, made in turn behind a warm-up: so often, or for so long.

    One thread is timed by its processor, which is the clock of a machine that does nothing else.
    """
    kind = torch.device(device).type
    clock = time.process_time if kind == "cpu" and torch.get_num_threads() == 1 else time.perf_counter

    def one(call: Callable[[], Any]) -> float:
        start = clock()
        call()
        return clock() - start

    for _ in range(WARM_UP.get(kind, 1)):
        for call in work:
            call()
    times: list[tuple[float, ...]] = []
    least, most = PAIRS
    while len(times) < least or (len(times) < most and sum(map(sum, times)) < ENOUGH):
        times.append(tuple(map(one, work)))
    return times


# the paper's table


class MethodCost(NamedTuple):
    """A row: ours beside the paper's."""

    method: str
    parameters: int
    published_parameters: int
    images_per_second: float
    published_images_per_second: float


def computation_cost(device: str = "cpu") -> list[MethodCost]:
    """Every row, measured on a ViT-B/16 of random weights."""
    backbone = random_backbone(VIT_B16).to(device)
    pixels = random_images(backbone, IMAGES[backbone.device.type])
    theirs = {(figure.method, figure.metric): figure.value for figure in published("computation_cost")}
    rows = []
    for label, name in ROWS.items():
        kind = find_method(name)
        names = class_names(backbone.tokenizer, PAPER_CLASSES)
        method = build_method(kind, make_config(kind), backbone, 1, names, "a photo of a {}.")
        predict = predictive(method, PAPER_SAMPLES)
        seconds = []
        for _ in range(1 + REPEATS):  # the first makes what is made once
            start = time.perf_counter()
            with torch.no_grad():
                predict(backbone.image(pixels)).probabilities.sum().item()  # waits for the device
            seconds.append(time.perf_counter() - start)
        parameters, rate = method.counted_parameters(), len(pixels) / median(seconds[1:])
        rows.append(
            MethodCost(label, parameters, int(theirs[label, "parameters"]), rate, theirs[label, "images/s"])
        )
    return rows


def class_names(tokenizer: AnyTokenizer, count: int) -> list[str]:
    """Random words, each one token, in names of ImageNet's lengths."""
    random = Random(0)
    drawn = [
        tokenizer.decode([random.randrange(512, tokenizer.vocab_size - 2)]).strip()
        for _ in range(WORDS_TRIED)
    ]
    words = [word for word in drawn if word.isascii() and word.isalpha() and len(tokenizer.encode(word)) == 1]
    lengths = random.choices(list(NAME_LENGTHS), list(NAME_LENGTHS.values()), k=count)
    return [" ".join(random.choices(words, k=length)) for length in lengths]


def random_images(backbone: Backbone, count: int) -> Tensor:
    """Preprocessed images."""
    size = backbone.preprocess.size
    images = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(2))
    return images.to(backbone.device, backbone.dtype)
