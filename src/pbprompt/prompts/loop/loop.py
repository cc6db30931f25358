"""The one training loop: any method, on frozen features."""

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from rich.console import Console
from safetensors.torch import save
from torch import Tensor

from pbprompt import distributed
from pbprompt.errors import InputError
from pbprompt.files import write_bytes
from pbprompt.learners.fit_options import USUAL, FitOptions
from pbprompt.learners.method import Batch, EpochViews
from pbprompt.learners.trained import Terms, Trained
from pbprompt.prompts.loop.checkpoint import CHECKPOINT, Journal, Tally, read_checkpoint, write_checkpoint
from pbprompt.prompts.loop.step import Step, epoch_order, learning_rate
from pbprompt.seeding import stream, stream_seed
from pbprompt.vision.features.cache import Features
from pbprompt.vision.features.progress import LogLines, bar

LOOP_REVISION = 1  # raised when the loop or the equations change every method's results
LOG_EVERY = 10  # steps
LOOK_AFTER = 0.25  # seconds between looks at the loss beside a GPU, which has nothing to do meanwhile
SAVE_EVERY = 10.0  # seconds between checkpoints
DIAGNOSE_EVERY = 10  # epochs, and after the last one

EpochFeatures = Callable[[int], Features]


@dataclass(frozen=True)
class Run:
    """What to train: the epochs, and how."""

    epochs: int
    options: FitOptions = USUAL
    identity: str = ""
    budget: int = 0  # steps in all, where they and not the epochs are the measure
    weights: Float[Tensor, " n"] | None = None  # how often each training image counts, 1 on the average


def batches(features: EpochFeatures, device: torch.device) -> EpochViews:
    """An epoch's training images as methods take them."""

    def views(epoch: int) -> Batch:
        data = features(epoch).to(device)
        return Batch(data.images, data.labels)

    return views


class DivergedError(InputError):
    """The loss stopped being a number."""


