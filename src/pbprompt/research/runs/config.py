"""What one run of a table is asked."""

import hashlib
from dataclasses import dataclass
from typing import Literal

from pbprompt.learners.fit_options import Views
from pbprompt.vision.images.fewshot import shots_in_words

Task = Literal["few-shot", "base-to-new", "cross-dataset", "domain-shift"]
Split = Literal["test", "val"]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run of a table."""

    task: Task
    dataset: str
    method: str = "pbprompt"
    preset: str = "default"
    variant: str = ""
    overrides: tuple[str, ...] = ()
    shots: int = 16
    seed: int = 1
    views: Views = "centre"
    targets: tuple[str, ...] = ()  # what cross-dataset and domain-shift test on besides
    samples: int = 20
    split: Split = "test"  # val: settings are chosen, and no test image is read
    precision: str = "float32"  # of the frozen towers
    temper: bool = False  # probabilities at a temperature that folds of the training images ask for

    @property
    def place(self) -> str:
        """The dataset, and the split where it is not test."""
        return self.dataset if self.split == "test" else f"{self.dataset}, {self.split}"

    def row(self, without: str = "") -> str:
        """The method and what was changed of it: "pbprompt, w/o-S, epochs=30". `without` leaves one out."""
        options = ("preset", "variant", "views", "samples", "precision")
        choices = [key for key in options if key != without]
        changed = {key: value for key in choices if (value := getattr(self, key)) != getattr(RunConfig, key)}
        words = [self.method, *(changed[key] for key in ("preset", "variant") if key in changed)]
        words += [_shown(word) for word in self.overrides if word.partition("=")[0] != without]
        words += ["tempered"] * self.temper
        words += [f"{key}={changed[key]}" for key in ("views", "samples", "precision") if key in changed]
        return ", ".join(words)

    def __str__(self) -> str:
        return f"{self.task} on {self.place}: {self.row()}, {shots_in_words(self.shots)}, seed {self.seed}"


def _shown(word: str) -> str:
    """`key=value`, with a hash for a value that is pages, such as what is said of each class."""
    key, _, value = word.partition("=")
    return word if len(word) < 100 else f"{key}={hashlib.sha256(value.encode()).hexdigest()[:8]}"
