"""`pbprompt methods`: what there is to choose from."""

import sys
from functools import cache
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from pbprompt.clip.backbone import Backbone
    from pbprompt.methods.base import Method

# the sizes the paper counts parameters at: ViT-B/16's text tower
WIDTH, JOINT = 512, 512
WITHOUT = "; those that come with each class are left out"


def methods(name: str = typer.Argument("", help="A method to explain; without one, all are listed.")) -> None:
    """List the methods, or explain one: settings, defaults, presets, parameters."""
    from rich.console import Console

    from pbprompt import registry

    if name:
        _explain(registry.find_method(name), Console())
    else:
        _list(registry.methods(), Console())


def _list(known: dict[str, type["Method"]], console: "Console") -> None:
    from rich.table import Table

    table = Table("method", "parameters*", "tags", "paper", box=None)
    for name, kind in known.items():
        table.add_row(name, f"{_counts(kind)[0]:,}", ", ".join(_tags(kind)), kind.paper)
    console.print(table)
    console.print(f"[dim]* learnable, as the paper counts them, at ViT-B/16{WITHOUT}[/]")


def _tags(kind: type["Method"]) -> tuple[str, ...]:
    """What is worth knowing in the list, in words."""
    from pbprompt.methods.abilities import MultiLabel, UsesUnseenNames, can

    facts = {
        "zero-shot": not kind.trains,
        "training-free": not kind.stepwise,
        "no new classes": not kind.takes_new_names,
        "uses new names": can(kind, UsesUnseenNames),
        "image-conditioned": kind.image_conditioned,
        "multi-label": can(kind, MultiLabel),
    }
    return (*(word for word, holds in facts.items() if holds), *kind.tags)


def _explain(kind: type["Method"], console: "Console") -> None:
    from rich.table import Table

    from pbprompt.config import describe

    console.print((sys.modules[kind.__module__].__doc__ or "").strip(), highlight=False, markup=False)
    console.print("\nf, g: image and text tower; s: exp(logit scale); x: image; c: class", highlight=False)
    counted, full = _counts(kind)
    figures = f"{counted:,} as the paper counts, {full:,} in full{WITHOUT}"
    console.print(f"\nlearnable parameters at ViT-B/16: {figures}\n")
    table = Table("setting", "default", "what it is", box=None)
    for setting, value, text in describe(kind.Config()):
        table.add_row(setting, repr(value), text)
    console.print(table)
    for what, named in (("preset", kind.presets), ("variant", kind.variants)):
        for label, values in named.items():
            changed = ", ".join(f"{key}={value}" for key, value in values.items())
            console.print(f"{what} [bold]{label}[/]: {changed}", highlight=False)


@cache
def _sizes() -> "Backbone":
    """ViT-B/16's sizes, whose weights are all one zero in memory."""
    import torch

    from pbprompt.clip.backbone import Backbone, BackboneConfig
    from pbprompt.clip.text import TextConfig
    from pbprompt.clip.vit import VitConfig

    text = TextConfig(context_length=77, vocab_size=49408, width=WIDTH, heads=8, layers=12)
    towers = Backbone(BackboneConfig("sizes", JOINT, VitConfig(224, 16, 768, 12, 12), text))
    zeros = {name: torch.zeros(1).expand(laid.shape) for name, laid in towers.state_dict().items()}
    return towers.load_weights(zeros, logit_scale=100.0, fingerprint="sizes")


def _counts(kind: type["Method"]) -> tuple[int, int]:
    """Learnable parameters at ViT-B/16's sizes: as the paper counts, and in full."""
    from pbprompt.methods.base import build_method

    method = build_method(kind, kind.Config(), _sizes(), seed=0)
    return method.counted_parameters(), sum(parameter.numel() for parameter in method.parameters())
