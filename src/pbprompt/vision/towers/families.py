"""The families of models that can be loaded: for `pbprompt backbones`, `pbprompt doctor` and the docs."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import yaml

from pbprompt.vision.towers import ASSETS
from pbprompt.vision.towers.loading.hub import EMBEDDED, OPENAI_MODELS

OWN_IDS = {"lite": EMBEDDED, "OpenAI CLIP": tuple(OPENAI_MODELS)}
MODULES = {"siglip": "tokenizers", "timm": "timm"}  # extra -> what it brings


@dataclass(frozen=True)
class Family:
    """A row of `assets/families.yaml`, which says what the fields hold."""

    name: str
    licence: str
    pixels: str
    parameters: str
    ids: tuple[str, ...]
    extra: str | None = None

    @property
    def missing(self) -> str | None:
        """The extra that is not installed here, if one is needed."""
        return self.extra if self.extra and find_spec(MODULES[self.extra]) is None else None


@cache
def families() -> tuple[Family, ...]:
    """All of them, in the order they are listed in."""
    rows = yaml.safe_load((ASSETS / "families.yaml").read_text(encoding="utf-8"))
    return tuple(Family(**{**row, "ids": OWN_IDS.get(row["name"]) or tuple(row["ids"])}) for row in rows)
