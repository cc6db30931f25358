"""What every run of the study said of every test, resample by resample."""

import zlib
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.study.parts import Place
from benchmarks.study.resampling import (
    image_counts,
    resampled_auroc,
    resampled_ece,
    resampled_mean,
    seed_shares,
)
from pbprompt.errors import InputError
from pbprompt.runs.record import Record
from pbprompt.runs.store import RunStore

TESTED = ("accuracy", "nll", "ece")
DETECTION = ("auroc_entropy", "auroc_mutual_information", "auroc_none_of_these")
REFUSED = ("refused_known", "refused_new")  # of the run: no array tells them
TRAINED = ("posterior_std", "sampled_cosine")

Vector = NDArray[np.float64]


class Resampled:
    """The metrics of every run on every test, resample by resample; made a test set at a time."""

    def __init__(
        self, store: RunStore, records: Sequence[Record], say: Callable[[str], None], resamples: int
    ) -> None:
        self.resamples = resamples
        self._shares = cache(lambda seeds, dataset: seed_shares(seeds, resamples, _seed(dataset)))
        self.vectors: dict[tuple[str, str, str], NDArray[np.float32]] = {}
        self.notes: set[str] = set()
        by_test: dict[tuple[str, str], list[Record]] = {}
        for run in records:
            for test in run.results:
                if test != "H":
                    by_test.setdefault((run.config.dataset, test), []).append(run)
        for (dataset, test), runs in by_test.items():
            name = f"{dataset}: {test}" if test in ("base", "new", "joint") else test
            say(f"resampling {name}, {len(runs)} runs")
            self._add(store, name, test, runs)

    def _add(self, store: RunStore, name: str, test: str, runs: Sequence[Record]) -> None:
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

    def over_seeds(self, runs: Sequence[Record], place: Place, metric: str) -> Vector | None:
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
