"""POST /explain: where in an image the prompts of a class look, and what of it looks like a photograph."""

import base64
from pathlib import Path

from PIL import Image

from pbprompt.apps.explain.cases import cases, comparing, draw_case
from pbprompt.apps.explain.drawing import draw_heat_maps, overlay, seen
from pbprompt.apps.explain.heat_maps import heat_maps
from pbprompt.apps.serve.limits import Refused
from pbprompt.apps.serve.model import check_single_label
from pbprompt.apps.serve.schemas import Explain, Explanation, LikePart
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.images import encoded_image
from pbprompt.vision.images.names import known_as

SHOWN_SIDE = 640  # pixels of the longer side of a heat map, or of an image to label
NAME_SHOWN = 60  # characters of a client's text in a reason


def explain(
    model: TunedModel, image: Image.Image, request: Explain, photographs: Path | None, by: TunedModel
) -> Explanation | bytes:
    """The maps, or drawn as one PNG; with parts, as the model `by` compares them, where training photographs
    may be shown."""
    check_single_label(model, "it has no heat maps")
    (name,) = known_as(model.classes, [request.class_name])
    if name not in model.classes:
        raise Refused(404, f"class {name[:NAME_SHOWN]!r} is unknown: GET /classes lists them")
    png = request.format == "png"
    maps = heat_maps(model.predictor, image, [name] if png else model.classes, request.samples)
    parts = []
    if photographs and not png and comparing(by) and name in by.classes:
        parts = cases(by, image, [name], photographs)[0].parts
    image.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    if png:
        return encoded_image(draw_heat_maps(maps, image, request.reading))
    row = maps.classes.index(name)
    heat = maps.of(request.reading)[:, row]
    # One scale of contributions for all classes: where nothing speaks for one, its map stays dark.
    hottest = max(0.0, float(maps.contribution.max())) if request.reading == "contribution" else None
    square = seen(image, fit=maps.fit, cropped=maps.cropped)
    return Explanation(
        class_name=request.class_name,
        score=float(maps.probabilities[row]),
        range=(float(heat.mean(0).min()), float(heat.mean(0).max())),
        mean=_base64(overlay(square, heat.mean(0), hottest)),
        samples=[_base64(overlay(square, one, hottest)) for one in heat],
        parts=[
            LikePart(
                logit=part.logit,
                box=part.box,
                photograph=part.photograph.name,
                place=part.place,
                picture=_base64(draw_case(part, image, by)),
            )
            for part in parts
        ],
    )


def _base64(image: Image.Image) -> str:
    return base64.b64encode(encoded_image(image)).decode()
