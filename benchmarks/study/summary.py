"""From the store of runs to the study's figures: means, spread over seeds, paired intervals, what is missing.

A figure is [mean, sample std over seeds], or [mean, std, difference, low, high] for a row that is compared:
the first row less this one, with its 95 % interval over images and draws
(`pbprompt.model.metrics.resampling`).
[mean, std, difference] is a comparison without an interval: of a single draw, or of the shares refused.
"""

import csv
import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from statistics import fmean, stdev
from typing import Any, TypeVar

from benchmarks.study.parts import AVERAGE, REFERENCES, Column, Part, Place
from benchmarks.study.resampling import DETECTION, REFUSED, TESTED, TRAINED, Resampled, Vector
from pbprompt.errors import InputError
from pbprompt.model.metrics.resampling import RESAMPLES, interval
from pbprompt.research.runs import RunRecord, RunStore

DIGITS = 4  # a hundredth of a point

Runs = Mapping[tuple[str, str, int], Mapping[int, RunRecord]]  # (label, dataset, shots) -> seed -> run
N = TypeVar("N", float, Vector)


def summarise(
    store: RunStore,
    parts: Sequence[Part],
    say: Callable[[str], None] = print,
    resamples: int = RESAMPLES,
    study: str = "prompts",
) -> dict[str, Any]:
    """All that the page needs, from whichever runs there are."""
    everything = store.records()
    found = [find_runs(part, everything) for part in parts]
    used = {run.id: run for runs in found for cell in runs.values() for run in cell.values()}
    if not used:
        raise InputError(
            f"{store.folder}: no run of the study is in it: run the recipes of benchmarks/study/recipes first"
        )
    resampled = Resampled(store, list(used.values()), say, resamples)
    summaries = {}
    for part, runs in zip(parts, found, strict=True):
        say(f"comparing {part.name}")
        summaries[part.name] = _part(part, runs, resampled)
    return {
        "study": study,
        "identity": {**_identity(list(used.values()), len(everything)), "resamples": resamples},
        "notes": sorted(resampled.notes),
        "parts": summaries,
    }


def cells_as_csv(study: Mapping[str, Any]) -> str:
    """Every cell of a summary, a line each, for those who want more than the page shows."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["part", "row", "column", "metric", "draws", "mean", "deviation", "lead", "low", "high"])
    for part, summary in study["parts"].items():
        for row, cells in summary["cells"].items():
            for column, cell in cells.items():
                for metric, figure in cell.items():
                    if metric != "seeds":
                        empty = [""] * (5 - len(figure))
                        table.writerow([part, row, column, metric, cell["seeds"], *figure, *empty])
    return text.getvalue()


def find_runs(part: Part, records: Iterable[RunRecord]) -> Runs:
    """The part's runs; of equal settings the latest counts, and in a cell those made as its latest was."""
    here = [record for record in records if record.backbone.name == part.recipe.backbone]
    latest = {record.config: record for record in here}
    order = {record.id: number for number, record in enumerate(here)}
    cells: dict[tuple[str, str, int], dict[int, RunRecord]] = {}
    for config, label in part.expand().items():
        if config in latest:
            cells.setdefault((label, config.dataset, config.shots), {})[config.seed] = latest[config]
    for place, runs in cells.items():
        newest = max(runs.values(), key=lambda run: order[run.id]).making
        cells[place] = {seed: run for seed, run in sorted(runs.items()) if run.making == newest}
    return cells


def _part(part: Part, runs: Runs, resampled: Resampled) -> dict[str, Any]:
    columns = part.columns()
    labels = [row.label for row in part.rows]
    first = labels[0]
    cells = {
        label: {
            column.key: cell
            for column in columns
            if (cell := _cell(runs, resampled, column, label, first if label != first else None))
        }
        for label in labels
    }
    pooled = [column for column in columns if column.group == AVERAGE][-1:]
    versus = {
        reference: {
            label: {
                column.key: cell
                for column in pooled
                if (cell := _cell(runs, resampled, column, label, reference))
            }
            for label in labels
            if label != reference
        }
        for reference in REFERENCES.get(part.name, ())
    }
    return {
        "title": part.recipe.title,
        "task": part.recipe.task,
        "note": part.recipe.note,
        "rows": {row.label: row.method for row in part.rows},
        "columns": [[column.group, column.heading] for column in columns],
        "cells": {label: row for label, row in cells.items() if row},
        "versus": versus,
        "planned": len(part.expand()),
        "made": sum(map(len, runs.values())),
        "missing": _missing(part, runs),
    }


def _cell(
    runs: Runs, resampled: Resampled, column: Column, label: str, against: str | None
) -> dict[str, Any] | None:
    """A row's figures in a column, and how far `against` is ahead of it; None where runs are missing."""
    mine = {place: runs.get((label, place.dataset, place.shots), {}) for place in column.places}
    if not all(mine.values()):
        return None
    cell: dict[str, Any] = {"seeds": min(map(len, mine.values()))}
    theirs = {place: runs.get((against or "", place.dataset, place.shots), {}) for place in column.places}
    for metric in (*TESTED, *DETECTION, *REFUSED, *TRAINED):
        values = {place: _figures(some, place, metric) for place, some in mine.items()}
        if not all(values.values()):
            continue
        by_seed = [
            combine(column, metric, {place: some[seed] for place, some in values.items()})
            for seed in set.intersection(*(set(some) for some in values.values()))
        ]
        mean = combine(column, metric, {place: fmean(some.values()) for place, some in values.items()})
        figure = [mean, stdev(by_seed) if len(by_seed) > 1 else 0.0]
        if against and all(theirs.values()):
            figure += _lead(resampled, column, metric, theirs, mine)
        cell[metric] = [round(value, DIGITS) for value in figure]
    return cell


