"""The paper's pictures from their recipes: fit, choose images, draw, and say what was drawn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from pbprompt.apps.explain.drawing import draw_captions, draw_heat_maps, stacked
from pbprompt.apps.explain.heat_maps import heat_maps
from pbprompt.apps.explain.prompts import nearest_captions
from pbprompt.config import to_dict
from pbprompt.errors import InputError
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import make_config
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.research.recipes.pictures import PictureRecipe
from pbprompt.vision.features.cache import FeatureBank
from pbprompt.vision.images.build_dataset import OF_A_DRAW
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.names import name_key
from pbprompt.vision.images.sources import open_dataset

FIRST = 2  # classes of a dataset that has none of those that the recipe names
Drawn = tuple[Image.Image, dict[str, Any]]  # a picture, and what is in it


def make_picture(picture: PictureRecipe, bank: FeatureBank, root: Path | None = None) -> Drawn:
    """The picture, and what is in it: the settings, the images, and the figures that were drawn."""
    if picture.picture == "captions" and not picture.captions:
        raise InputError(f"{picture.name}: has no captions to choose from: give some, one sentence each")
    kind = find_method(picture.method)
    config = make_config(kind, picture.preset, overrides=picture.overrides)
    parts, panels = [], []
    for name in picture.datasets:
        dataset = open_dataset(name, root, held_out=OF_A_DRAW)
        few = draw(dataset, picture.shots, picture.seed).apply(dataset)
        model = TunedModel.fit(
            few, bank, kind, config, FitOptions(seed=picture.seed, views=picture.views, progress=False)
        )
        for label, item in _shown(picture, dataset):
            image = open_image(dataset.file(item))
            drawer = _heat_maps if picture.picture == "heat-maps" else _captions
            part, shown = drawer(picture, model, dataset.classes[label], image)
            parts.append(part)
            panels.append({"dataset": name, "image": item.path, "class": dataset.classes[label], **shown})
    about = {
        "title": picture.title,
        "picture": picture.picture,
        "backbone": {"name": bank.backbone.config.name, "fingerprint": bank.backbone.fingerprint},
        "method": picture.method,
        "settings": to_dict(config),
        "shots": picture.shots,
        "seed": picture.seed,
        "panels": panels,
    }
    return stacked(parts), about


def _shown(picture: PictureRecipe, dataset: Dataset) -> Iterator[tuple[int, Item]]:
    """The labels to look at, each with its first image that was not trained on."""
    wanted = {name_key(name) for name in picture.classes}
    labels = [label for label, name in enumerate(dataset.classes) if name_key(name) in wanted]
    for label in labels or range(min(FIRST, len(dataset.classes))):
        own = [item for item in dataset.test or dataset.val or dataset.train if item.label == label]
        if not own:
            raise InputError(
                f"{dataset.name} has no image of {dataset.classes[label]!r}: choose other classes"
            )
        yield label, own[0]


def _heat_maps(picture: PictureRecipe, model: TunedModel, name: str, image: Image.Image) -> Drawn:
    """The image's own class, then the least likely others."""
    likely = heat_maps(model.predictor, image, model.classes, 1)
    others = [place for place in likely.probabilities.argsort() if likely.classes[place] != name]
    names = [name, *(likely.classes[place] for place in others[: picture.unrelated])]
    maps = heat_maps(model.predictor, image, names, picture.samples)
    heat = maps.prompt_to_patch
    rows = [
        {
            "class": shown,
            "related": shown == name,
            "probability": round(float(maps.probabilities[row]), 6),
            "lowest": round(float(heat[:, row].min()), 6),
            "highest": round(float(heat[:, row].max()), 6),
        }
        for row, shown in enumerate(maps.classes)
    ]
    about = {"reading": "prompt-to-patch", "temperature": maps.temperature, "prompts": len(heat)}
    return draw_heat_maps(maps, image, "prompt-to-patch"), {**about, "rows": rows}


def _captions(picture: PictureRecipe, model: TunedModel, name: str, image: Image.Image) -> Drawn:
    """Each prompt's nearest captions beside the image."""
    found = nearest_captions(
        model.method, picture.captions, [name], picture.top_k, picture.samples, picture.seed
    )
    fit = model.backbone.preprocess.fit
    return draw_captions(name, image, found, fit), {"prompts": [prompt.to_dict() for prompt in found]}
