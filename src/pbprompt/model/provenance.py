"""Where a saved model came from: its images, what it was asked for, what was changed since."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pbprompt.config import to_dict
from pbprompt.evidence.learners import TakesUnlabelled
from pbprompt.evidence.unlabelled import Absorbed
from pbprompt.learners.method import Method
from pbprompt.vision.images.items import Dataset


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What is known of it; what is not is left out of the file."""

    dataset: str = ""
    content_hash: str = ""  # of all of it; of earlier versions over names in place of labels
    draw_hash: str = ""
    draw_seed: int | None = None
    shots: int = 0
    images: int = 0  # that were learned from
    test_images: int = 0  # that were kept aside
    held_out: tuple[float, ...] = ()  # shares of each class to validate and to test, drawn by the seed
    unlabelled: int = 0
    unlabelled_like_a_class: int | None = None
    unlabelled_count_as: int | None = None
    left_out_log_likelihood: str = ""  # without the unlabelled images, and with them
    group: str = ""  # how series were told
    in_series: int = 0  # training photographs that are of a series of several
    series: int = 0
    root: str = ""  # where the training photographs were, if the model shows them
    photographs: tuple[str, ...] = ()  # their paths below it
    options: Mapping[str, Any] = field(default_factory=dict)  # of `pbprompt fit`, for another fit
    to_try: tuple[tuple[str, ...], ...] = ()  # class, file and hash of images that nothing was learned from
    added: tuple[str, ...] = ()  # hashes of the photographs that `pbprompt model add` brought
    regrouped: Mapping[str, str | None] = field(default_factory=dict)  # what classes are called since
    changes: tuple[str, ...] = ()  # what `pbprompt model` did to it, in words

    @classmethod
    def of(cls, dataset: Dataset) -> "Provenance":
        """Of a dataset or a draw of it."""
        whole = dataset.whole
        facts = cls(
            dataset=dataset.name,
            content_hash=whole.labelled_hash,
            images=len(dataset.train),
            test_images=len(whole.test),
            held_out=whole.held_out if whole.split_by_seed else (),
        )
        if (draw := dataset.drawn) is None:
            return facts
        return replace(facts, draw_hash=draw.hash, draw_seed=draw.seed, shots=draw.shots)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        usual = {part.name: getattr(Provenance(), part.name) for part in fields(self)}
        known = {part.name for part in fields(self) if getattr(self, part.name) != usual[part.name]}
        return {name: value for name, value in to_dict(self).items() if name in known}


def absorbed_by(method: Method) -> Absorbed | None:
    """What became of images without a label; None where there were none."""
    return method.absorbed if isinstance(method, TakesUnlabelled) else None


def pool_facts(method: Method) -> dict[str, Any]:
    """The same as a model's provenance has it."""
    if (found := absorbed_by(method)) is None:
        return {}
    facts = {
        "unlabelled": len(found.familiar),
        "unlabelled_like_a_class": int(found.familiar.sum()),
        "unlabelled_count_as": round(found.weight),
    }
    if not found.verdict:
        return facts
    without, with_them = (f"{likely:.3f}" for likely in found.verdict.log_likelihood)
    return {**facts, "left_out_log_likelihood": f"{without} without them, {with_them} with them"}
