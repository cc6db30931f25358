"""A sweep: many runs, spread by an executor, each kept as soon as it is done and never done twice."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbprompt.executors.executor import Ended, Executor, Job
from pbprompt.research.runs.config import RunConfig
from pbprompt.research.runs.protocol import Datasets, Prepared, prepare_run
from pbprompt.research.runs.record import Failure
from pbprompt.research.runs.store import RunStore
from pbprompt.research.sweep import worker
from pbprompt.research.sweep.progress import Progress
from pbprompt.vision.towers.loading.load import backbone_fingerprint

POLL_SECONDS = 0.5

Work = Callable[[Prepared, str, str], Any]
Encode = Callable[[Sequence[Prepared], str, str], Any]


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
    work: Work = worker.execute,
    encode: Encode = worker.encode,
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

    def kept() -> int:
        return len(missing.keys() & store.finished())

    with Progress(total=len(missing), skipped=len(skipped), shown=progress, kept=kept) as display:
        executor.submit(list(groups))
        while len(done) + len(failed) < len(missing):
            display.show(executor.running())
            for ended in executor.wait(POLL_SECONDS):
                job, error = ended.job, ended.error or _mistaken(ended, missing)
                if error and job not in retried:
                    retried.add(job)
                    executor.submit([job])
                elif error:
                    for lost in groups.get(job, [job]):  # a dataset that cannot be encoded fails all its runs
                        store.fail(Failure(lost.id, missing[lost.id].config, error))
                        failed.append(lost.id)
                        display.ended(str(missing[lost.id].config), failed=True)
                elif job in groups:
                    executor.submit(groups[job])
                else:
                    store.add(*ended.value)
                    done.append(job.id)
                    display.ended(str(missing[job.id].config))
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


def _mistaken(ended: Ended, missing: Mapping[str, Prepared]) -> str:
    """A worker elsewhere may have another version, or other weights under the same name."""
    if ended.job.id not in missing or ended.value[0].id == ended.job.id:
        return ""
    return f"the worker names this run {ended.value[0].id}: its pbprompt or its weights are not the same"
