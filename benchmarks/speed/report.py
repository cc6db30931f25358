"""docs/performance.md from the files of results: every figure in it was measured, and says where."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.speed.evidence_growth import IMAGES_CLASSES, SHOTS, series
from benchmarks.speed.evidence_growth import LABELS as CONJUGATE_LABELS
from benchmarks.speed.goals import judged
from benchmarks.speed.growth_plot import growth_figure
from benchmarks.speed.results import Results, is_results, read_results
from benchmarks.speed.tables import TITLES, digits, table
from pbprompt import markdown
from pbprompt.apps.pages import plots
from pbprompt.errors import InputError
from pbprompt.files import read_text, write_text

FOLDER = Path("benchmarks/results")
TRIED = "tried.yaml"
PLOT = Path("images") / "performance.svg"  # beside the document
CONJUGATE_PLOT = Path("images") / "performance-conjugate.svg"
SHOWN = ("steps", "fit", "predict", "stages")  # parts with a table here; the files have all of them

INTRODUCTION = """\
# Performance

For those who deploy a model: what each part costs beside the plain way of doing it, measured.

Written by `python -m benchmarks.speed report` from {files}: do not edit.
`python -m benchmarks.speed measure --out FILE` measures anew; with 0.1.0 it was still `pbprompt bench`.

