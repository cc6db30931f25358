"""The study of evidence in short: its first row, `conjugate`, beside the best of the other methods."""

from collections.abc import Mapping
from typing import Any

from benchmarks.study.claims import HIGHER_IS_BETTER, find_lead, first_row, losses
from benchmarks.study.parts import AVERAGE, shots_in_words
from benchmarks.study.tables import NOT_RUN, UNITS, marked_lead, number
from pbprompt import markdown

Study = Mapping[str, Any]
WORDS = {"accuracy": "accuracy, %", "nll": "NLL", "ece": "calibration error, %"}
SHOTS = [shots_in_words([shots]) for shots in (1, 4, 16)]
JOINT = f"{AVERAGE}, Joint"


def headline(study: Study) -> str:
    """Few-shot, on average: accuracy, NLL and ECE by shots, each beside the best other method's."""
    if "few-shot" not in study["parts"]:
        return "Not run."
    first = first_row(study, "few-shot")
    rows = []
    for metric, words in WORDS.items():
        means, rivals, leads = [f"`{first}`: {words}"], ["the best other method"], ["the difference"]
        for shots in SHOTS:
            column = f"{AVERAGE}, {shots}"
            rival = best_other(study, "few-shot", column, metric)
            means.append(shown(metric, mean_of(study, "few-shot", first, column, metric)))
            rivals.append(_named(study, "few-shot", rival, column, metric))
            lead = find_lead(study, "few-shot", rival, column, metric) if rival else None
            leads.append(marked_lead(lead) if lead else NOT_RUN)
        rows += [means, rivals, leads]
    return markdown.table(["", *SHOTS], rows)


def answer(study: Study) -> str:
    """A sentence for each of the other tasks."""
    sentences = []
    if "base-to-new" in study["parts"]:
        first = first_row(study, "base-to-new")
        known, new = (
            shown(metric, mean_of(study, "base-to-new", first, JOINT, metric))
            for metric in ("refused_known", "refused_new")
        )
        sentences.append(
            f"**New classes by name.** Tuned on half of the classes, its H is "
            f"{_beside(study, 'base-to-new', f'{AVERAGE}, H')}, and its accuracy under all names together "
            f"{_beside(study, 'base-to-new', JOINT)}."
        )
        sentences.append(
            f"**None of these.** Its AUROC for images of classes it does not know is "
            f"{_beside(study, 'base-to-new', JOINT, 'auroc_none_of_these')}; at 5 % it refuses "
            f"{known} % of the images of known classes and {new} % of the others."
        )
    if "domain-shift" in study["parts"]:
        first = first_row(study, "domain-shift")
        plain = shown("accuracy", mean_of(study, "domain-shift", "zero-shot", AVERAGE))
        sentences.append(
            f"**Other domains.** Tuned on photographs of PACS, its accuracy on paintings, cartoons and "
            f"sketches is {_beside(study, 'domain-shift', AVERAGE)}; zero-shot has {plain}."
        )
    return "\n".join(f"- {text}" for text in sentences)


def where_it_loses(study: Study) -> str:
    """On the averages: each place with the rows that are better; of single datasets, how many cells."""
    better: dict[str, list[str]] = {}
    single: dict[str, int] = {}
    for part, row, metric, lost in losses(study, list(study["parts"])):
        if row not in other_methods(study, part):
            continue
        for column, lead in lost:
            if column.startswith(AVERAGE):
                place = f"{UNITS[metric].split(',')[0]}, {column} ({part})"
                better.setdefault(place, []).append(f"{row} {marked_lead(lead)}")
            else:
                single[part] = single.get(part, 0) + 1
    lines = [f"- {place}: {', '.join(rows)}" for place, rows in better.items()]
    if single:
        told = ", ".join(f"{count} in {part}" for part, count in single.items())
        lines.append(f"- single datasets, cells in which a row is better in accuracy or NLL: {told}")
    return "\n".join(lines) or "Nowhere that was run, by an interval that leaves out zero."


def mean_of(study: Study, part: str, row: str, column: str, metric: str = "accuracy") -> float | None:
    figure = study["parts"][part]["cells"].get(row, {}).get(column, {}).get(metric)
    return figure[0] if figure else None


def other_methods(study: Study, part: str) -> list[str]:
    """The rows of another method than the first row's; those of the same one are its variants."""
    rows = study["parts"][part]["rows"]
    return [row for row, method in rows.items() if method != rows[first_row(study, part)]]


def shown(metric: str, value: float | None) -> str:
    return "not run" if value is None else number(metric, value)


def best_other(study: Study, part: str, column: str, metric: str = "accuracy") -> str:
    """The best row of another method than the first row's; empty where none was run."""
    values = {row: mean_of(study, part, row, column, metric) for row in other_methods(study, part)}
    known = {row: value for row, value in values.items() if value is not None}
    sign = 1 if metric in HIGHER_IS_BETTER else -1
    return max(known, key=lambda row: sign * known[row], default="")


def _named(study: Study, part: str, row: str, column: str, metric: str) -> str:
    value = mean_of(study, part, row, column, metric)
    return NOT_RUN if value is None else f"{row} {number(metric, value)}"


def _beside(study: Study, part: str, column: str, metric: str = "accuracy") -> str:
    """The first row's figure beside the best of the other methods."""
    mine = mean_of(study, part, first_row(study, part), column, metric)
    rival = _named(study, part, best_other(study, part, column, metric), column, metric)
    return f"**{shown(metric, mine)}** (best other: {rival})"
