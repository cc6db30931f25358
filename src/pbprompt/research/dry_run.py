"""What a table costs before it is run: runs, training steps and hours on this machine.

    steps = epochs · ⌊images / batch⌋,  seconds a step = a + b·classes,  by steps of few and of more classes

Steps are timed on random features under names of ImageNet's lengths, with the settings of each row. Fresh
views are encoded anew in every epoch, which is timed too; what is tested is encoded once for all runs. Where
the data are not at hand, a draw is taken to have all its shots of every class, by the catalogue.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import torch

from pbprompt.errors import InputError
from pbprompt.learners.method import Batch, Method, build_method, make_config
from pbprompt.learners.trained import Trained
from pbprompt.prompts.loop.step import Step
from pbprompt.registry import find_method
from pbprompt.research.recipes import Recipe
from pbprompt.research.report.cost import VIT_B16, class_names, random_images
from pbprompt.research.runs.config import RunConfig
from pbprompt.vision.images import catalog
from pbprompt.vision.images.fewshot import base_new, draw
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Backbone, Encoded, random_backbone
from pbprompt.vision.towers.loading.hub import EMBEDDED
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.resnet import ResNetConfig
from pbprompt.vision.towers.rounding import PRECISIONS

RN50 = replace(VIT_B16, name="RN50", embed_dim=1024, vision=ResNetConfig(224, (3, 4, 6, 3), 64, 32))
LAYOUTS = {"ViT-B/16": VIT_B16, "RN50": RN50}
CLASSES = (2, 6)  # of the timed steps
SLOW = 0.5  # seconds
ENCODED = 4  # images
MOST_IN_A_BATCH = 32  # of the timed steps: larger ones cost little more


@dataclass(frozen=True)
class Cost:
    """Of a row: its runs, their steps, and the hours of one process that does one after the other."""

    label: str
    runs: int
    steps: int
    hours: float | None  # None: its steps are not timed here
    most: float | None = None  # hours of its longest run


class DryRun:
    """Costs of recipes on one machine; data that are under the root are looked at, other are reckoned."""

    def __init__(self, backbone: str, root: Path | None = None, device: str = "cpu") -> None:
        self._backbone = backbone
        self._root, self._device = root, device
        self.sizes = cache(self._sizes)
        self.method = cache(self._method)
        self.second = cache(self._second)
        self.reckoned = False

    def cost(self, recipe: Recipe) -> list[Cost]:
        """A line for each row."""
        rows: dict[str, list[RunConfig]] = {row.label: [] for row in recipe.rows}
        for label, run in recipe.expand():
            rows[label].append(run)
        return [self._row(label, runs) for label, runs in rows.items()]

    def steps(self, run: RunConfig) -> int:
        """Of a run, as the training loop has it; SHIP's first stage among them."""
        method = self.method(run.method, run.preset, run.variant, run.overrides)
        if not isinstance(method, Trained):
            return 0
        config: Any = method.config
        images, _ = self.sizes(run.task, run.dataset, run.shots, run.seed)
        epochs, budget = method.schedule(run.shots, images)
        steps = budget or epochs * (images // method.images_a_step(images))
        if run.task in ("base-to-new", "cross-dataset") and method.uses_unseen_names:
            steps += config.synth_epochs * ceil(images / config.synth_batch)
        return steps

    def _row(self, label: str, runs: Sequence[RunConfig]) -> Cost:
        steps = [self.steps(run) for run in runs]
        hours = [self._hours(run, count) for run, count in zip(runs, steps, strict=True)]
        if any(one is None for one in hours):
            return Cost(label, len(runs), sum(steps), None)
        known = [one for one in hours if one is not None]
        return Cost(label, len(runs), sum(steps), sum(known), max(known))

    def _hours(self, run: RunConfig, steps: int) -> float | None:
        if not steps:
            return 0.0
        images, classes = self.sizes(run.task, run.dataset, run.shots, run.seed)
        words = tuple(word for word in run.overrides if not word.startswith("epochs="))
        row = (run.method, run.preset, run.variant, words, run.precision)
        rates = [self.second(*row, some) for some in CLASSES]
        few, more = rates
        if few is None or more is None:
            return None
        slope = max(0.0, (more - few) / (CLASSES[1] - CLASSES[0]))
        seconds = steps * max(more, few + slope * (classes - CLASSES[0]))
        if run.views != "centre":
            method = self.method(run.method, run.preset, run.variant, run.overrides)
            assert isinstance(method, Trained)  # it takes steps
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

    def _method(
        self, name: str, preset: str, variant: str, words: tuple[str, ...], precision: str = "float32"
    ) -> Method:
        kind, towers = find_method(name), _towers(self._backbone, self._device, precision)
        return build_method(kind, make_config(kind, preset, variant, words), towers, seed=1)

    def _second(self, *row: Any) -> float | None:
        """Seconds of a training step with so many classes; None where a step needs more than features."""
        *which, classes = row
        method = self.method(*which)
        if method.tunes_towers or not isinstance(method, Trained):
            return None
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
        return _seconds(lambda: step(shown, rows, 1, 0.0)["total"].item(), backbone)


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
        return _seconds(lambda: backbone.image(pixels).global_.sum().item(), backbone) / ENCODED


def _seconds(work: Callable[[], Any], backbone: Backbone) -> float:
    """Of one call, behind those that make what is made once; a slow call is not made again."""
    took = 0.0
    for _ in range(5 if backbone.device.type == "cuda" else 2):
        start = time.perf_counter()
        work()
        took = time.perf_counter() - start
        if took > SLOW:
            break
    return took