**Plain** is each method as it is usually written (`benchmarks/speed/plain.py`): every prompt at all positions
of the context length, the image tower in every training step, the text tower in every test batch, torch's
own optimiser, nothing captured or compiled. It runs on this library's own towers with fused attention.
**Ours** is the library. Both have the same weights, the same images and the same noise, in the same run.
Backbones other than `lite` have random weights of the real sizes; class names have ImageNet's lengths; a
prompt has 4 context vectors (PBPrompt's one more, the latent).

Times are medians. **Difference** is the largest relative difference ‖a − b‖/‖b‖ between both ways over the
loss and the gradient of every parameter. The **floor** is the fewest operations that an exact step needs
(`benchmarks/speed/flops.py`) at the rate of a large matrix product of the same precision, measured in the
same run. Memory is the peak above what the weights take. Parts that have no table here, such as very many
classes, are measured for the goals and the curves below; their rows are in the files.
"""


def write_report(files: Sequence[Path], out: Path) -> None:
    """Write the document, and its plot beside it."""
    results = {path: read_results(path) for path in files} or _all_results(FOLDER)
    if not results:
        raise InputError(
            f"{FOLDER} holds no results: "
            f"run `python -m benchmarks.speed measure --out {FOLDER}/NAME.json` first"
        )
    if growth := _rows_of("growth", results):
        plots.save(growth_figure(growth), out.parent / PLOT)
    if grown := _rows_of("conjugate", results):
        lines = {name: list(series(rows)) for name, rows in grown.items()}
        plots.save(growth_figure(lines, CONJUGATE_LABELS), out.parent / CONJUGATE_PLOT)
    tried = next((path.parent / TRIED for path in results if (path.parent / TRIED).exists()), None)
    write_text(out, document(results, read_tried(tried) if tried else []))


def _rows_of(part: str, results: Mapping[Path, Results]) -> dict[str, list[dict[str, Any]]]:
    """Of each machine on which the part was measured."""
    every = (content["parts"] for content in results.values())
    return {label(parts): parts[part]["rows"] for parts in every if part in parts}


def _all_results(folder: Path) -> dict[Path, Results]:
    """The files that the benchmark wrote, among others that lie there."""
    return {
        path: content
        for path in sorted(folder.glob("*.json"))
        if is_results(content := json.loads(read_text(path)))
    }


def read_tried(path: Path) -> list[str]:
    """What was tried and did not pay: a YAML list of lines."""
    try:
        lines = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML ({str(error).splitlines()[0]}): mend it") from None
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise InputError(f"{path}: a list of lines is expected, each starting with `- `: mend it")
    return lines


def document(results: Mapping[Path, Results], tried: Sequence[str]) -> str:
    """The document's text."""
    names = ", ".join(f"`{path.as_posix()}`" for path in results)
    sections = [INTRODUCTION.format(files=names)]
    for content in results.values():
        sections += _machine_section(content["parts"])
    if growth := _rows_of("growth", results):
        sections.append(_growth_section(growth))
    if grown := _rows_of("conjugate", results):
        sections.append(_conjugate_section({name: list(series(rows)) for name, rows in grown.items()}))
    if tried:
        lines = "\n".join(f"- {line.strip()}" for line in tried)
        sections.append(f"## Tried and left out\n\n{lines}\n")
    return "\n".join(sections)


def label(parts: Mapping[str, Any]) -> str:
    """The machine in a few words."""
    machine = next(iter(parts.values()))["machine"]
    if machine["kind"] == "cuda":
        return str(machine["device"])
    return f"{machine['cpu']}, {machine['threads']} threads"


def _machine_section(parts: Mapping[str, Any]) -> Iterator[str]:
    machine = next(iter(parts.values()))["machine"]
    yield f"## {label(parts)}\n"
    yield (
        f"{machine['cores']} cores of {machine['cpu']}, {machine['threads']} threads"
        + (f", one {machine['device']}." if machine["kind"] == "cuda" else ".")
        + "\n"
    )
    yield _provenance(parts) + "\n"
    goals = list(judged(machine["kind"], parts))
    if any(met != "–" for *_, met in goals):
        yield markdown.table(["goal", "measured", "met"], goals) + "\n"
    for name, part in parts.items():
        if name in SHOWN and part["rows"]:
            yield f"### {TITLES.get(name, name)}\n\n{markdown.table(*table(name, part['rows']))}\n"


def _provenance(parts: Mapping[str, Any]) -> str:
    """Which command measured each part, with what, when."""
    rows = []
    for name, part in parts.items():
        versions = ", ".join(f"{key} {value}" for key, value in part["versions"].items())
        remark = ("" if part["complete"] else " (broken off)") + (" (try-out sizes)" if part["quick"] else "")
        if (part.get("load") or 0) > part["machine"]["cores"]:
            remark += f" (machine busy: load {part['load']:g} on {part['machine']['cores']} cores)"
        if part.get("remark"):
            remark += f" ({part['remark']})"
        rows.append(
            [
                f"{name}{remark}",
                f"`{part['command']}`",
                part["commit"] or "–",
                part["date"][:10],
                f"{digits(part['seconds'])} s",
                versions,
            ]
        )
    return markdown.table(["part", "command", "commit", "date", "took", "versions"], rows)


def _growth_table(lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """How much time and memory grow over each series."""
    rows = []
    for name, points in lines.items():
        for size in dict.fromkeys(point["grows"] for point in points):
            own = sorted(
                (point for point in points if point["grows"] == size), key=lambda point: point["value"]
            )
            first, last = own[0], own[-1]
            steepest = max(
                (right["ms"] / left["ms"]) / (right["value"] / left["value"]) for left, right in pairwise(own)
            )
            rows.append(
                [
                    name,
                    size,
                    f"{first['value']:,} → {last['value']:,}",
                    f"{digits(first['ms'])} → {digits(last['ms'])} ms",
                    f"{digits(first['gib'])} → {digits(last['gib'])} GiB",
                    f"{digits(steepest)}×",
                ]
            )
    headings = ["machine", "grows", "from – to", "time", "memory", "steepest step, beside proportion"]
    return markdown.table(headings, rows)


def _growth_section(lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    return f"""## Growth

One PBPrompt step while one size grows and the others stay; for images, an epoch from JPEG files, encoding
included. Dashed: in proportion. The last column is the largest growth of time from one point to the next,
divided by that of the size: 1 is in proportion, below is better.

![Time and memory against classes, samples, patches, batch and images]({PLOT.as_posix()})

{_growth_table(lines)}
"""


def _conjugate_section(lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    return f"""## Growth of `conjugate`

From synthetic features on, of the width of `lite`; records of before commit
071a297 are of the former model. A fit reads the names (eight sentences each), passes over
the features once and weighs its experts by at most 4,096 of them; with more images only the pass
grows, and one image more costs what the choice does, however many came before. As images grow there are
{IMAGES_CLASSES} classes; as classes grow, {SHOTS} images of each. Memory is the peak over all that is
measured at a point.

![Time and memory against images and classes]({CONJUGATE_PLOT.as_posix()})

{_growth_table(lines)}
"""
