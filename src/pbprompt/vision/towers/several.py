"""Several frozen backbones as one: each sees an image in its own way, and what they see stands side by side.

    x = [x_1/‖x_1‖, …, x_v/‖x_v‖]

An image is opened once. Backbones that look at the same square share it; others have their own, one below
another on one canvas. Patches are left out: a patch of one backbone is none of another's.
"""

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

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b m d"]]:
        parts = []
        for visual, mean, std, (top, size) in zip(
            self.visuals, self.means, self.stds, self.boxes, strict=True
        ):
            dtype = next(value.dtype for value in visual.buffers() if value.is_floating_point())
            square = (x[:, :, top : top + size, :size] - mean) / std
            parts.append(F.normalize(visual(square.to(dtype))[0].float(), dim=-1))
        features = torch.cat(parts, dim=1)
        return features, features[:, None][:, :0]


class Several(Backbone):
    """Backbones side by side. Its logits of names are the mean of the logits that each reading one has."""

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

    @property
    def towers(self) -> Sequence[Backbone]:
        return tuple(self.parts)  # type: ignore[arg-type]

    def image(self, x: Float[Tensor, "b 3 h w"]) -> Encoded:
        return Encoded(*self.visual(x))


def side_by_side(parts: Sequence[Float[Tensor, "n _"]]) -> Float[Tensor, "n d"]:
    """What each backbone gave, each of length 1."""
    return torch.cat([F.normalize(part.float(), dim=-1) for part in parts], dim=1)


def _planes(values: Sequence[Sequence[float]], device: torch.device) -> Float[Tensor, "v 3 1 1"]:
    return torch.tensor([list(each) for each in values], device=device).view(len(values), 3, 1, 1)