def train(method: Trained, features: EpochFeatures, examples: int, run: Run) -> dict[str, float]:
    """Train in place and return the last epoch's mean terms.

    `features(epoch)` gives an epoch's features of the `examples` training images. With a folder, the run is
    logged and checkpointed there, and continues where a killed one stopped, to the same bits on a CPU: every
    random choice is a function of (seed, purpose, step or epoch).
    """
    views = batches(features, method.backbone.device)
    training_step = Step(method, examples)
    size = method.images_a_step(examples)
    steps_an_epoch = examples // size  # as the field's loaders do, a short last batch is left out
    planned = run.budget or run.epochs * steps_an_epoch
    span = planned / steps_an_epoch  # epochs
    options, seed = run.options, run.options.seed
    total = planned if options.max_steps is None else min(planned, options.max_steps)
    checkpoint = options.folder / CHECKPOINT if options.folder else None
    resumes, goes_back = checkpoint is not None and checkpoint.exists(), method.config.keep < 1
    if goes_back or not resumes:
        method.begin_on(views, seed)
    start = [parameter.detach().clone() for parameter in method.trainable()] if goes_back else []
    done, tally = 0, Tally()
    if checkpoint and resumes:
        done, tally = read_checkpoint(checkpoint, method, training_step.optimiser, run.identity)
    if not distributed.is_main():
        quiet = replace(options, folder=None, progress=False, on_log=None)
        run, checkpoint = replace(run, options=quiet), None
    watch = _Watch(method, run, total, done, tally)
    saved = time.monotonic()
    recorded = 0  # steps in the log: parameters, step and log belong together, not so within an update

    def save() -> None:
        watch.settle()  # what diverged is never saved
        if checkpoint:
            write_checkpoint(checkpoint, method, training_step.optimiser, done, run.identity, watch.tally)

    try:
        for step in range(done, total):
            epoch, batch = divmod(step, steps_an_epoch)
            if not batch or not recorded:
                images = views(epoch)
                order = epoch_order(len(images.labels), run.weights, stream(seed, "order", epoch))
                order_there = order.to(images.labels.device)
            rows = slice(batch * size, (batch + 1) * size)
            now = step / steps_an_epoch if method.config.anneal == "step" else epoch
            rate = learning_rate(method.config, now, span)
            terms = training_step(images, order_there[rows], stream_seed(seed, "noise", step), rate)
            done = step + 1
            ends_epoch = done % steps_an_epoch == 0
            if ends_epoch or done == planned:
                method.end_epoch(epoch, -(-planned // steps_an_epoch))
            ended = {"epoch": epoch, "learning_rate": learning_rate(method.config, epoch, span)}
            watch.record(step, terms, order[rows], ended if ends_epoch else {})
            recorded += 1
            if checkpoint and time.monotonic() - saved > SAVE_EVERY:
                save()
                saved = time.monotonic()
        save()
    except KeyboardInterrupt:
        if training_step.begun == recorded:
            save()
        raise
    finally:
        watch.close()
    if goes_back:  # part of the way, to θ₀ + keep · (θ − θ₀)
        with torch.no_grad():
            for parameter, first in zip(method.trainable(), start, strict=True):
                parameter.copy_(first.lerp(parameter, method.config.keep))
    method.finish_on(views)
    return watch.last_epoch or watch.mean()


class _Watch:
    """Looks at the loss now and then: progress, log, and the guard against a loss that is no number."""

    def __init__(self, method: Trained, run: Run, total: int, done: int, tally: Tally) -> None:
        self.method, self.run, self.tally, self._total = method, run, tally, total
        self.journal = Journal(run.options.folder, done, run.options.on_log)
        self.last_epoch: dict[str, float] = {}
        # steps that were not looked at: whether each is logged, the epoch it ends, what was found out then
        self._pending: list[tuple[int, Terms, Tensor, bool, dict[str, float], dict[str, float]]] = []
        self._due = False  # a line of the log
        self._good, self._looked = self._copy(), time.monotonic()
        self._text, shown = "training", run.options.progress
        console = Console(stderr=True, quiet=not shown)
        self._lines, self._bar = LogLines(console, shown=shown), bar(console, shown=shown)
        if done:
            console.print(f"continuing from step {done:,} of {total:,}", highlight=False)
        self._bar.start()
        self._task = self._bar.add_task(self._text, total=total, completed=done)

    def record(self, step: int, terms: Terms, chosen: Tensor, ended: dict[str, float]) -> None:
        """Settle, if a line of the log is due and nothing waits, or the last time is long enough ago."""
        found: dict[str, float] = {}
        if ended and (ended["epoch"] % DIAGNOSE_EVERY == 0 or ended["epoch"] + 1 == self.run.epochs):
            found = self.method.diagnostics(stream(self.run.options.seed, "diagnostics", int(ended["epoch"])))
        done = step + 1
        logs = done % LOG_EVERY == 0 or bool(ended) or done == self._total
        self._pending.append((step, terms, chosen, logs, ended, found))
        self._lines.say(lambda: f"step {done:,} of {self._total:,}: {self._text}")
        waits = self.method.backbone.device.type != "cpu"
        self._due |= logs
        if self._due and (not waits or time.monotonic() - self._looked >= LOOK_AFTER):
            self.settle()

    def settle(self) -> None:
        """Wait for the terms of the last steps, count and log them, and make sure that all is finite."""
        if not self._pending:
            return
        names = list(self._pending[0][1])
        values = torch.stack([torch.stack([t[n].float() for n in names]) for _, t, *_ in self._pending])
        for (step, _, chosen, logs, ended, found), row in zip(self._pending, values.tolist(), strict=True):
            terms = dict(zip(names, row, strict=True))
            if not all(map(math.isfinite, row)):
                self._diverged("loss", step, terms, chosen)
            self.tally.recent.append(terms)
            self.tally.steps += 1
            for name, value in terms.items():
                self.tally.sums[name] = self.tally.sums.get(name, 0.0) + value
            if logs:
                self._write_means(step + 1)
            if ended:
                self.last_epoch, self.tally = self.mean() | found, Tally()
                self.journal.write(step + 1, ended | found)
        if not all(torch.stack([p.isfinite().all() for p in self.method.trainable()]).tolist()):
            self._diverged("new value of a parameter", step, terms, chosen)
        self._pending.clear()
        self._due = False
        self._good, self._looked = self._copy(), time.monotonic()

    def _write_means(self, done: int) -> None:
        """A line of the mean terms since the last one."""
        rows = self.tally.recent
        recent = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
        rows.clear()
        self.journal.write(done, recent)
        self._text = f"loss {recent['total']:.3f}  accuracy {recent.get('accuracy', math.nan):.1%}"
        self._bar.update(self._task, completed=done, description=self._text)

    def mean(self) -> dict[str, float]:
        """Mean terms of the epoch under way."""
        return {name: value / self.tally.steps for name, value in self.tally.sums.items()}

    def close(self) -> None:
        self._bar.stop()
        self.journal.close()

    def _diverged(self, what: str, step: int, terms: dict[str, float], chosen: Tensor) -> None:
        self.method.load_state_dict(self._good)
        where = "in memory"
        if folder := self.run.options.folder:
            where = str(folder / "last-good.safetensors")
            write_bytes(where, save({name: value.cpu() for name, value in self._good.items()}))
        digest = hashlib.sha256(chosen.numpy().tobytes()).hexdigest()[:12]
        raise DivergedError(
            f"step {step}: the {what} is no number ({terms}), batch {digest}; the last good parameters "
            f"are {where}: lower learning_rate, or set clip_norm=1"
        )

    def _copy(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.method.state_dict().items()}
