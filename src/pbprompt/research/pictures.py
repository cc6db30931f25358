"""The paper's pictures as recipes, YAML files in `recipes/figures/` or a user's own; fitted and drawn."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from pbprompt.apps.explain.drawing import draw_captions, draw_heat_maps, stacked
from pbprompt.apps.explain.heat_maps import heat_maps
from pbprompt.apps.explain.prompts import nearest_captions
from pbprompt.config import to_dict
from pbprompt.errors import InputError
from pbprompt.learners.fit_options import FitOptions, Views
from pbprompt.learners.method import make_config
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.research.recipes import (
    FOLDER,
    MethodRow,
    Recipe,
    errors_of,
    is_file,
    listed,
    parsed,
    read,
    recipe_names,
    setting_words,
)
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.build_dataset import OF_A_DRAW
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.names import name_key
from pbprompt.vision.images.sources import open_dataset

FIGURES = FOLDER / "figures"
FIRST = 2  # classes of a dataset that has none of those that the recipe names
Drawn = tuple[Image.Image, dict[str, Any]]  # a picture, and what is in it


@dataclass(frozen=True)
class PictureRecipe:
    """One picture: a model is fitted on each dataset and looked at through a test image of each class.

    `heat-maps`: where the prompts of the image's own class look, and those of the `unrelated` classes that
    the model finds the least likely. `captions`: the `top_k` captions nearest to each prompt.
    """

    name: str
    title: str
    picture: Literal["heat-maps", "captions"]
    backbone: str
    datasets: tuple[str, ...]
    method: str = "pbprompt"
    preset: str = "default"
    overrides: tuple[str, ...] = ()
    shots: int = 16
    seed: int = 1
    views: Views = "centre"
    classes: tuple[str, ...] = ()  # of a dataset that has none of them, the first two
    samples: int = 4  # prompts of a class
    unrelated: int = 2
    captions: tuple[str, ...] = ()
    top_k: int = 2
    note: str = ""

    def __post_init__(self) -> None:
        for key in ("shots", "samples", "top_k"):
            if getattr(self, key) < 1:
                raise InputError(f"{key} is {getattr(self, key)}: give a whole number above 0")

    @property
    def fits(self) -> Recipe:
        """The models that it is drawn from, as a table's runs."""
        row = MethodRow(self.method, self.method, self.preset, overrides=self.overrides)
        return Recipe(
            self.name, self.title, "few-shot", self.backbone, self.datasets, (row,),
            shots=(self.shots,), seeds=(self.seed,), views=self.views,
        )  # fmt: skip


def picture_names() -> list[str]:
    """The pictures that come with the package."""
    return recipe_names(FIGURES)


def find_picture(name_or_path: str) -> PictureRecipe | None:
    """A picture by its name or from a YAML file that holds the key `picture`; None where it is neither."""
    path = Path(name_or_path)
    if not (is_file(name_or_path) and path.is_file()) and name_or_path not in picture_names():
        return None
    values = parsed(name_or_path, "give title, picture, backbone and datasets", FIGURES)
    if "picture" not in values:
        return None
    with errors_of(name_or_path):
        texts = [key for key in ("classes", "captions") if key in values]  # which may be numbers: 707
        values |= {key: [*map(str, listed(key, values[key]))] for key in texts}
        overrides = setting_words("overrides", values.get("overrides") or {})
        return read(PictureRecipe, {**values, "overrides": overrides, "name": path.stem})


def make_picture(picture: PictureRecipe, bank: FeatureCache, root: Path | None = None) -> Drawn:
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
    see = model.backbone.preprocess
    drawn = draw_captions(name, image, found, see.fit, see.kept)
    return drawn, {"prompts": [prompt.to_dict() for prompt in found]}
