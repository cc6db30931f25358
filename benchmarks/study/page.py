"""The study as a page: a hand-written template whose every figure comes out of the summary.

In the template, {{verb arguments}} stands for what the functions below write: a whole table, or one figure as
in {{value few-shot; CoOp; average, 1 shot; accuracy}} and {{lead few-shot; CoOp; average, 1 shot; nll}}.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.study import presets
from benchmarks.study.answers import answer, headline, where_it_loses
from benchmarks.study.claims import NEAR, SEEN, Check, claims, find_lead, first_row
from benchmarks.study.figures import draw_curves
from benchmarks.study.maps import draw_maps
from benchmarks.study.parts import STUDIES
from benchmarks.study.tables import (
    UNITS,
    ablations,
    marked_lead,
    number,
    overview,
    plain_lead,
    tables,
)
from pbprompt import markdown
from pbprompt.errors import InputError
from pbprompt.files import write_text
from pbprompt.registry import find_method
from pbprompt.research.provenance import code_of, code_revision

Study = Mapping[str, Any]


def write_page(study: Study, template: str, out: Path) -> None:
    """The page, and its figures in images/ beside it."""
    verbs: dict[str, Callable[..., str]] = {
        "table": tables,
        "overview": overview,
        "ablations": ablations,
        "claims": _claims,
        "answer": answer,
        "headline": headline,
        "losses": where_it_loses,
        "code": _code,
        "missing": _missing,
        "identity": _identity,
        "value": _value,
        "lead": _lead_value,
        "presets": lambda study: presets.shown(),
        "curves": lambda study, part="", only="": draw_curves(study, out.parent / "images", out.stem, only),
        "maps": lambda study: draw_maps(out.parent / "images"),
    }

    def filled(match: re.Match[str]) -> str:
        verb, _, rest = match[1].strip().partition(" ")
        if verb not in verbs:
            raise InputError(f"template: unknown {{{{{match[1]}}}}}: known are {', '.join(verbs)}")
        words = [word.strip() for word in rest.split(";")] if rest else []
        if words and words[0] not in study["parts"]:
            parts = STUDIES[study["study"]]
            if words[0] not in parts:
                raise InputError(f"template: {{{{{match[1]}}}}} names no part: known are {', '.join(parts)}")
            return "Not run."
        try:
            inspect.signature(verbs[verb]).bind(study, *words)
        except TypeError as error:
            raise InputError(f"template: {{{{{match[1]}}}}}: {error}: put ; between the words") from None
        return verbs[verb](study, *words)

    write_text(out, re.sub(r"\{\{(.+?)\}\}", filled, template).rstrip() + "\n")


def _claims(study: Study) -> str:
    rows = [
        [str(one.number), one.text, f"**{one.verdict}**", "; ".join([one.remark] * bool(one.remark) + checks)]
        for one in claims(study)
        for checks in [[_check(check) for check in one.checks]]
    ]
    return markdown.table(["", "claim", "verdict", "by"], rows)


def _check(check: Check) -> str:
    asked = f", not below −{100 * NEAR:g}" if check.slack > 0 else f", by {SEEN} or more" * (check.slack < 0)
    where = f"{check.part}, {check.column}"
    what = f"{check.first} − {check.second}, {UNITS[check.metric]} ({where}){asked}"
    return f"{what}: {marked_lead(check.lead)}: {check.outcome}"


def measured(study: Study) -> Study:
    """The study without figures of former runs, which were compared without intervals."""
    parts = {
        name: part | {"cells": {row: cells for row, cells in part["cells"].items() if not _former(cells)}}
        for name, part in study["parts"].items()
    }
    return {**study, "parts": parts}


def _former(cells: Mapping[str, Any]) -> bool:
    return any("former" in cell for cell in cells.values())


def _code(study: Study) -> str:
    """Whether the first row's runs are of the method as it is now."""
    first = study["parts"]["few-shot"]["rows"][first_row(study, "few-shot")]
    made = [fact.partition(": ")[2] for fact in study["identity"]["code"] if fact.startswith(f"{first}: ")]
    if made == [code_of(find_method(first))]:
        return f"The runs are of `{first}` as it is in this version of the library."
    if {one.partition(", code ")[0] for one in made} == {code_revision(find_method(first))}:
        return (
            f"The runs are of `{first}` in its present revision; since the commits below its code has been "
            "regrouped, on which no result depends (else its revision would have been raised)."
        )
    return (
        f"**The runs are of an earlier `{first}`** ({', '.join(made)}; commits below). Until they are made "
        "anew, by the commands below, read the order of the methods, not the last digit."
    )


def _missing(study: Study) -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    for part, summary in study["parts"].items():
        for row, gaps in summary["missing"].items():
            rows.setdefault((part, "; ".join(gaps)), []).append(row)
    lines = [f"- {part}, {', '.join(names)}: {gaps}" for (part, gaps), names in rows.items()]
    lines += [
        f"- {part}: not in this summary" for part in STUDIES[study["study"]] if part not in study["parts"]
    ]
    lines += [f"- {note}" for note in study["notes"]]
    return "\n".join(lines) or "Nothing: every run of the recipes is there."


def _identity(study: Study) -> str:
    facts = study["identity"]
    plain = {
        "runs": f"{facts['count']:,} ({facts['left_out']:,} others in the store are no part of the study)",
        "run time, summed": f"{facts['seconds'] / 3600:.1f} h",
        "finished": f"{facts['finished'][0]} to {facts['finished'][1]}",
        "draws": f"{facts['draws']['count']}, digest `{facts['draws']['digest']}`",
        "resamples": f"{facts['resamples']:,}",
    }
    for name in ("machines", "commits", "library", "backbone", "data", "code"):
        plain[name] = ", ".join(f"`{value}` ({count:,})" for value, count in facts[name].items())
    return markdown.table(["what", "which"], [[name, text] for name, text in plain.items()])


def _value(study: Study, part: str, row: str, column: str, metric: str) -> str:
    figure = _known(study, part, row, column).get(metric)
    return number(metric, figure[0]) if figure else "(not run)"


def _lead_value(study: Study, part: str, row: str, column: str, metric: str) -> str:
    _known(study, part, row, column)
    lead = find_lead(study, part, row, column, metric)
    return plain_lead(lead)


def _known(study: Study, part: str, row: str, column: str) -> Mapping[str, Any]:
    """A cell; a row or column that no recipe has is a slip of the template's."""
    summary = study["parts"][part]
    keys = [", ".join(filter(None, names)) for names in summary["columns"]]
    for what, name, known in (("row", row, list(summary["rows"])), ("column", column, keys)):
        if name not in known:
            raise InputError(f"template: {part} has no {what} {name!r}: known are {'; '.join(known)}")
    cell: Mapping[str, Any] = summary["cells"].get(row, {}).get(column, {})
    return cell
