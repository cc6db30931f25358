"""The study's metrics, resample by resample (`pbprompt.model.metrics.resampling`).

Statistics of several datasets, such as an average or H, are computed resample by resample.
"""

import zlib
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.study.parts import Place
from pbprompt.errors import InputError
from pbprompt.model.metrics.classification import Floats
from pbprompt.model.metrics.resampling import Counts, image_counts, resampled_mean, seed_shares
from pbprompt.research.runs import RunRecord, RunStore


def resampled_ece(confidence: ArrayLike, correct: ArrayLike, counts: Counts, bins: int = 15) -> Floats:
    """`ReliabilityBins.error` in every resample, [r].

    Σ_b |Σ_{i in b} w_i (confidence_i − correct_i)| / n
    """
    sure = np.minimum(np.asarray(confidence, dtype=np.float64), 1.0)
    index = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], sure, side="left")
    gaps = np.zeros((len(sure), bins), dtype=np.float32)
    gaps[np.arange(len(sure)), index] = sure - np.asarray(correct, dtype=np.float64)
    return np.abs((counts @ gaps).astype(np.float64)).sum(1) / counts.shape[1]


def resampled_auroc(scores: ArrayLike, positives: ArrayLike, counts: Counts) -> Floats:
    """`auroc` in every resample, [r]; NaN where one holds no positive or no negative."""
    values, positive = np.asarray(scores), np.asarray(positives, dtype=bool)
    order = np.argsort(values, kind="stable")
    _, starts = np.unique(values[order], return_index=True)  # equal scores are a group and count half
    drawn = counts[:, order].astype(np.float64)
    above = np.add.reduceat(drawn * positive[order], starts, axis=1)
    below = np.add.reduceat(drawn * ~positive[order], starts, axis=1)
    lower = np.cumsum(below, axis=1) - below
    pairs = above.sum(1) * below.sum(1)
    wins = (above * (lower + below / 2)).sum(1)
    return np.divide(wins, pairs, out=np.full(len(counts), np.nan), where=pairs > 0)


TESTED = ("accuracy", "nll", "ece")
DETECTION = ("auroc_entropy", "auroc_mutual_information", "auroc_none_of_these")
REFUSED = ("refused_known", "refused_new")  # of the run: no array tells them
TRAINED = ("posterior_std", "sampled_cosine")

Vector = NDArray[np.float64]


class Resampled:
    """The metrics of every run on every test, resample by resample; made a test set at a time."""

    def __init__(
        self, store: RunStore, records: Sequence[RunRecord], say: Callable[[str], None], resamples: int
    ) -> None:
        self.resamples = resamples
        self._shares = cache(lambda seeds, dataset: seed_shares(seeds, resamples, _seed(dataset)))
        self.vectors: dict[tuple[str, str, str], NDArray[np.float32]] = {}
        self.notes: set[str] = set()
        by_test: dict[tuple[str, str], list[RunRecord]] = {}
        for run in records:
            for test in run.results:
                if test != "H":
                    by_test.setdefault((run.config.dataset, test), []).append(run)
        for (dataset, test), runs in by_test.items():
            name = f"{dataset}: {test}" if test in ("base", "new", "joint") else test
            say(f"resampling {name}, {len(runs)} runs")
            self._add(store, name, test, runs)

    def _add(self, store: RunStore, name: str, test: str, runs: Sequence[RunRecord]) -> None:
        labels = None
        for run in runs:
            try:
                said = {
                    key.removeprefix(f"{test}/"): value
                    for key, value in store.arrays(run.id).items()
                    if key.startswith(f"{test}/")
                }
            except InputError as error:
                self.notes.add(f"not compared: {error}")
                continue
            if labels is None:
                labels = said["label"]
                counts = image_counts(len(labels), self.resamples, _seed(name))
            if not np.array_equal(labels, said["label"]):
                self.notes.add(f"not compared: run {run.id} was tested on other images of {name}")
                continue
            right = said["predicted"] == labels
            values = {
                "accuracy": resampled_mean(right, counts),
                "nll": resampled_mean(-said["log_likelihood"], counts),
                "ece": resampled_ece(said["confidence"], right, counts),
            }
            if test == "joint":
                new = labels >= (labels.max() + 2) // 2  # the first ⌈n/2⌉ classes are the base
                for key in DETECTION:
                    scores = said.get(key.removeprefix("auroc_"))
                    if scores is not None:  # runs of before it was stored have no "none_of_these"
                        values[key] = resampled_auroc(scores, new, counts)
            for metric, vector in values.items():
                self.vectors[run.id, test, metric] = vector.astype(np.float32)

    def over_seeds(self, runs: Sequence[RunRecord], place: Place, metric: str) -> Vector | None:
        """M [r] of the runs, one per seed; the draws of a dataset are resampled alike at all its places."""
        shares = self._shares(len(runs), place.dataset)
        if metric in TRAINED:  # a figure of the run, not of its images
            return shares @ np.array([run.train[metric] for run in runs])
        found = [self.vectors.get((run.id, place.test, metric)) for run in runs]
        if any(vector is None for vector in found):
            return None
        return np.einsum("rs,sr->r", shares, np.stack([v for v in found if v is not None]))


def _seed(name: str) -> int:
    return zlib.crc32(name.encode())
