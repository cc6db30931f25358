"""Who says what a name means, for a method that takes that as its prior."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar

from pbprompt.clip.backbone import Backbone
from pbprompt.errors import InputError
from pbprompt.methods.base import Method, MethodConfig
from pbprompt.methods.exemplars import Memory
from pbprompt.methods.zeroshot import ZeroShot, ZeroShotConfig
from pbprompt.registry import find_method

Config = TypeVar("Config", bound=MethodConfig)
SENTENCES: Mapping[str, Literal["single", "ensemble", "both"]] = {
    "sentence": "single",
    "ensemble": "ensemble",
    "sentences": "both",
}


def prior_reader(name: str, backbone: Backbone) -> Method | None:
    """A method that reads names: sentences, or one of the registered; none by the name 'none'."""
    if name == "none":
        return None
    if not backbone.reads_text:
        raise InputError(
            f"{backbone.config.name} is an image tower that reads no text, which {name!r} needs: "
            "leave the settings 'prior' and 'beside' as they are"
        )
    if name in SENTENCES:
        return ZeroShot(ZeroShotConfig(templates=SENTENCES[name]), backbone)
    try:
        kind = find_method(name)
    except InputError:
        raise InputError(
            f"{name!r} is none of what the settings 'prior' and 'beside' take: use {', '.join(SENTENCES)}, "
            "none or the name of a method"
        ) from None
    prior: Method = kind(kind.Config(), backbone)
    if prior.image_conditioned or isinstance(prior, Memory):
        raise InputError(f"method {name!r} has no text feature per class: conjugate needs one that has")
    return prior


def trained_as(prior: MethodConfig, config: Config) -> Config:
    """The settings, where they are not changed, as the prior's own recipe has them."""
    plain = MethodConfig()
    own: dict[str, Any] = {
        field.name: getattr(prior, field.name)
        for field in fields(MethodConfig)
        if getattr(config, field.name) == getattr(plain, field.name)
    }
    return replace(config, **own)
