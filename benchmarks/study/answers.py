"""The study of evidence in short: its first row, `conjugate`, beside the best of the other methods."""

from collections.abc import Mapping
from typing import Any

from benchmarks.study.claims import HIGHER_IS_BETTER, find_lead, first_row, losses
from benchmarks.study.goals import JOINT, SHOTS, mean_of, other_methods, shown
from benchmarks.study.parts import AVERAGE
from benchmarks.study.tables import NOT_RUN, UNITS, marked_lead, number
from pbprompt import markdown

Study = Mapping[str, Any]
WORDS = {"accuracy": "accuracy, %", "nll": "NLL", "ece": "calibration error, %"}


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
    """A sentence for each of the other tasks, and one for the losses."""
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
    return "\n".join(f"- {text}" for text in [*sentences, _lost(study)])


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


def _lost(study: Study) -> str:
    """Where other methods than the first row's own are better, place by place."""
    better: dict[str, list[str]] = {}
    for part, row, metric, lost in losses(study, list(study["parts"])):
        if row in other_methods(study, part):
            for column, _ in lost:
                place = f"{UNITS[metric].split(',')[0]} on {column} ({part})"
                better.setdefault(place, []).append(row)
    if not better:
        return "**Losses.** No other method is better by an interval that excludes zero."
    told = "; ".join(f"in {place}: {', '.join(rows)}" for place, rows in better.items())
    return f"**Losses.** Other methods are better by an interval that excludes zero {told}."
