"""What the figures say of the paper's seven claims.

One rule for all: a row is better where the 95 % interval of the averaged paired difference leaves out zero
on its side. A claim that needs several such differences holds where all are there, does not hold where one is
the other way round, and cannot be told otherwise. "Near the best" means that the interval leaves out a loss
of more than half a point to any other value; prompts differ "thanks to" what parts them by more than a
thousandth of a cosine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

Study = Mapping[str, Any]
Outcome = Literal["yes", "no", "open"]

FIRST = "PBPrompt"
NEAR = 0.005  # half a point of accuracy
SEEN = 0.001  # of a cosine: less is no diversity that anyone would see
COLLAPSED = 0.95  # mean cosine of two sampled prompts of a class, from which on they count as one
HIGHER_IS_BETTER = ("accuracy", "auroc_entropy", "auroc_mutual_information", "auroc_none_of_these")
FEW = "average, 1, 2 and 4 shots"
FEW_ABLATION = "average, 1 and 4 shots"
BOTH_HALVES = "average, H"
VERDICTS = {"yes": "holds", "no": "does not hold", "open": "cannot be told"}


@dataclass(frozen=True)
class Lead:
    """How far one row is ahead of another: the difference of their figures and its interval."""

    metric: str
    difference: float
    low: float
    high: float

    def outcome(self, slack: float = 0.0) -> Outcome:
        """Whether the first row is better, or worse by no more than the slack."""
        low, high = (self.low, self.high) if self.metric in HIGHER_IS_BETTER else (-self.high, -self.low)
        return "yes" if low > -slack else "no" if high < -slack else "open"


@dataclass(frozen=True)
class Check:
    """One difference that a claim rests on; without a lead, because runs are missing, it stays open."""

    part: str
    first: str
    second: str
    column: str
    metric: str
    lead: Lead | None
    slack: float = 0.0

    @property
    def outcome(self) -> Outcome:
        return self.lead.outcome(self.slack) if self.lead else "open"


@dataclass(frozen=True)
class Claim:
    """What the paper says, what it is judged by, and the verdict."""

    number: int
    text: str
    checks: tuple[Check, ...]
    outcome: Outcome
    remark: str = ""

    @property
    def verdict(self) -> str:
        return VERDICTS[self.outcome]


def find_lead(
    study: Study, part: str, row: str, column: str, metric: str, against: str | None = None
) -> Lead | None:
    """The first row (or `against`) less another row, where both were run."""
    rows = study["parts"].get(part, {})
    found = rows.get("versus", {}).get(against, {}) if against else rows.get("cells", {})
    figure = found.get(row, {}).get(column, {}).get(metric, [])
    if len(figure) == 3:  # a difference without an interval leaves everything open
        return Lead(metric, figure[2], -inf, inf)
    return Lead(metric, *figure[2:5]) if len(figure) == 5 else None


def first_row(study: Study, part: str) -> str:
    """The row that the others of a part are compared with."""
    return next(iter(study["parts"][part]["rows"]))


def judge(outcomes: Sequence[Outcome]) -> Outcome:
    """All of them needed: one that is the other way round decides."""
    if "no" in outcomes:
        return "no"
    return "yes" if outcomes and all(outcome == "yes" for outcome in outcomes) else "open"


def claims(study: Study, few: str = FEW) -> list[Claim]:
    """The seven, judged; `few`: the column of few-shot that averages over few shots."""

    def check(part: str, row: str, column: str, metric: str = "accuracy", slack: float = 0.0) -> Check:
        return Check(part, FIRST, row, column, metric, find_lead(study, part, row, column, metric), slack)

    def near(part: str, reference: str) -> list[Check]:
        others = study["parts"].get(part, {}).get("rows", {})
        return [
            Check(
                part,
                reference,
                row,
                FEW_ABLATION,
                "accuracy",
                find_lead(study, part, row, FEW_ABLATION, "accuracy", reference),
                NEAR,
            )
            for row in others
            if row != reference
        ]

    parts = ("B-Prompt", "P-Prompt")
    judged = [
        ("PBPrompt is better than CoOp at few shots", [check("few-shot", "CoOp", few)]),
        (
            "Its H of base and new accuracy is better than that of CoCoOp, ProDA, VPT and SHIP",
            [check("base-to-new", row, BOTH_HALVES) for row in ("CoCoOp", "ProDA", "VPT", "SHIP")],
        ),
        (
            "Both parts are needed: distribution alone (B-Prompt) and transport alone (P-Prompt) are worse",
            [check("few-shot", row, few) for row in parts]
            + [check("base-to-new", row, BOTH_HALVES) for row in parts],
        ),
        (
            "Conditional transport is at least as good as optimal transport",
            [
                check("few-shot", "PBPrompt, OT", few, slack=NEAR),
                check("base-to-new", "PBPrompt, OT", BOTH_HALVES, slack=NEAR),
            ],
        ),
        (
            "Sampling matters, not the extra parameters: without it (w/o-S), the same network is worse",
            [check("few-shot", "PBPrompt, w/o-S", few, metric) for metric in ("accuracy", "nll")],
        ),
        ("λ = 0.5 and η = 0.01 are near the best", near("lambda", "λ = 0.5") + near("eta", "η = 0.01")),
    ]
    found = [
        Claim(number, text, tuple(checks), judge([one.outcome for one in checks]))
        for number, (text, checks) in enumerate(judged, start=1)
    ]
    return [*found, _diversity(study, check("few-shot", "B-Prompt", few, "sampled_cosine", slack=-SEEN))]


def _diversity(study: Study, transport: Check) -> Claim:
    """Claim 7 needs prompts that differ, and a transport that makes them differ more."""
    cells = study["parts"].get("few-shot", {}).get("cells", {}).get(FIRST, {})
    cosines = {key: cell["sampled_cosine"][0] for key, cell in cells.items() if "sampled_cosine" in cell}
    apart: Outcome = "open"
    remark = "No run tells the cosine of sampled prompts."
    if cosines:
        closest = max(cosines, key=lambda key: cosines[key])
        apart = "yes" if cosines[closest] < COLLAPSED else "no"
        remark = (
            f"Two sampled prompts of a class have a mean cosine of at most {cosines[closest]:.3f} "
            f"({closest}); {COLLAPSED} and more would count as collapse."
        )
    outcome = judge([apart, transport.outcome])
    text = "The prompts are diverse: no mode collapse, thanks to the transport (against B-Prompt)"
    return Claim(7, text, (transport,), outcome, remark)


def losses(study: Study, parts: Sequence[str]) -> Iterator[tuple[str, str, str, list[tuple[str, Lead]]]]:
    """(part, row, metric, [(column, lead)]) wherever another row is better than the first one."""
    for part in parts:
        summary = study["parts"].get(part, {"rows": {}, "columns": []})
        columns = [", ".join(filter(None, names)) for names in summary["columns"]]
        for row in summary["rows"]:
            for metric in ("accuracy", "nll"):
                leads = [(column, find_lead(study, part, row, column, metric)) for column in columns]
                lost = [(column, lead) for column, lead in leads if lead and lead.outcome() == "no"]
                if lost:
                    yield part, row, metric, lost
