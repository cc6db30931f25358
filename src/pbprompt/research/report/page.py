"""The runs of a folder as one HTML file that needs nothing besides itself: tables, figures, failures."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbprompt.apps.pages import plots
from pbprompt.apps.pages.html_page import notices, page
from pbprompt.apps.pages.plots import Drawing, reliability_words
from pbprompt.errors import InputError
from pbprompt.files import write_text
from pbprompt.model.metrics.classification import confidence_bins
from pbprompt.model.metrics.selective import area_under_risk_coverage, risk_coverage
from pbprompt.research.recipes import Recipe, load_recipe, recipe_names
from pbprompt.research.report import render
from pbprompt.research.report.comparisons import Comparison, comparison_table, make_comparisons
from pbprompt.research.report.render import DEVIATION
from pbprompt.research.report.tables import Cell, Table, build_table
from pbprompt.research.runs import Failure, RunConfig, RunRecord, RunStore
from pbprompt.vision.images.fewshot import shots_in_words

LETTERS = {"ct_weight": "η", "ct_balance": "λ", "kl_weight": "β"}  # the paper's, for axes

Array = NDArray[Any]


def write_page(
    store: RunStore, out: Path, recipes: Sequence[Recipe] | None = None, figures: Path | None = None
) -> None:
    """Write the page to the file `out`; with `figures`, the figures as SVG files into that folder as well.

    `recipes` (those of the package, if None) give methods their names, and tables the paper's shape where
    their runs are there.
    """
    records, failures = store.records(), store.failures()
    if not store.folder.is_dir():
        raise InputError(f"{store.folder}: no such folder: give the one that the runs were written to")
    if not records and not failures:
        raise InputError(f"{store.folder}: no runs in it: give a folder that a sweep has written to")
    known = [load_recipe(name) for name in recipe_names()] if recipes is None else recipes
    comparisons = make_comparisons(records, known)
    tables = (build_table(recipe, records, store.arrays) for recipe in known)
    sections = [(render.html(table), draw_table(table)) for table in tables if table.seeds]
    sections += [(comparison_table(one), draw(one, store)) for one in comparisons]
    seen: Counter[str] = Counter()
    for section, wanted in sections:
        drawings = [_named_apart(drawing, seen) for drawing in wanted] if plots.available() else []
        if figures is not None:
            for drawing in drawings:
                plots.save(drawing.figure, figures / f"{drawing.name}.svg")
        section["drawings"] = drawings
    html = page(
        "runs.html",
        title="Runs of " + (_listed(one.title for one in comparisons) or store.folder.name),
        run=_facts(records, failures),
        notices=notices({record.backbone.name for record in records}),
        sections=[section for section, _ in sections],
        failures=list(_failures(failures)),
        deviation=render.DEVIATION,
    )
    write_text(out, html)


def _named_apart(drawing: Drawing, seen: Counter[str]) -> Drawing:
    """Labels that differ in signs alone make equal names: the second such drawing is called NAME-2."""
    seen[drawing.name] += 1
    count = seen[drawing.name]
    return drawing if count == 1 else replace(drawing, name=f"{drawing.name}-{count}")


def _facts(records: Sequence[RunRecord], failures: Sequence[Failure]) -> dict[str, str]:
    configs = [record.config for record in records]
    seconds = sum(record.seconds for record in records)
    return {
        "Runs": f"{len(records)} finished in {timedelta(seconds=round(seconds))} of computing"
        + (f", {len({failure.id for failure in failures})} failed" if failures else ""),
        "Backbone": _listed(f"{run.backbone.name} ({run.backbone.fingerprint[:12]})" for run in records),
        "Methods": _listed(config.method for config in configs),
        "Datasets": _listed(name for config in configs for name in (config.dataset, *config.targets)),
        "Tasks": _listed(config.task for config in configs),
        "Shots": _listed(str(shots) for shots in sorted({config.shots for config in configs})),
        "Seeds": _listed(str(seed) for seed in sorted({config.seed for config in configs})),
        "Library": _listed(f"pbprompt {record.library}" for record in records if record.library),
        "Commit": _listed(record.commit for record in records if record.commit),
    }


def _failures(failures: Sequence[Failure]) -> Iterator[dict[str, str]]:
    """The last traceback of every run that failed and has not finished since."""
    for identity, failure in {failure.id: failure for failure in failures}.items():
        tries = sum(other.id == identity for other in failures)
        name = f"{failure.config}" + (f", tried {tries} times" if tries > 1 else "")
        yield {"name": name, "reason": failure.reason, "traceback": failure.traceback.strip()}


def _listed(words: Iterable[str]) -> str:
    """Each word once, in the order they first come."""
    return ", ".join(dict.fromkeys(words))


# figures


def draw(comparison: Comparison, store: RunStore) -> Iterator[Drawing]:
    """What runs can be drawn as: curves, risk against coverage, reliability; needs matplotlib."""
    if len(comparison.shots) > 1:
        lines = {
            label: {float(shots): [run.score for run in runs] for shots, runs in line.items()}
            for label, line in comparison.lines.items()
        }
        yield _curves(comparison, "shots", lines, plots.SHOTS)
    yield from _settings(comparison)
    yield from _uncertainty(comparison, store)


def draw_table(table: Table) -> Iterator[Drawing]:
    """The paper's bar chart: H of every method on each dataset, and its average; needs matplotlib."""
    groups: dict[str, dict[str, plots.Bar]] = {}
    for section in table.sections:
        if "H" in section.columns:
            cells = [row[section.columns.index("H")] for row in section.cells]
            bars = {name: _bar(cell) for name, cell in zip(table.labels, cells, strict=True) if cell.measured}
            groups |= {section.title: bars} if bars else {}
    if groups:
        known = any(bar.published for bars in groups.values() for bar in bars.values())
        words = {
            group: ", ".join(f"{label} {100 * bar.mean:.1f}" for label, bar in bars.items())
            for group, bars in groups.items()
        }
        yield Drawing(
            _file_name(table.name, "h"),
            f"Harmonic mean H of base and new accuracy, with one {DEVIATION} over seeds"
            + ("; diamonds: the paper's figures." if known else "."),
            f"H in per cent. {_in_words(words)}",
            plots.bars(groups, table.title, "Harmonic mean H"),
        )


