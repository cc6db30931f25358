"""From probabilities to decisions: classes that come otherwise than in training, wrong answers that cost more
than others, and what is unsure, in a set or none of the classes.

A model takes classes to be as frequent as in training, π. Where they come with π′ (a shift of the prior),

    p′(c | x) ∝ p(c | x) r_c,   r_c = π′_c / π_c

and a left-out image stands for so many new ones as its class is more frequent among them: its weight. A class
without training images keeps its odds (r = 1). What is not known can be estimated from the new images
themselves, by expectation and maximisation (Saerens, Latinne and Decaestecker, Neural Computation, 2002):

    π′_c ← (Σ_i p′(c | x_i) + 1) / (m + C)          until it stays; one image of each class is taken for seen

Where wrong answers do not cost the same, the one of least expected cost is given:

    R_k(x) = Σ_c p(c | x) L_ck            answer argmin_k R_k

L_ck is what it costs to answer k of an image of class c: 0 for the right one, and 1 unless it is given. To be
`unsure` may be an answer, with a cost u. Where each wrong answer costs 1, that is: unsure where no class has
1 − u (Chow, IEEE Transactions on Information Theory, 1970). Where wrong answers k cost f_k whatever the
class, k is answered from p_k ≥ 1 − u / f_k on: a threshold for each class.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pbprompt.errors import InputError, suggest
from pbprompt.files import csv_rows, read_text
from pbprompt.learners.predictive import Predictive, rounded
from pbprompt.model.hierarchy import Pairs, backed_off
from pbprompt.model.metrics.conformal import ByDifficulty, prediction_sets
from pbprompt.vision.images.names import name_key, read_classes_file

TRAINED, BALANCED, ESTIMATE = "as-trained", "balanced", "estimate"
SKEWED = 4  # times as many training images, from which on it is worth a word
STEPS, STAYS = 1000, 1e-6
ANY, UNSURE = "*", "unsure"

Mix = str | Mapping[str, float]  # balanced, or how often each class comes, up to a factor
Costs = Mapping[tuple[str, str], float]  # of a class and an answer, of which either may be any
Losses = tuple[tuple[float, ...], ...]  # L


@dataclass(frozen=True)
class Rule:
    """What decides: a confidence threshold, conformal quantiles (by difficulty, or of each class), a rate of
    wrong refusals, thresholds of classes and groups, what wrong answers cost; None: nothing."""

    threshold: float | None = None
    quantile: ByDifficulty | tuple[float, ...] | None = None
    refusal: float | None = None
    back_off: tuple[float, ...] | None = None  # thresholds of classes and of each level of groups
    hierarchy: Pairs = ()
    costs: Losses | None = None

    def decide(self, answers: Predictive, named_only: Sequence[bool]) -> Predictive:
        """The predictive with what the rule decides, by probabilities as they are shown.

        Where there is nothing to see it is unsure. `named_only`: classes without a photograph. An image that
        looks like no photograph, but goes to a mere name, may be of that.
        """
        if not len(answers):
            return answers
        shown = np.array(rounded(answers.probabilities))
        empty = np.zeros(len(shown), dtype=bool) if answers.nothing is None else answers.nothing.cpu().numpy()
        if self.threshold is not None:
            unsure = (shown.max(1) < self.threshold) | empty
            answers = replace(answers, unsure=torch.from_numpy(unsure))
        if self.quantile is not None:
            answers = replace(answers, in_set=torch.from_numpy(prediction_sets(shown, self.quantile)))
        if self.back_off is not None:
            seen = np.where(empty[:, None], 0.0, shown)
            found = backed_off(seen, answers.classes, self.back_off, self.hierarchy)
            answers = replace(answers, answer=found)
        if self.costs is not None:
            answers = replace(answers, answer=least_costly(shown, answers.classes, self.costs))
        if self.refusal is not None and answers.familiarity is not None:
            strange = torch.tensor(rounded(answers.familiarity), dtype=torch.float64) <= self.refusal
            best = answers.probabilities.argmax(1).cpu()
            answers = replace(answers, unknown=strange & ~torch.tensor(named_only)[best])
        return answers


NO_RULE = Rule()


def read_mix(path: Path, classes: Sequence[str]) -> dict[str, float]:
    """How often each class comes, of a file of two columns or of lines `class: number`."""
    known, found = {name_key(name): name for name in classes}, dict.fromkeys(classes, 0.0)
    for name, text in read_classes_file(path, "number").items():
        own = _spelt(name, known, path)
        try:
            found[own] = float(text)
        except ValueError:
            found[own] = math.nan
        if not 0 <= found[own] < math.inf:
            raise InputError(f"{path}: class {name!r} comes {text!r} times: give a number, 0 or more")
    return found


def _spelt(name: str, known: Mapping[str, str], where: object, others: Sequence[str] = ()) -> str:
    """A class as it is spelt, or one of the others; refused where it is neither."""
    own = known.get(name_key(name), name if name in others else None)
    if own is None:
        raise InputError(f"{where}: no class is called {name!r}: {suggest(name, [*known.values(), *others])}")
    return own


def shares(mix: Mix, classes: Sequence[str], counts: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """π′ of the classes that have training images; 0 of the others."""
    if isinstance(mix, str) and mix != BALANCED:
        raise InputError(f"class_mix is {mix!r}: give '{BALANCED}', or how often each class comes")
    often = [1.0 if isinstance(mix, str) else float(mix.get(name, 0.0)) for name in classes]
    wanted = counts.new_tensor(often) * (counts > 0)
    if not bool((wanted >= 0).all() and 0 < wanted.sum() < math.inf):
        raise InputError("class_mix: give numbers of 0 or more, above 0 for a class with training images")
    return wanted / wanted.sum()


def ratio(wanted: Float[Tensor, " c"], counts: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """r"""
    return (wanted * counts.sum() / counts).where(counts > 0, 1.0)


def estimated(probabilities: Float[Tensor, "m c"], counts: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """π′ of the images that have these p; of the classes with training images."""
    known = counts > 0
    p, own = probabilities[:, known].to(counts), counts[known]
    share = own / own.sum()
    for _ in range(STEPS):
        joint = p * (share / own)
        before = share
        share = ((joint / joint.sum(1, keepdim=True).clamp_min(1e-300)).sum(0) + 1) / (len(p) + len(own))
        if float((share - before).abs().max()) < STAYS:
            break
    found = counts.new_zeros(len(counts))
    found[known] = share
    return found


def skew_words(classes: Sequence[str], counts: Float[Tensor, " c"]) -> str:
    """What follows where classes are not equally frequent among training images."""
    known = [(int(n), name) for name, n in zip(classes, counts.tolist(), strict=True) if n > 0]
    (few, rare), (many, common) = min(known), max(known)
    if many < SKEWED * few:
        return ""
    return (
        f"classes are not equally frequent: {many:,} training images of {common}, {few:,} of {rare}; new "
        "images are taken to be so too; where they are not, `predict --class-mix balanced`, or give a file"
    )


def read_costs(path: Path, classes: Sequence[str]) -> dict[tuple[str, str], float]:
    """Of a table of three columns: class, answer, cost."""
    found: dict[tuple[str, str], float] = {}
    for where, row in csv_rows(path, read_text(path)):
        cells = [" ".join(cell.split()) for cell in row]
        if not any(cells) or cells == ["class", "answer", "cost"]:
            continue
        if len(cells) != 3:
            line = ",".join(row)[:60]
            raise InputError(f"{where}: {line!r} is no line `class,answer,cost`: write three cells")
        try:
            found[cells[0], cells[1]] = float(cells[2])
        except ValueError:
            raise InputError(f"{where}: the cost {cells[2]!r} is no number: write such as 5 or 0.2") from None
    if not found:
        raise InputError(f"{path}: no costs in it: write lines `class,answer,cost`")
    return checked_costs(found, classes, str(path))


def checked_costs(given: Costs, classes: Sequence[str], where: str) -> dict[tuple[str, str], float]:
    """With classes as they are spelt; refused where a name is none, or a number cannot be a cost."""
    known = {name_key(name): name for name in classes}
    found: dict[tuple[str, str], float] = {}
    for (true, answer), cost in given.items():
        pair = _spelt(true, known, where, (ANY,)), _spelt(answer, known, where, (ANY, UNSURE))
        if not 0 <= cost < math.inf:
            raise InputError(
                f"{where}: {true!r} taken for {answer!r} costs {cost:g}: give a number, 0 or more"
            )
        if pair[0] == pair[1] != ANY and cost:
            raise InputError(f"{where}: a right answer, {true!r}, costs {cost:g}: leave the line out")
        found[pair] = float(cost)
    return found


def losses(costs: Costs, classes: Sequence[str]) -> Losses:
    """L, of which the last column is unsure, if that has a cost; what names more decides."""

    def cost(true: str, answer: str) -> float:
        pairs = [(true, answer), (ANY, answer)] + [(true, ANY), (ANY, ANY)] * (answer != UNSURE)
        return 0.0 if true == answer else next((costs[pair] for pair in pairs if pair in costs), 1.0)

    answers = [*classes, *([UNSURE] if any(answer == UNSURE for _, answer in costs) else [])]
    return tuple(tuple(cost(true, answer) for answer in answers) for true in classes)


def least_costly(
    probabilities: Float[NDArray[np.float64], "n c"], classes: Sequence[str], losses: Losses
) -> NDArray[np.object_]:
    """The class of each image that costs least, and its probability; ("", 0.0) where being unsure does."""
    best = (probabilities @ np.array(losses)).argmin(1)
    found = np.empty(len(best), dtype=object)
    found[:] = [
        (classes[at], float(row[at])) if at < len(classes) else ("", 0.0)
        for at, row in zip(best.tolist(), probabilities, strict=True)
    ]
    return found
