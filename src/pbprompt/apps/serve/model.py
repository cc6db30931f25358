"""What clients may change of the tuned model that is served, and what its answers rest on."""

import math
from collections.abc import Sequence
from dataclasses import replace

from pbprompt.apps.serve.limits import Limits, Refused
from pbprompt.learners.fitted import PartialFit
from pbprompt.model.decisions import Rule
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.names import known_as, name_key, read_name
from pbprompt.vision.towers.backbone import Encoded


def check_single_label(model: TunedModel, what: str) -> None:
    """Refuse what a multi-label model cannot do."""
    if model.multi_label:
        raise Refused(409, f"the model is multi-label: {what}")


def rule_and_note(
    model: TunedModel,
    fitted: TunedModel,
    base: TunedModel,
    accuracy: float,
    coverage: float,
    refusal: float,
    back_off: float,
) -> tuple[Rule, str | None]:
    """By which a request's images are judged, and what is to be said of it."""
    note = doubt_note(model, fitted, base, accuracy)
    if not model.calibrated:
        return model.rule(None, None, refusal), note
    groups = model.has_groups and not model.costs
    found = model.rule(accuracy, coverage, refusal, back_off=back_off if groups else None)
    return (replace(found, threshold=None) if found.threshold == math.inf else found), note


def doubt_note(model: TunedModel, fitted: TunedModel, base: TunedModel, accuracy: float) -> str | None:
    """Why what the fitted model became cannot tell whether it is unsure, or what that rests on.

    Sure answers may not be promised to be right with that `accuracy`, and of classes that `base`, the model
    before names were added, does not have no image was judged. None where nothing need be said.
    """
    calibration = model.calibration
    if model.calibrated and calibration is not None:
        promised, images = calibration.promised(accuracy)[0], calibration.rests_on
        if promised != accuracy:
            most = f", {promised:.0%} can" if promised else ""
            return f"that answers are right {accuracy:.0%} of the time cannot be promised by {images}{most}"
        added = set(model.classes) - set(base.classes)
        return f"no image of an added class was judged, only {images}" if added else None
    if model.multi_label:
        return None
    if fitted.calibration is None:
        return "the model was fitted without validation images"
    if calibration is None:
        return "the model has learned examples since the validation images were judged"
    return "no validation image is of an added class"


def with_classes(model: TunedModel, names: Sequence[str], limits: Limits) -> TunedModel:
    """The model with more class names, its prompts drawn before anybody waits for them; names that are there
    are there already."""
    if more := new_names(names, model.classes, limits):
        check_single_label(model, "it takes no new names; fit it again with them")
        if not model.method.takes_new_names:
            raise Refused(409, f"{model.method.name} was tuned for its own classes: it takes no new names")
        model = model.with_classes(more).with_left_out()
    if not model.multi_label:
        _ = model.predictor
    return model


def with_examples(
    model: TunedModel, images: Encoded, labels: Sequence[str], added: Sequence[str], limits: Limits
) -> TunedModel:
    """The model having learned images too; labels that are no classes yet become classes, in the spelling of
    those that are `added` by name where they are the same."""
    check_single_label(model, "it cannot learn on; fit it again on all images")
    if not isinstance(model.method, PartialFit):
        raise Refused(409, f"{model.method.name} cannot learn on: fit it again on all images")
    present = (*model.classes, *added)
    labels = known_as(present, [single_spaced(label) for label in labels])
    new_names(labels, present, limits)
    return model.partial_fit(images, labels)


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
    if new and len(present) + len(new) > limits.classes:
        raise Refused(422, f"{len(present)} classes and {len(new)} more: {limits.classes} are allowed")
    return new
