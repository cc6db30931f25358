"""What the study of evidence asked of its first row, `conjugate`, and what the figures answer.

A goal that compares is met where every 95 % interval leaves out zero on its side, not met where one leaves it
out on the other, and not shown otherwise: also where runs are missing, or two rows share one draw alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from benchmarks.study.claims import HIGHER_IS_BETTER, Lead, Outcome, find_lead, first_row, judge
from benchmarks.study.parts import AVERAGE, EVERYTHING, shots_in_words
from benchmarks.study.tables import number, plain_lead

Study = Mapping[str, Any]
VERDICTS = {"yes": "met", "no": "NOT met", "open": "not shown"}
SHOTS = [shots_in_words([shots]) for shots in (1, 2, 4, 8, 16)]
ECE_LIMIT = 0.03  # from 4 shots on
H_LIMIT = 0.643  # 60.3 % of the study of prompts, and four points
JOINT = f"{AVERAGE}, Joint"


@dataclass(frozen=True)
class Goal:
    """What was asked for, what the figures say of it, and the figures."""

    text: str
    outcome: Outcome
    figures: str

    @property
    def verdict(self) -> str:
        return VERDICTS[self.outcome]


def goals(study: Study) -> Iterator[Goal]:
    """All that can be asked of the parts that the summary has."""
    parts = study["parts"]
    if "few-shot" in parts:
        for metric, words in (("accuracy", "Accuracy higher"), ("nll", "NLL lower")):
            for shots in SHOTS:
                yield _ahead_of_all(study, f"{words} than every other method's, {shots}", shots, metric)
        yield _calibrated(study)
    if "base-to-new" in parts:
        harmonic = mean_of(study, "base-to-new", first_row(study, "base-to-new"), f"{AVERAGE}, H")
        outcome: Outcome = "open" if harmonic is None else "yes" if harmonic >= H_LIMIT else "no"
        yield Goal(f"H of at least {100 * H_LIMIT:.1f} %", outcome, shown("accuracy", harmonic))
        yield _joint(study)
        yield _unknown(study)
    if "domain-shift" in parts:
        yield _other_domains(study)


def mean_of(study: Study, part: str, row: str, column: str, metric: str = "accuracy") -> float | None:
    figure = study["parts"][part]["cells"].get(row, {}).get(column, {}).get(metric)
    return figure[0] if figure else None


def other_methods(study: Study, part: str) -> list[str]:
    """The rows of another method than the first row's; those of the same one are its variants."""
    rows = study["parts"][part]["rows"]
    return [row for row, method in rows.items() if method != rows[first_row(study, part)]]


def shown(metric: str, value: float | None) -> str:
    return "not run" if value is None else number(metric, value)


def _ahead_of_all(study: Study, text: str, shots: str, metric: str) -> Goal:
    column = f"{AVERAGE}, {shots}"
    rows = other_methods(study, "few-shot")
    leads = {row: find_lead(study, "few-shot", row, column, metric) for row in rows}
    known = {row: lead for row, lead in leads.items() if lead}
    sure = {row: lead for row, lead in known.items() if isfinite(lead.low)}
    unsure = {row: lead for row, lead in known.items() if row not in sure}
    sign = 1 if metric in HIGHER_IS_BETTER else -1
    ahead = [row for row, lead in unsure.items() if sign * lead.difference > 0]
    nearest = min(ahead, key=lambda row: sign * unsure[row].difference, default="")
    told = {
        "level with": _told(sure, "open"),
        "behind": _told(sure, "no"),
        f"ahead of {len(ahead)} without an interval, nearest": _told(unsure, "open", [nearest]),
        "behind without an interval": _told(unsure, "open", [row for row in unsure if row not in ahead]),
        "not run": [row for row in rows if not leads[row]],
    }
    figures = [f"{words}: {', '.join(names)}" for words, names in told.items() if names]
    better = sum(lead.outcome() == "yes" for lead in sure.values())
    outcome = judge([lead.outcome() if lead else "open" for lead in leads.values()])
    mine = mean_of(study, "few-shot", first_row(study, "few-shot"), column, metric)
    counted = f"{shown(metric, mine)}; better than {better} of {len(rows)}"
    return Goal(text, outcome, "; ".join([counted, *figures]))


def _told(leads: Mapping[str, Lead], outcome: Outcome, rows: Sequence[str] | None = None) -> list[str]:
    return [
        f"{row} {plain_lead(lead)}"
        for row, lead in leads.items()
        if lead.outcome() == outcome and (rows is None or row in rows)
    ]


def _calibrated(study: Study) -> Goal:
    cells = study["parts"]["few-shot"]["cells"].get(first_row(study, "few-shot"), {})
    outcomes: list[Outcome] = []
    figures = []
    for shots in SHOTS[2:]:
        found = {key: cell["ece"][0] for key, cell in cells.items() if key.endswith(f", {shots}")}
        average = found.pop(f"{AVERAGE}, {shots}", None)
        outcomes.append("open" if average is None else "yes" if average < ECE_LIMIT else "no")
        worst = max(found, key=lambda key: found[key], default="")
        highest = f", highest on {worst.split(',')[0]}: {number('ece', found[worst])}" if worst else ""
        figures.append(f"{shots}: {shown('ece', average)}{highest}")
    text = f"ECE below {100 * ECE_LIMIT:g} % from 4 shots on, on average"
    return Goal(text, judge(outcomes), "; ".join(figures))


def _joint(study: Study) -> Goal:
    columns = study["parts"]["base-to-new"]["columns"]
    groups = dict.fromkeys(group for group, _ in columns if group not in (AVERAGE, EVERYTHING))
    leads = {
        f"{group}, − {row}": find_lead(study, "base-to-new", row, f"{group}, Joint", "accuracy")
        for group in groups
        for row in ("PBPrompt", "zero-shot")
    }
    return _compared("Accuracy under all names above PBPrompt's and zero-shot's on every dataset", leads)


def _compared(text: str, leads: Mapping[str, Lead | None]) -> Goal:
    outcome = judge([lead.outcome() if lead else "open" for lead in leads.values()])
    return Goal(text, outcome, "; ".join(f"{name}: {plain_lead(lead)}" for name, lead in leads.items()))


def _unknown(study: Study) -> Goal:
    leads = {
        f"− {row}": find_lead(study, "base-to-new", row, JOINT, "auroc_none_of_these")
        for row in other_methods(study, "base-to-new")
    }
    return _compared("AUROC of “none of these” above every other method's", leads)


def _other_domains(study: Study) -> Goal:
    """Not below: a difference under zero counts as a loss where its interval leaves out zero."""
    _, *columns = [heading for _, heading in study["parts"]["domain-shift"]["columns"]]
    leads = {
        column: find_lead(study, "domain-shift", "zero-shot", column, "accuracy")
        for column in columns
        if column != AVERAGE
    }
    outcomes: list[Outcome] = [
        "open" if lead is None else "yes" if lead.difference >= 0 else lead.outcome()
        for lead in leads.values()
    ]
    figures = "; ".join(f"{column}: {plain_lead(lead)}" for column, lead in leads.items())
    return Goal("Not below zero-shot in any other domain of PACS, by the means", judge(outcomes), figures)
