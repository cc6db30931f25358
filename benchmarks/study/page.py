"""The study as a page: a hand-written template whose every figure comes out of the summary.

In the template, {{verb arguments}} stands for what the functions below write: a whole table, or one figure as
in {{value few-shot; CoOp; average, 1 shot; accuracy}} and {{lead few-shot; CoOp; average, 1 shot; nll}}.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.none_of_these import shown as shown_scores
from benchmarks.study import presets
from benchmarks.study.answers import answer, headline
from benchmarks.study.claims import NEAR, VERDICTS, Check, claims, find_lead, first_row, losses, standings
from benchmarks.study.figures import draw_curves
from benchmarks.study.goals import goals
from benchmarks.study.maps import draw_maps
from benchmarks.study.parts import STUDIES, TASKS
from benchmarks.study.tables import (
    NOT_RUN,
    UNITS,
    ablations,
    detection,
    differences,
    diversity,
    marked_lead,
    none_of_these,
    number,
    overview,
    plain_lead,
    tables,
)
from pbprompt import markdown
from pbprompt.errors import InputError
from pbprompt.files import write_text

SCORES = Path(__file__).parents[1] / "results" / "none-of-these.json"
Study = Mapping[str, Any]


def write_page(study: Study, template: str, out: Path) -> None:
    """The page, and its figures in images/ beside it."""
    verbs: dict[str, Callable[..., str]] = {
        "table": tables,
        "overview": overview,
        "differences": differences,
        "detection": detection,
        "diversity": diversity,
        "ablations": ablations,
        "none_of_these": none_of_these,
        "claims": _claims,
        "answer": answer,
        "headline": headline,
        "goals": _goals,
        "counts": _counts,
        "machines": _machines,
        "standings": _standings,
        "losses": _losses,
        "missing": _missing,
        "identity": _identity,
        "value": _value,
        "lead": _lead_value,
        "scores": lambda study: _scores(),
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
    asked = f", not below −{100 * NEAR:g}" if check.slack else ""
    where = f"{check.part}, {check.column}"
    what = f"{check.first} − {check.second}, {UNITS[check.metric]} ({where}){asked}"
    return f"{what}: {marked_lead(check.lead)}: {check.outcome}"


def _standings(study: Study) -> str:
    rows = []
    for one in standings(study):
        against = [("better", one.better), ("level", one.not_beaten), ("not run", one.not_run)]
        rest = "; ".join(f"{word}: {', '.join(names)}" for word, names in against if names)
        verdict = {"yes": "best", "no": "not the best", "open": VERDICTS["open"]}[one.outcome]
        rows.append(
            [
                f"{one.part}, {one.column}",
                UNITS[one.metric],
                NOT_RUN if one.mean is None else number(one.metric, one.mean),
                f"{one.runner}: {marked_lead(one.lead)}" if one.runner else NOT_RUN,
                f"**{verdict}**",
                rest,
            ]
        )
    return markdown.table(["where", "in", "PBPrompt", "less the best other", "verdict", "others"], rows)


def _losses(study: Study) -> str:
    rows = [
        [part, row, UNITS[metric], "; ".join(f"{column}: {plain_lead(lead)}" for column, lead in lost)]
        for part, row, metric, lost in losses(study, TASKS)
    ]
    if not rows:
        return "Nowhere that was run."
    first = first_row(study, TASKS[0])
    return markdown.table(["task", f"better than {first}", "in", f"where: {first} less it"], rows)


def _goals(study: Study) -> str:
    rows = [[goal.text, f"**{goal.verdict}**", goal.figures] for goal in goals(study)]
    return markdown.table(["goal", "verdict", "figures"], rows)


def _counts(study: Study) -> str:
    """How much of the grid was run."""
    rows = [
        [name, f"{part['made']:,}", f"{part['planned'] - part['made']:,}"]
        for name, part in study["parts"].items()
    ]
    rows.append(["all", *(f"{sum(int(row[i].replace(',', '')) for row in rows):,}" for i in (1, 2))])
    return markdown.table(["part", "runs made", "missing"], rows)


def _scores() -> str:
    """What tells images of none of the classes, as `benchmarks.none_of_these` measured it."""
    found = json.loads(SCORES.read_text(encoding="utf-8"))
    return f"{shown_scores(found['rows'])}\n\nCommit `{found['commit']}`, seeds {found['seeds']}."


def _machines(study: Study) -> str:
    return "; ".join(f"{count:,} on {machine}" for machine, count in study["identity"]["machines"].items())


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
    if former := facts.get("former"):
        plain["rows of former runs (†)"] = "; ".join(former["rows"])
        plain["commits of the former runs"] = ", ".join(f"`{one}`" for one in former["commits"])
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
