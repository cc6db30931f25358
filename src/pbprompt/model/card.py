"""What a saved model says about itself, to programs and to people, and where it came from."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pbprompt import __version__
from pbprompt.config import to_dict
from pbprompt.evidence.learners import TakesUnlabelled
from pbprompt.evidence.unlabelled import Absorbed
from pbprompt.learners.method import Method, MethodConfig
from pbprompt.markdown import escaped, table
from pbprompt.model.calibration import CERTAINTY, Calibration, chosen
from pbprompt.model.metrics.classification import ClassFigures
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.towers.loading.hub import EMBEDDED

GROUP_HEADS = ("promised", "answered by a class", "by a group", "of them right")
TRADE_HEADS = ("promised", "from top probability", "images answered", "of them right")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a model came from: its images, what was wanted, what was changed since. What is not known is left
    out of the file."""

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
    perhaps_in_series: int = 0  # others that look so, and that only the user can tell
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
        usual = to_dict(Provenance())
        return {name: value for name, value in to_dict(self).items() if value != usual[name]}


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


@dataclass(frozen=True)
class ModelInfo:
    """What a model folder says about its model."""

    method: str
    config: dict[str, Any]
    classes: tuple[str, ...]
    template: str
    backbone: dict[str, str]  # name, activation, fingerprint
    seed: int
    shots: int
    data: Provenance = field(default_factory=Provenance)
    metrics: dict[str, Any] = field(default_factory=dict)
    library: str = __version__
    temperature: float = 1.0  # of the probabilities; 1: as the method has them
    multi_label: bool = False  # an image may have several of the classes, or none
    backbones: tuple[dict[str, str], ...] = ()  # of several side by side, each
    hierarchy: Mapping[str, str] = field(default_factory=dict)  # what each class or group belongs to

    @property
    def towers(self) -> tuple[dict[str, str], ...]:
        """What is said of each backbone."""
        return self.backbones or (self.backbone,)

    @property
    def activation(self) -> str | None:
        """What to say of backbones whose files do not tell, where that is one thing."""
        kinds = {one["activation"] for one in self.towers if one["name"] not in EMBEDDED}
        return kinds.pop() if len(kinds) == 1 else None


def model_card(
    info: ModelInfo,
    folder: str,
    calibration: Calibration | None = None,
    *,
    takes_new_names: bool = True,
    takes_steps: bool = True,
    thresholds: Sequence[float] = (),
) -> str:
    """Markdown: what it is, how good it was on what, how to use it, what it rests on."""
    folder, dataset = shlex.quote(folder), escaped(info.data.dataset or "own data")
    names = ", ".join(map(escaped, info.classes[:20])) + (", …" if len(info.classes) > 20 else "")
    idle = () if takes_steps else {setting.name for setting in fields(MethodConfig)}  # of training alone
    shown = {key: value for key, value in info.config.items() if key not in idle}
    settings = "\n".join(f"- `{key}`: {value!r}" for key, value in shown.items()) or "None."
    facts = {key: value for key, value in info.data.to_dict().items() if key not in ("to_try", "added")}
    data = "\n".join(f"- {key.replace('_', ' ')}: {escaped(str(value))}" for key, value in facts.items())
    bits = f"{info.backbone['precision']}, " if "precision" in info.backbone else ""
    towers = ",\n".join(
        f"`{one['name']}`\n({bits}activation {one['activation']}, fingerprint `{one['fingerprint']}`)"
        for one in info.towers
    )
    several = "s" if info.backbones else ""
    title, kinds, labelled, more = f"{info.method} on {dataset}", "classes", "DATA", ""
    if info.multi_label:
        title, labelled = f"{info.method}, multi-label, on {dataset}", "labels.csv"
        kinds = "labels, of which an image may have several or none"
        trust = (
            f"A label is given where its probability is at least {threshold_words(thresholds)};\n"
            "the thresholds have the best F1 on the training images, each left out in turn.\n"
            f"{_label_figures(info)}"
        )
    else:
        trust = _figures(info) + _thresholds(calibration)
        if info.temperature != 1:
            scaled = f"temperature {info.temperature:.3f}, fitted to the validation images"
            trust = f"\nProbabilities are at {scaled}.\n{trust}"
        if takes_new_names:
            more = f'\npbprompt predict IMAGE --model {folder} --classes "a new class,another"'
    return f"""# {title}

{len(info.classes)} {kinds}: {names}

Tuned with pbprompt {info.library} on the frozen backbone{several} {towers},
seed {info.seed}.
{trust}
## Use

```sh
pbprompt predict IMAGE --model {folder}{more}
pbprompt evaluate {folder} {labelled}
```

## Data

{data}

## Settings

{settings}
"""


