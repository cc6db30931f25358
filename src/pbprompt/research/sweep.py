"""A sweep: many runs, spread by an executor, each kept as soon as it is done and never done twice.

Workers write nothing but the feature cache: records come back to the sweep, which keeps them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pbprompt.executors import Ended, Executor, Job
from pbprompt.model.learn import epoch_features
from pbprompt.research.protocol import Arrays, Datasets, Prepared, prepare_run, run_task
from pbprompt.research.runs import Failure, RunConfig, RunRecord, RunStore
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.workers import available_cpus
from pbprompt.vision.towers.loading.load import backbone_fingerprint, load_backbone
from pbprompt.vision.towers.rounding import PRECISIONS

POLL_SECONDS = 0.5

Work = Callable[[Prepared, str, str], Any]
Encode = Callable[[Sequence[Prepared], str, str], Any]


def execute(run: Prepared, backbone: str, device: str) -> tuple[RunRecord, Arrays]:
    """What a worker does: one run, to its record and its per-image arrays."""
    return run_task(run, _bank(backbone, device, run.config.precision))


def encode(runs: Sequence[Prepared], backbone: str, device: str) -> None:
    """Store the features that these runs of one dataset will read: their draws, and what they test on."""
    for precision in {run.config.precision for run in runs}:
        bank = _bank(backbone, device, precision)
        own = [run for run in runs if run.config.precision == precision]
        draws = {(run.config.shots, run.config.seed, run.config.views): run.few for run in own}
        for (_, seed, views), few in draws.items():
            epoch_features(bank, few, seed, views, epochs=0)
        tested = {(name, run.config.split): one for run in own for name, one in run.tested.items()}
        for dataset in tested.values():
            bank.encode(dataset.root, dataset.test)


@cache
def _bank(backbone: str, device: str, precision: str) -> FeatureCache:
    """Of towers that are loaded once a process, however many runs it does."""
    # threads: with decoding processes of its own, every worker would start as many as there are processors
    towers = load_backbone(backbone, device=device, dtype=PRECISIONS[precision])
    return FeatureCache(towers, workers=available_cpus(), progress=False)


@dataclass(frozen=True)
class Outcome:
    """Ids of the runs that were done now, that the store had already, and that failed."""

    done: tuple[str, ...]
    skipped: tuple[str, ...]
    failed: tuple[str, ...]


def sweep(
    runs: Sequence[RunConfig],
    *,
    backbone: str,
    root: Path | None,
    store: RunStore,
    executor: Executor,
    device: str = "cpu",
    progress: bool = True,
    work: Work = execute,
    encode: Encode = encode,
) -> Outcome:
    """Do the runs that the store does not have.

    All data is opened here, once: workers are sent the lists of images, and read the files under the same
    paths. The images of a dataset are encoded before its runs start, once for all of them. A run that raises,
    or whose worker dies, is tried once more; then its failure is kept with the traceback, and the others go
    on. Whatever stops the sweep, the same call goes on from there. The caller closes the executor.
    """
    named = prepare_runs(runs, backbone, root)
    finished = store.finished()
    skipped = tuple(identity for identity in named if identity in finished)
    missing = {identity: run for identity, run in named.items() if identity not in finished}
    groups = _groups(missing, work, encode, (backbone, device))
    done: list[str] = []
    failed: list[str] = []
    retried: set[Job] = set()
    console = Console(stderr=True, quiet=not progress, markup=False, highlight=False, soft_wrap=True)
    words = TextColumn("{task.fields[running]} running, {task.fields[failed]} failed, {task.description}")
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), words)
    shown = Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=1e9)
    bar = shown.add_task("", total=len(missing), running=0, failed=0)

    def ended(label: str) -> None:
        shown.update(bar, advance=1, description=label, failed=len(failed))
        if not console.is_terminal:  # where nobody watches, a line a run
            left = timedelta(seconds=round(shown.tasks[0].time_remaining or 0))
            console.print(f"{len(done) + len(failed)}/{len(missing)}, {left} left: {label}")

    try:
        with shown:
            executor.submit(list(groups))
            while len(done) + len(failed) < len(missing):
                shown.update(bar, running=executor.running())
                for end in executor.wait(POLL_SECONDS):
                    job, error = end.job, end.error or _mistaken(end, missing)
                    if error and job not in retried:
                        retried.add(job)
                        executor.submit([job])
                    elif error:  # of a dataset that cannot be encoded, all runs fail
                        for lost in groups.get(job, [job]):
                            store.fail(Failure(lost.id, missing[lost.id].config, error))
                            failed.append(lost.id)
                            ended(f"{missing[lost.id].config} failed")
                    elif job in groups:
                        executor.submit(groups[job])
                    else:
                        store.add(*end.value)
                        done.append(job.id)
                        ended(str(missing[job.id].config))
    except KeyboardInterrupt:  # which may come between a record and our count of it
        count = len(missing.keys() & store.finished()) + len(failed)
        console.print(f"stopped with {count} of {len(missing)} runs: the same command goes on")
        raise
    return Outcome(tuple(done), skipped, tuple(failed))


def prepare_runs(runs: Sequence[RunConfig], backbone: str, root: Path | None) -> dict[str, Prepared]:
    """Id -> run, in order; what occurs twice is one run. Settings and data that do not fit show here."""
    weights, datasets = backbone_fingerprint(backbone), Datasets(root)
    prepared = (prepare_run(run, datasets) for run in runs)
    return {run.id(weights): run for run in prepared}


def _groups(
    missing: Mapping[str, Prepared], work: Work, encode: Encode, shared: tuple[str, ...]
) -> dict[Job, list[Job]]:
    """For each dataset the job that encodes its images -> the runs that then read them."""
    by_dataset: dict[str, list[Job]] = defaultdict(list)
    for number, (identity, run) in enumerate(missing.items()):
        by_dataset[run.config.dataset].append(Job(identity, number, work, (run, *shared)))
    return {
        Job(dataset, jobs[0].number, encode, (tuple(missing[job.id] for job in jobs), *shared)): jobs
        for dataset, jobs in by_dataset.items()
    }


def _mistaken(end: Ended, missing: Mapping[str, Prepared]) -> str:
    """A worker elsewhere may have another version, or other weights under the same name."""
    if end.job.id not in missing or end.value[0].id == end.job.id:
        return ""
    return f"the worker names this run {end.value[0].id}: its pbprompt or its weights are not the same"
