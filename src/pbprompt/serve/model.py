"""The model behind the server: its sampled classifiers, which new class names replace in one step."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from pbprompt.clip.backbone import Backbone
from pbprompt.core.likelihood import uncertainty
from pbprompt.data.names import name_key
from pbprompt.errors import InputError
from pbprompt.explain.heat_maps import HeatMaps, heat_maps
from pbprompt.methods.base import Method
from pbprompt.model.calibration import Calibration, read_calibration
from pbprompt.model.folder import load_model
from pbprompt.model.predictor import Predictor, predictive
from pbprompt.serve.limits import Limits, Refused

NAME_SHOWN = 60  # characters of a client's text in a reason


class Outcome(NamedTuple):
    """What the model says of one image, for the classes it had at that moment."""

    classes: tuple[str, ...]
    probabilities: list[float]
    spreads: list[float]
    """standard deviation of each class's probability over the sampled prompts"""
    entropy: float
    epistemic: float
    calibration: Calibration | None


@dataclass(frozen=True, eq=False)
class State:
    """All that changes when a class is added; a prediction takes one state and keeps to it."""

    predictor: Predictor
    calibration: Calibration | None


class ServedModel:
    """A model folder, ready to predict, also while it becomes another."""

    def __init__(self, folder: Path, *, backbone: Backbone | str | None = None, device: str = "cpu") -> None:
        method, self.info = load_model(folder, backbone, device)
        self._state = State(predictive(method), read_calibration(folder))

    @property
    def classes(self) -> tuple[str, ...]:
        return self._state.predictor.classes

    @property
    def calibrated(self) -> bool:
        """Whether doubt can be judged: not after a class was added, which no validation image showed."""
        return self._state.calibration is not None

    @property
    def image_size(self) -> int:
        """Pixels of a side of what the tower sees."""
        return self._method.backbone.preprocess.size

    def tensor(self, image: Image.Image) -> Float[Tensor, "3 size size"]:
        """The image as the tower reads it."""
        return self._method.backbone.preprocess(image)

    @property
    def _method(self) -> Method:
        return self._state.predictor.method

    @torch.inference_mode()
    def predict(self, tensors: Sequence[Float[Tensor, "3 size size"]]) -> list[Outcome]:
        """One pass of the tower for all images."""
        state = self._state
        method, bank = state.predictor.method, state.predictor.bank
        images = method.backbone.image(torch.stack(list(tensors)).to(method.backbone.device))
        logits = method.sample_logits(images, bank)
        said, spreads = uncertainty(logits), logits.float().softmax(-1).std(0, correction=0)
        columns = (said.probabilities, spreads, said.entropy, said.mutual_information)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            Outcome(state.predictor.classes, mean, spread, entropy, epistemic, state.calibration)
            for mean, spread, entropy, epistemic in rows
        ]

    def explain(self, image: Image.Image, name: str, samples: int) -> tuple[HeatMaps, float]:
        """Where in the image the first sampled prompts of a class look, and the most evidence for any."""
        predictor = self._state.predictor
        if name not in predictor.classes:
            raise Refused(404, f"class {name[:NAME_SHOWN]!r} is unknown: GET /classes lists them")
        try:
            maps = heat_maps(predictor.method, image, predictor.classes, samples, predictor=predictor)
        except InputError as error:
            raise Refused(422, str(error)) from None
        row = maps.classes.index(name)
        one = slice(row, row + 1)
        chosen = replace(
            maps,
            patch_to_prompt=maps.patch_to_prompt[:, one],
            prompt_to_patch=maps.prompt_to_patch[:, one],
            evidence=maps.evidence[:, one],
            classes=(name,),
            probabilities=maps.probabilities[one],
        )
        return chosen, float(maps.evidence.max())

    def with_classes(self, names: Sequence[str], limits: Limits) -> State:
        """What this becomes with more class names; those that are there are there already."""
        current = self._method
        if not current.takes_new_names:
            raise Refused(409, f"{current.name} was tuned for its own classes: it takes no new names")
        if not (more := checked_names(names, current.classes, limits)):
            return self._state
        # A copy of the small learnable part: the frozen towers are shared.
        method = copy.deepcopy(current, {id(current.backbone): current.backbone})
        try:
            method.prepare((*current.classes, *more), current.template)
            return State(predictive(method), None)
        except InputError as error:
            raise Refused(422, str(error)) from None

    def become(self, state: State) -> None:
        """Take other classes; those who predict meanwhile keep the former classifiers."""
        self._state = state


def checked_names(names: Sequence[str], present: Sequence[str], limits: Limits) -> list[str]:
    """The new names, tidied; refused where one is empty, long, unprintable or another spelling of one."""
    tidied: list[str] = []
    seen = {name_key(name) for name in present}
    for given in names:
        name = " ".join(given.split())
        if not name:
            raise Refused(422, "a class name is empty")
        if len(name) > limits.name_length:
            raise Refused(422, f"class name {name[:20]!r}… is longer than {limits.name_length} characters")
        if not name.isprintable():
            raise Refused(422, f"class name {name!a} holds characters that cannot be shown")
        if name in present or name in tidied:
            continue
        if name_key(name) in seen:
            raise Refused(409, f"class {name!r} is there already, in another spelling")
        seen.add(name_key(name))
        tidied.append(name)
    if len(present) + len(tidied) > limits.classes:
        raise Refused(422, f"{len(present)} classes and {len(tidied)} more: {limits.classes} are allowed")
    return tidied
