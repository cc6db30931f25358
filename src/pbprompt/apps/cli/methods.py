"""`pbprompt research methods`: what there is to choose from."""

import inspect
import sys
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING

import typer

from pbprompt.apps.cli.output import print_table
from pbprompt.config import describe

if TYPE_CHECKING:
    from pbprompt.learners.method import Method
    from pbprompt.vision.towers.backbone import Backbone

WITHOUT = "; those that come with each class are left out"


def methods(name: str = typer.Argument("", help="A method to explain; without one, all are listed.")) -> None:
    """List the methods, or explain one: settings, defaults, presets, parameters."""
    from pbprompt import registry

    if name:
        _explain(registry.find_method(name))
        return
    known = registry.methods().items()
    rows = [(name, f"{_counts(kind)[0]:,}", ", ".join(_tags(kind)), kind.paper) for name, kind in known]
    print_table(("method", "parameters*", "tags", "paper"), rows)
    typer.secho(f"* learnable, as the paper counts them, at ViT-B/16{WITHOUT}", dim=True)


def _tags(kind: type["Method"]) -> tuple[str, ...]:
    """What is worth knowing in the list, in words."""
    from pbprompt.evidence.learners import MultiLabel
    from pbprompt.learners.trained import Trained

    facts = {
        "zero-shot": not kind.trains,
        "training-free": not issubclass(kind, Trained),
        "no new classes": not kind.takes_new_names,
        "uses new names": hasattr(kind, "unseen_names"),
        "image-conditioned": kind.image_conditioned,
        "multi-label": issubclass(kind, MultiLabel),
    }
    return (*(word for word, holds in facts.items() if holds), *kind.tags)


def _explain(kind: type["Method"]) -> None:
    from pbprompt.learners.method import MethodConfig
    from pbprompt.learners.trained import Trained

    for part in (sys.modules[kind.__module__], kind):
        print(f"{inspect.cleandoc(part.__doc__ or '')}\n")
    print("f, g: image and text tower; s: exp(logit scale); x: image; c: class\n")
    rows = describe(kind.Config())
    if issubclass(kind, Trained):
        counted, full = _counts(kind)
        figures = f"{counted:,} as the paper counts, {full:,} in full{WITHOUT}"
        print(f"learnable parameters at ViT-B/16: {figures}\n")
    else:
        of_training = {field.name for field in fields(MethodConfig)}
        rows = [row for row in rows if row[0] not in of_training]
    print_table(
        ("setting", "default", "what it is"), [(name, repr(value), text) for name, value, text in rows]
    )
    for what, named in (("preset", kind.presets), ("variant", kind.variants)):
        for label, values in named.items():
            changed = ", ".join(f"{key}={value}" for key, value in values.items())
            print(f"{what} {label}: {changed}")


@cache
def _sizes() -> "Backbone":
    """Of the sizes at which the paper counts parameters; its weights are all one zero in memory."""
    import torch

    from pbprompt.research.costs import VIT_B16
    from pbprompt.vision.towers.backbone import Backbone

    towers = Backbone(VIT_B16)
    zeros = {name: torch.zeros(1).expand(laid.shape) for name, laid in towers.state_dict().items()}
    return towers.load_weights(zeros, logit_scale=100.0, fingerprint="sizes")


def _counts(kind: type["Method"]) -> tuple[int, int]:
    """Learnable parameters at ViT-B/16's sizes: as the paper counts, and in full."""
    from pbprompt.learners.method import build_method

    method = build_method(kind, kind.Config(), _sizes(), seed=0)
    return method.counted_parameters(), sum(parameter.numel() for parameter in method.parameters())
