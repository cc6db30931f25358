"""What a saved model of several labels an image says about itself to people."""

import shlex
from collections.abc import Mapping

from pbprompt.model.card import ModelInfo


def multi_label_card(info: ModelInfo, thresholds: Mapping[str, float], folder: str) -> str:
    """Markdown: what it is, how good it was on what, how to use it, what it rests on."""
    names = ", ".join(info.classes[:20]) + (", …" if len(info.classes) > 20 else "")
    settings = "\n".join(f"- `{key}`: {value!r}" for key, value in info.config.items())
    data = "\n".join(f"- {key.replace('_', ' ')}: {value}" for key, value in info.data.items())
    folder = shlex.quote(folder)
    return f"""# {info.method}, several labels an image, on {info.data.get("dataset", "own data")}

{len(info.classes)} labels, of which an image may have several or none: {names}

Fitted with pbprompt {info.library} on the frozen backbone `{info.backbone["name"]}`
(activation {info.backbone["activation"]}, fingerprint `{info.backbone["fingerprint"]}`).
A label is given where its probability is at least {least(thresholds)};
the thresholds have the best F1 on the training images, each left out in turn.
{_figures(info)}
## Use

```sh
pbprompt predict IMAGE --model {folder}
pbprompt evaluate {folder} labels.csv --split test
```

## Data

{data}

## Settings

{settings}
"""


def least(thresholds: Mapping[str, float]) -> str:
    """The thresholds in words, for people."""
    low, high = f"{min(thresholds.values()):.2f}", f"{max(thresholds.values()):.2f}"
    return low if low == high else f"{low} to {high}, depending on the label"


def _figures(info: ModelInfo) -> str:
    figures = info.metrics
    if figures.get("map") is None:
        return ""
    micro, macro = figures["micro"]["f1"] or 0.0, figures["macro"]["f1"]
    lite = (
        " `lite` is not CLIP: not comparable with papers on CLIP." if info.backbone["name"] == "lite" else ""
    )
    names = figures.get("zero_shot_map")
    alone = "" if names is None else f"| names alone, same backbone | {names:.2%} | | |\n"
    return f"""
| | mAP | micro F1 | macro F1 |
|---|---|---|---|
| fitted | {figures["map"]:.2%} | {micro:.2%} | {macro:.2%} |
{alone}
On the {figures["split"]} split, {figures["images"]} images.{lite}
"""
