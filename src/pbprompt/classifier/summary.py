"""What a notebook shows of a classifier: one table."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from pbprompt.model.tuned import TunedModel

SHOWN = 12  # class names
ROW = '<tr><th style="text-align:left">{}</th><td style="text-align:left">{}</td></tr>'


def summary_html(
    parameters: Mapping[str, Any], model: TunedModel | None = None, labels: Sequence[Any] = ()
) -> str:
    """The parameters that were chosen and, of a fitted one, its classes and what its doubt rests on."""
    rows = {name: repr(value) for name, value in parameters.items()}
    if model is None:
        rows["state"] = "not fitted"
    else:
        names = ", ".join(map(str, labels[:SHOWN]))
        more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
        rows["classes"] = f"{len(labels)}: {names}{more}"
        rows["backbone"] = model.info.backbone["name"]
        if metrics := model.info.metrics:
            rows[f"{metrics['split']} images"] = (
                f"{metrics['images']}: accuracy {metrics['accuracy']:.1%}, NLL {metrics['nll']:.3f}"
            )
        rows["calibration"] = model.calibration.rests_on if model.calibration else "none"
        if model.info.temperature != 1:
            rows["temperature"] = f"{model.info.temperature:.3f}"
    cells = "".join(ROW.format(escape(name), escape(text)) for name, text in rows.items())
    return f"<table><caption>PromptClassifier</caption>{cells}</table>"