def _figures(runs: Mapping[int, RunRecord], place: Place, metric: str) -> dict[int, float]:
    """A metric by seed; nothing where the runs do not have it."""
    found = {
        seed: run.train.get(metric) if metric in TRAINED else run.figure(place.test, metric)
        for seed, run in runs.items()
    }
    known = {seed: float(value) for seed, value in found.items() if value is not None}
    return known if len(known) == len(found) else {}


def combine(column: Column, metric: str, values: Mapping[Place, N]) -> N:
    """The figure of a column from those of its places: their mean, or H of the halves' mean accuracies."""
    if not (column.harmonic and metric == "accuracy"):
        return _mean(list(values.values()))
    base, new = (
        _mean([value for place, value in values.items() if place.test == half]) for half in ("base", "new")
    )
    return 2 * base * new / (base + new)


def _mean(values: Sequence[N]) -> N:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total / len(values)


def _lead(
    resampled: Resampled,
    column: Column,
    metric: str,
    first: Mapping[Place, Mapping[int, RunRecord]],
    second: Mapping[Place, Mapping[int, RunRecord]],
) -> list[float]:
    """[difference, low, high] over the seeds that both rows have at all places of a dataset.

    No interval where they share fewer than two: one draw does not tell how much draws differ.
    """
    common: dict[str, set[int]] = {}
    for place in column.places:
        both = set(first[place]) & set(second[place])
        common[place.dataset] = common.get(place.dataset, both) & both
    if not all(common.values()):
        return []
    points: list[float] = []
    vectors: list[Vector] = []
    for side in (first, second):
        chosen = {p: {seed: side[p][seed] for seed in sorted(common[p.dataset])} for p in column.places}
        figures = {place: _figures(runs, place, metric) for place, runs in chosen.items()}
        if not all(figures.values()):
            return []
        points.append(combine(column, metric, {p: fmean(some.values()) for p, some in figures.items()}))
        if metric in REFUSED:
            continue
        spread = {p: resampled.over_seeds(list(runs.values()), p, metric) for p, runs in chosen.items()}
        if any(vector is None for vector in spread.values()):
            return []
        vectors.append(combine(column, metric, {p: v for p, v in spread.items() if v is not None}))
    sure = metric not in REFUSED and all(len(seeds) > 1 for seeds in common.values())
    return [points[0] - points[1], *(interval(vectors[0] - vectors[1]) if sure else ())]


def _missing(part: Part, runs: Runs) -> dict[str, list[str]]:
    """Row -> what was not run, as "every dataset at 8, 16, seeds 1, 2, 3"."""
    seeds: dict[str, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for config, label in part.expand().items():
        if config.seed not in runs.get((label, config.dataset, config.shots), {}):
            seeds[label][config.dataset, config.shots].append(config.seed)
    started = {label for label, _, _ in runs}
    datasets = {config.dataset for config in part.expand()}
    return {
        label: _gaps(cells, datasets) if label in started else ["all of it"] for label, cells in seeds.items()
    }


def _gaps(seeds: Mapping[tuple[str, int], Sequence[int]], datasets: Set[str]) -> list[str]:
    """Cells that lack the same seeds are told together: datasets first, then numbers of shots."""
    alike: dict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
    for (dataset, shots), lacking in seeds.items():
        alike[shots, tuple(sorted(lacking))].append(dataset)
    shots_of: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for (shots, lacking), where in alike.items():
        shots_of["every dataset" if set(where) == datasets else ", ".join(where), lacking].append(shots)
    return [
        f"{where} at {_listed(shots)}, seed{'s' * (len(lacking) > 1)} {_listed(lacking)}"
        for (where, lacking), shots in shots_of.items()
    ]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _identity(runs: Sequence[RunRecord], stored: int) -> dict[str, Any]:
    def counted(values: Iterable[str]) -> dict[str, int]:
        return dict(Counter(values).most_common())

    def drawn(run: RunRecord) -> str:
        return f"{run.config.dataset} {run.config.shots} {run.config.seed}{run.data.draw}"

    draws = sorted(set(map(drawn, runs)))
    return {
        "runs": " ".join(sorted(run.id[:8] for run in runs)),
        "count": len(runs),
        "left_out": stored - len(runs),
        "seconds": round(sum(run.seconds for run in runs)),
        "finished": [min(run.finished for run in runs), max(run.finished for run in runs)],
        "machines": counted(_machine(run) for run in runs),
        "commits": counted(run.commit or "none" for run in runs),
        "code": counted(f"{run.config.method}: {run.code}" for run in runs),
        "library": counted(run.library for run in runs),
        "backbone": counted(f"{run.backbone.name} {run.backbone.fingerprint}" for run in runs),
        "data": counted(f"{run.config.dataset} {run.data.content_hash[:12]}" for run in runs),
        "draws": {"count": len(draws), "digest": hashlib.sha256("\n".join(draws).encode()).hexdigest()[:16]},
    }


def _machine(run: RunRecord) -> str:
    facts = run.machine
    kind = facts.get("kind", facts["device"])  # older records have no kind, and "cpu" for a device
    tf32 = kind != "cpu" and facts["float32_products"] != "highest"
    return f"{facts['device']}, torch {facts['torch']}, products in {'TF32' if tf32 else 'float32'}"