def _bar(cell: Cell) -> plots.Bar:
    published = None if cell.published is None else cell.published.value / 100
    return plots.Bar(cell.mean / 100, cell.std and cell.std / 100, published)


def _curves(comparison: Comparison, key: str, lines: Mapping[str, plots.Points], axis: str) -> Drawing:
    """The score against shots or a setting, with the means of every line in words."""
    against = key if axis == plots.SHOTS else axis
    means = {
        label: ", ".join(f"{100 * fmean(points[x]):.1f} at {x:g}" for x in sorted(points))
        for label, points in lines.items()
    }
    return Drawing(
        _name(comparison, key),
        f"{comparison.measured} against {against}; the band is one {DEVIATION} over seeds.",
        f"{comparison.measured} in per cent by {key}. {_in_words(means)}",
        plots.curves(lines, comparison.title, comparison.measured, axis),
    )


def _settings(comparison: Comparison) -> Iterator[Drawing]:
    """A curve for every numeric setting that takes three values or more while all others stand still."""
    runs = [run for line in comparison.lines.values() for cell in line.values() for run in cell]
    numeric = {key for run in runs for key, value in _knobs(run).items() if type(value) in (int, float)}
    for key in sorted(numeric):
        lines: dict[tuple[str, str], dict[float, list[float]]] = {}
        for run in runs:
            knobs, config = _knobs(run), run.config
            if key in knobs:
                value = knobs.pop(key)
                label = f"{config.row(without=key)}, {shots_in_words(config.shots)}"
                group = (label, json.dumps([knobs, config.shots], sort_keys=True))
                lines.setdefault(group, {}).setdefault(value, []).append(run.score)
        varied = {label: points for (label, _), points in lines.items() if len(points) > 2}
        if varied:
            yield _curves(comparison, key, varied, f"{LETTERS[key]} ({key})" if key in LETTERS else key)