def threshold_words(thresholds: Sequence[float]) -> str:
    """The thresholds of a multi-label model in words."""
    low, high = f"{min(thresholds):.2f}", f"{max(thresholds):.2f}"
    return low if low == high else f"{low} to {high}, depending on the label"


def _figures(info: ModelInfo) -> str:
    if "accuracy" not in info.metrics:
        return ""
    rivals = info.metrics.get("rivals", {})
    rows = [("tuned", info.metrics)]
    if "zero_shot" in info.metrics:
        rows.append(("zero-shot, same backbone", info.metrics["zero_shot"]))
    rows += [(f"{name}, same training images", figures) for name, figures in rivals.items()]
    cells = [[name, f"{v['accuracy']:.2%}", f"{v['nll']:.3f}", f"{v['ece']:.2%}"] for name, v in rows]
    return _table(info, ["", "accuracy", "NLL", "ECE"], cells)


def _label_figures(info: ModelInfo) -> str:
    figures = info.metrics
    if figures.get("map") is None:
        return ""
    f1 = [figures["micro"]["f1"] or 0.0, figures["macro"]["f1"]]
    rows = [["tuned", f"{figures['map']:.2%}", f"{f1[0]:.2%}", f"{f1[1]:.2%}"]]
    if (names := figures.get("zero_shot_map")) is not None:
        rows.append(["names alone, same backbone", f"{names:.2%}", "", ""])
    return _table(info, ["", "mAP", "micro F1", "macro F1"], rows)


def evaluated_on(metrics: Mapping[str, Any]) -> str:
    """Which images the figures are of."""
    count = metrics.get("images", 0)
    if metrics.get("split") == "left-out":
        whole = f", the {series:,} series kept whole" if (series := metrics.get("series")) else ""
        return f"the {count:,} training images, each fifth judged by a model fitted to the other four{whole}"
    part = metrics.get("split", "test")
    return f"all {count:,} images" if part == "all" else f"the {part} split, {count:,} images"


def _table(info: ModelInfo, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    others = [one["name"] for one in info.towers if one["name"] in EMBEDDED]
    note = f" `{others[0]}` is not CLIP: not comparable with papers on CLIP." if others else ""
    return f"\n{table(head, rows)}\n\nOn {evaluated_on(info.metrics)}.{note}\n"


def trade_cells(row: Mapping[str, Any]) -> list[str]:
    """A row of `Promise.kept`, for tables."""
    answered, right = percent(row["answered"]), percent(row["right"])
    return [f"{row['promised']:.0%}", f"{row['threshold']:.3f}", answered, right]


def group_cells(row: Mapping[str, Any]) -> list[str]:
    """What came of `--back-off`, for tables."""
    return [f"{row['promised']:.0%}", *(percent(row[name]) for name in ("by_class", "by_group", "right"))]


def class_cells(one: ClassFigures) -> list[str]:
    """Images, recall, precision and F1 of a class."""
    return [f"{one.images:,}", *map(percent, (one.recall, one.precision, one.f1))]


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _thresholds(calibration: Calibration | None) -> str:
    """What rejecting unsure images buys."""
    if calibration is None:
        return ""
    rows = [trade_cells(row) for row in chosen(calibration.trade)] or [["cannot be promised", "", "none", ""]]
    source = f"{calibration.rests_on}, of {calibration.classes_seen} of {calibration.classes} classes"
    holds = f"Each accuracy is promised with a certainty of {CERTAINTY:.0%}, judged by {source}"
    return f"\n{table(TRADE_HEADS, rows)}\n\n{holds}; `--coverage` rests on the same images.\n"
