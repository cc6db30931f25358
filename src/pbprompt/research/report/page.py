"""The runs of a folder as one HTML file that needs nothing besides itself: tables, figures, failures."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from pbprompt.apps.pages import plots
from pbprompt.apps.pages.html_page import notices, page
from pbprompt.apps.pages.plots import Drawing
from pbprompt.errors import InputError
from pbprompt.files import write_text
from pbprompt.research.recipes import Recipe, load_recipe, recipe_names
from pbprompt.research.report import render
from pbprompt.research.report.comparisons import comparison_table, make_comparisons
from pbprompt.research.report.figures import draw, draw_table
from pbprompt.research.report.tables import build_table
from pbprompt.research.runs import Failure, RunRecord, RunStore


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