def _knobs(run: RunRecord) -> dict[str, Any]:
    """All that a run's outcome depends on besides data, shots and seed."""
    return {**run.settings, "samples": run.config.samples, "views": run.config.views}


def _uncertainty(comparison: Comparison, store: RunStore) -> Iterator[Drawing]:
    """Risk against coverage and reliability, at the most shots there are, on each set of test images."""
    shots = comparison.shots[-1]

    @cache
    def arrays(identity: str) -> dict[str, Array]:
        try:
            return store.arrays(identity)
        except InputError:  # the figures of the record stand without them
            return {}

    for title, tests in _test_sets(comparison.config).items():
        lines: dict[str, list[tuple[Array, Array]]] = {}
        for label, runs in comparison.at(shots).items():
            found = [_confidence(arrays(run.id), tests) for run in runs]
            if whole := [pair for pair in found if pair is not None]:
                lines[label] = whole
        if not lines:
            continue
        where = ", ".join(filter(None, (title, shots_in_words(shots))))
        curves = {label: _mean_curve(seeds) for label, seeds in lines.items()}
        areas = {
            label: fmean(area_under_risk_coverage(*pair) for pair in seeds) for label, seeds in lines.items()
        }
        yield Drawing(
            _name(comparison, title, "risk-coverage"),
            f"Risk against coverage, {where}, mean over seeds: lower is better.",
            "Area under the curve in per cent: " + _in_words({k: f"{100 * v:.1f}" for k, v in areas.items()}),
            plots.risk_coverage_curves(curves, ", ".join(filter(None, (comparison.title, title)))),
        )
        for label, seeds in lines.items():
            confidence, right = (np.concatenate(parts) for parts in zip(*seeds, strict=True))
            bins = confidence_bins(confidence, right)
            yield Drawing(
                _name(comparison, title, label, "reliability"),
                f"Reliability of {label}, {where}, images of all seeds together.",
                "Accuracy by mean confidence in per cent: " + reliability_words(bins),
                plots.reliability_diagram(bins, ", ".join(filter(None, (label, title)))),
                small=True,
            )


def _test_sets(config: RunConfig) -> dict[str, Sequence[str]]:
    if config.task == "base-to-new":
        return {"base classes": ("base",), "new classes": ("new",)}
    return {"all targets": config.targets} if config.targets else {"": (config.dataset,)}


def _confidence(arrays: Mapping[str, Array], tests: Sequence[str]) -> tuple[Array, Array] | None:
    """(confidence, whether right) of the images of these tests together; None where a test is missing."""
    if any(f"{test}/{key}" not in arrays for test in tests for key in ("confidence", "predicted", "label")):
        return None
    confidence = np.concatenate([arrays[f"{test}/confidence"] for test in tests])
    right = [arrays[f"{test}/predicted"] == arrays[f"{test}/label"] for test in tests]
    return np.minimum(confidence.astype(np.float64), 1.0), np.concatenate(right)


def _mean_curve(seeds: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    curves = [risk_coverage(*pair) for pair in seeds]
    coverage = curves[0][0]  # the same for all, unless the seeds' test sets differ in size
    return coverage, np.mean([np.interp(coverage, *curve) for curve in curves], axis=0)


def _in_words(parts: Mapping[str, str]) -> str:
    return "; ".join(f"{key}: {value}" for key, value in parts.items()) + "."


def _name(comparison: Comparison, *words: str) -> str:
    """A name for a file: letters, digits and dashes."""
    return _file_name(comparison.backbone, comparison.config.task, comparison.config.place, *words)


def _file_name(*words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")[-120:]
