"""What to do with a prediction: when it is unsure, which classes it may be, when it is none of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pbprompt.learners.predictive import Predictive, rounded
from pbprompt.model.costs import cheapest
from pbprompt.model.hierarchy import Pairs, backed_off
from pbprompt.model.metrics.conformal import ByDifficulty, prediction_sets


@dataclass(frozen=True)
class Rule:
    """What decides: a confidence threshold, conformal quantiles (by difficulty, or of each class), a rate of
    wrong refusals, thresholds of classes and groups, what wrong answers cost; None: nothing."""

    threshold: float | None = None
    quantile: ByDifficulty | tuple[float, ...] | None = None
    refusal: float | None = None
    back_off: tuple[float, ...] | None = None  # thresholds of classes and of each level of groups
    hierarchy: Pairs = ()
    costs: tuple[tuple[float, ...], ...] | None = None  # of each class and answer (`costs.py`)

    def decide(self, said: Predictive, named_only: Sequence[bool]) -> Predictive:
        """The predictive with what the rule decides, by probabilities as they are shown.

        Where there is nothing to see it is unsure. `named_only`: classes without a photograph. An image that
        looks like no photograph, but goes to a mere name, may be of that.
        """
        if not len(said):
            return said
        shown = torch.tensor(rounded(said.probabilities), dtype=torch.float64)
        empty = torch.zeros(len(said), dtype=torch.bool) if said.nothing is None else said.nothing.cpu()
        if self.threshold is not None:
            said = replace(said, unsure=(shown.amax(1) < self.threshold) | empty)
        if self.quantile is not None:
            said = replace(said, in_set=torch.from_numpy(prediction_sets(shown.numpy(), self.quantile)))
        if self.back_off is not None:
            seen = shown.masked_fill(empty.unsqueeze(1), 0.0).numpy()
            said = replace(said, answer=backed_off(seen, said.classes, self.back_off, self.hierarchy))
        if self.costs is not None:
            said = replace(said, answer=cheapest(shown.numpy(), said.classes, np.array(self.costs)))
        if self.refusal is not None and said.familiarity is not None:
            strange = torch.tensor(rounded(said.familiarity), dtype=torch.float64) <= self.refusal
            best = said.probabilities.argmax(1).cpu()
            said = replace(said, unknown=strange & ~torch.tensor(named_only)[best])
        return said


NO_RULE = Rule()
