"""Several frozen backbones as one: each sees an image in its own way, and what they see stands side by side.

    x = [x_1/‖x_1‖, …, x_v/‖x_v‖]

An image is opened once. Backbones that look at the same square share it; others have their own, one below
another on one canvas. `lite` and `lite-vit` look at the map of one trunk, which is made once. Patches are
left out: a patch of one backbone is none of another's.
"""

import copy
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.vision.images.crops import Crop, Crops
from pbprompt.vision.images.transforms import Preprocess
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.layers import Seen
from pbprompt.vision.towers.lite import LiteTower, LiteVitTower, same_trunk

ON_TRUNK = (LiteTower, LiteVitTower)


@dataclass(frozen=True)
class Canvas(Preprocess):
    """Pixels of 0 to 1, which each tower normalises by its own numbers; `below`: squares unlike the first."""

    below: tuple[Crop, ...] = ()

    def __post_init__(self) -> None:
        if self.fast and self.below:
            raise InputError("--fast-resize: these backbones see squares of their own each: leave it out")

    @property
    def cropper(self) -> Crop | Crops:  # type: ignore[override]
        first = super().cropper
        return Crops((first, *self.below)) if self.below else first

    @property
    def shape(self) -> tuple[int, int]:
        cropper = self.cropper
        return (cropper.tops[-1], cropper.size) if isinstance(cropper, Crops) else super().shape


class SideBySide(nn.Module):
    """Image towers on one canvas: features of length 1 each, side by side, and no patches."""

    def __init__(self, towers: Sequence[Backbone]) -> None:
        super().__init__()
        self.visuals = nn.ModuleList(tower.visual for tower in towers)
        seen = [tower.preprocess for tower in towers]
        self.means = nn.Buffer(_planes([see.mean for see in seen], towers[0].device))
        self.stds = nn.Buffer(_planes([see.std for see in seen], towers[0].device))
        crops = Crops(tuple(dict.fromkeys(see.cropper for see in seen)))
        self.boxes = [(crops.tops[crops.crops.index(see.cropper)], see.size) for see in seen]
        self.firsts = [
            next(place for place in range(at + 1) if _same_map(towers[place], towers[at]))
            for at in range(len(towers))
        ]

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b m d"]]:
        features = side_by_side([part for part, _ in self.each(x)])
        return features, features[:, None][:, :0]

    def each(self, x: Float[Tensor, "b 3 h w"]) -> list[Seen]:
        """What each tower sees, as it is."""
        found: list[Seen] = []
        maps: dict[int, Float[Tensor, "b k i j"]] = {}
        for visual, mean, std, (top, size), first in zip(
            self.visuals, self.means, self.stds, self.boxes, self.firsts, strict=True
        ):
            if first not in maps:
                dtype = next(value.dtype for value in visual.buffers() if value.is_floating_point())
                square = ((x[:, :, top : top + size, :size] - mean) / std).to(dtype)
                maps[first] = visual.trunk.features(square) if isinstance(visual, ON_TRUNK) else square
            found.append(visual.read(maps[first]) if isinstance(visual, ON_TRUNK) else visual(maps[first]))
        return found


class Several(Backbone):
    """Backbones side by side. Its logits of names are the mean of the logits that each reading one has."""

    visual: SideBySide

    def __init__(self, towers: Sequence[Backbone]) -> None:
        nn.Module.__init__(self)
        for place, tower in enumerate(towers):
            if tower.fingerprint in [other.fingerprint for other in towers[:place]]:
                raise InputError(f"backbone {tower.config.name} is given twice: give it once")
        self.parts = nn.ModuleList(towers)
        reading = [tower for tower in towers if tower.reads_text]
        self.config = replace(
            towers[0].config,
            name=" + ".join(tower.config.name for tower in towers),
            embed_dim=sum(tower.embed_dim for tower in towers),
            text=reading[0].config.text if reading else None,
        )
        self.embed_dim = self.patch_width = self.config.embed_dim
        self.grid = (0, 0)
        scales = [tower.logit_scale for tower in reading]
        # cosines of what is side by side have √v times the length of all scales in their divisor
        self.logit_scale = math.sqrt(len(towers)) * math.hypot(*scales) / len(scales) if scales else 100.0
        self.logit_bias = None
        self.text_taps = None
        self.fingerprint = hashlib.sha256(" ".join(one.fingerprint for one in towers).encode()).hexdigest()
        croppers = dict.fromkeys(tower.preprocess.cropper for tower in towers)
        first = {**vars(towers[0].preprocess), "mean": (0.0,) * 3, "std": (1.0,) * 3}
        self.preprocess = Canvas(**first, below=tuple(croppers)[1:])
        self.visual = SideBySide(towers)
        self.apart = False

    def as_they_are(self) -> "Several":
        """Which gives what each sees as it is, patches flat and in a row: `each_of` takes it apart."""
        other = copy.copy(self)
        other.apart = True
        return other

    def each_of(self, seen: Encoded) -> list[Encoded]:
        """Of each backbone, from what it gives as they are."""
        shapes = [(tower.grid[0] * tower.grid[1], tower.patch_width) for tower in self.towers]
        parts = seen.patches[:, 0].split([places * width for places, width in shapes], dim=1)
        return [
            Encoded(global_, flat.unflatten(1, shape))
            for global_, flat, shape in zip(
                seen.global_.split(self.widths, dim=1), parts, shapes, strict=True
            )
        ]

    @property
    def towers(self) -> Sequence[Backbone]:
        return tuple(self.parts)  # type: ignore[arg-type]

    def image(self, x: Float[Tensor, "b 3 h w"]) -> Encoded:
        if not self.apart:
            return Encoded(*self.visual(x))
        images, patches = zip(*self.visual.each(x), strict=True)
        return Encoded(torch.cat(images, 1), torch.cat([one.flatten(1) for one in patches], 1)[:, None])


def _same_map(one: Backbone, other: Backbone) -> bool:
    """Whether they see by one trunk, or are one."""
    if one is other or not (isinstance(one.visual, ON_TRUNK) and isinstance(other.visual, ON_TRUNK)):
        return one is other
    alike = one.preprocess == other.preprocess and one.dtype == other.dtype
    return alike and same_trunk(one.visual.trunk, other.visual.trunk)


def side_by_side(parts: Sequence[Float[Tensor, "n _"]]) -> Float[Tensor, "n d"]:
    """What each backbone gave, each of length 1."""
    return torch.cat([F.normalize(part.float(), dim=-1) for part in parts], dim=1)


def _planes(values: Sequence[Sequence[float]], device: torch.device) -> Float[Tensor, "v 3 1 1"]:
    return torch.tensor([list(each) for each in values], device=device).view(len(values), 3, 1, 1)
