"""A picture as a recipe: the model to fit and what to draw. YAML files in `figures/`, or a user's own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pbprompt.learners.fit_options import Views
from pbprompt.research.recipes import MethodRow, Recipe
from pbprompt.research.recipes.reading import check_positive, is_file, listed, names_in, parsed, read, words

Kind = Literal["heat-maps", "captions"]
FIGURES = "figures"  # the folder of the package that has them


@dataclass(frozen=True)
class PictureRecipe:
    """One picture: a model is fitted on each dataset and looked at through a test image of each class.

    `heat-maps`: where the prompts of the image's own class look, and those of the `unrelated` classes that
    the model finds the least likely. `captions`: the `top_k` captions nearest to each prompt.
    """

    name: str
    title: str
    picture: Kind
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
    return names_in(FIGURES)


def find_picture(name_or_path: str) -> PictureRecipe | None:
    """A picture by its name or from a YAML file that holds the key `picture`; None where it is neither."""
    path = Path(name_or_path)
    if not (is_file(name_or_path) and path.is_file()) and name_or_path not in picture_names():
        return None
    values, where = parsed(name_or_path, "give title, picture, backbone and datasets", FIGURES)
    if "picture" not in values:
        return None
    check_positive(values, where, "shots", "samples", "top_k")
    overrides = words(values.get("overrides") or {}, where, "overrides")
    texts = [key for key in ("classes", "captions") if key in values]  # which may be numbers: 707
    lists: dict[str, Any] = {key: [*map(str, listed(values[key], where, key))] for key in texts}
    return read(PictureRecipe, {**values, **lists, "overrides": overrides, "name": path.stem}, where)
