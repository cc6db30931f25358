"""What clients may change of the tuned model that is served, and ask of it besides predictions."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image

from pbprompt.apps.explain.cases import Case, cases
from pbprompt.apps.explain.heat_maps import HeatMaps, heat_maps
from pbprompt.apps.serve.limits import Limits, Refused
from pbprompt.learners.fitted import ComparesParts, PartialFit
from pbprompt.model.calibration import Calibration
from pbprompt.model.rule import Rule
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.names import known_as, name_key, read_name
from pbprompt.vision.towers.backbone import Encoded

NAME_SHOWN = 60  # characters of a client's text in a reason


def ready(model: TunedModel) -> TunedModel:
    """The model with its prompts drawn, before anybody waits for them."""
    if not model.multi_label:
        _ = model.predictor
    return model


def check_single_label(model: TunedModel, what: str) -> None:
    """Refuse what a multi-label model cannot do."""
    if model.multi_label:
        raise Refused(409, f"the model is multi-label: {what}")


def rule_and_note(
    model: TunedModel,
    fitted: TunedModel,
    own: Collection[str],
    accuracy: float,
    coverage: float,
    refusal: float | None,
    back_off: float | None = None,
) -> tuple[Rule, str | None]:
    """By which a request's images are judged, and what is to be said of it."""
    note = doubt_note(model, fitted, own, accuracy)
    if not model.calibrated:
        return model.rule(None, None, refusal), note
    found = model.rule(
        accuracy, coverage, refusal, back_off=back_off if model.has_groups and not model.costs else None
    )
    return (replace(found, threshold=None) if found.threshold == math.inf else found), note


def doubt_note(model: TunedModel, fitted: TunedModel, own: Collection[str], accuracy: float) -> str | None:
    """Why what the fitted model became cannot tell whether it is unsure, or what that rests on.

    Sure answers may not be promised to be right with that `accuracy`, and of classes besides its `own` no
    image was judged. None where nothing need be said.
    """
    judged = model.calibration
    if model.calibrated and judged is not None:
        promised, on = judged.promised(accuracy)[0], judged.rests_on
        if promised != accuracy:
            most = f", {promised:.0%} can" if promised else ""
            return f"that answers are right {accuracy:.0%} of the time cannot be promised by {on}{most}"
        return f"no image of an added class was judged, only {on}" if set(model.classes) - set(own) else None
    if model.multi_label:
        return None
    if fitted.calibration is None:
        return "the model was fitted without validation images"
    if judged is None:
        return "the model has learned examples since the validation images were judged"
    return "no validation image is of an added class"


def with_classes(model: TunedModel, names: Sequence[str], limits: Limits) -> TunedModel:
    """The model with more class names; those that are there are there already."""
    check_single_label(model, "it takes no new names; fit it again with them")
    if not model.method.takes_new_names:
        raise Refused(409, f"{model.method.name} was tuned for its own classes: it takes no new names")
    if not (more := new_names(names, model.classes, limits)):
        return model
    return ready(model.with_classes(more).with_left_out())


def without_class(
    model: TunedModel, name: str, own: Collection[str], calibration: Calibration | None
) -> TunedModel:
    """The model without a class that was added; one that is not there is gone already.

    `calibration`: that of its own classes alone.
    """
    (name,) = known_as(model.classes, [single_spaced(name)])
    if name in own:
        raise Refused(409, f"class {name!r} is the model's own: only added ones can be removed")
    left = [one for one in model.classes if one != name]
    if len(left) == len(model.classes):
        return model
    fewer = model.for_classes(left)
    return ready(replace(fewer, calibration=calibration) if set(left) <= set(own) else fewer.with_left_out())


def with_examples(model: TunedModel, images: Encoded, labels: Sequence[str], limits: Limits) -> TunedModel:
    """The model having learned images too; labels that are no classes yet become classes."""
    check_single_label(model, "it cannot learn on; fit it again on all images")
    if not isinstance(model.method, PartialFit):
        raise Refused(409, f"{model.method.name} cannot learn on: fit it again on all images")
    labels = known_as(model.classes, [single_spaced(label) for label in labels])
    new_names(labels, model.classes, limits)
    return ready(model.partial_fit(images, labels))


def explain(model: TunedModel, image: Image.Image, name: str, samples: int) -> tuple[HeatMaps, float]:
    """Where in the image the first prompts of a class look, and the largest contribution to any class."""
    check_single_label(model, "it has no heat maps")
    (name,) = known_as(model.classes, [name])
    if name not in model.classes:
        raise Refused(404, f"class {name[:NAME_SHOWN]!r} is unknown: GET /classes lists them")
    maps = heat_maps(model.predictor, image, model.classes, samples)
    row = maps.classes.index(name)
    one = slice(row, row + 1)
    chosen = replace(
        maps,
        patch_to_prompt=maps.patch_to_prompt[:, one],
        prompt_to_patch=maps.prompt_to_patch[:, one],
        contribution=maps.contribution[:, one],
        classes=(name,),
        probabilities=maps.probabilities[one],
    )
    return chosen, float(maps.contribution.max())


def like_photographs(
    model: TunedModel, image: Image.Image, names: Sequence[str], photographs: Path | None
) -> list[Case]:
    """The parts that speak for the class beside training photographs, where these may be shown."""
    method = model.method
    if photographs is None or not (isinstance(method, ComparesParts) and method.compares):
        return []
    return cases(model, image, names, photographs)[0].parts


def single_spaced(name: str) -> str:
    return " ".join(name.split())


def new_names(names: Sequence[str], present: Sequence[str], limits: Limits) -> list[str]:
    """The new names, tidy; refused where one is empty, long, unprintable or another spelling of one."""
    new: list[str] = []
    seen = {*map(name_key, present), *(name_key(read_name(label)) for label in present)}
    for name in known_as(present, list(map(single_spaced, names))):
        if not name:
            raise Refused(422, "a class name is empty")
        if len(name) > limits.name_length:
            raise Refused(422, f"class name {name[:20]!r}… is longer than {limits.name_length} characters")
        if not name.isprintable():
            raise Refused(422, f"class name {name!a} holds characters that cannot be shown")
        if name in present or name in new:
            continue
        if name_key(name) in seen:
            raise Refused(409, f"class {name!r} is there already, in another spelling")
        seen.add(name_key(name))
        new.append(name)
    if len(present) + len(new) > limits.classes:
        raise Refused(422, f"{len(present)} classes and {len(new)} more: {limits.classes} are allowed")
    return new
