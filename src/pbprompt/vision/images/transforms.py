"""From an image to the tensor a CLIP tower reads: the fixed test transform, and what names it."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from pbprompt.vision.images.crops import Crop, Crops, Fit, Interpolation, TrainingView

Triple = tuple[float, float, float]


def normalise(pixels: UInt8[Tensor, "b h w 3"], mean: Triple, std: Triple) -> Float[Tensor, "b 3 h w"]:
    """(x / 255 − mean) / std in float32, channels first, to the same bits on every device."""
    whole, mean_, std_ = (_planes(values, pixels.device) for values in ((255.0,), tuple(mean), tuple(std)))
    channels = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    return channels.div_(whole).sub_(mean_).div_(std_)


@lru_cache(maxsize=64)  # to send them to a GPU would be to wait for all that it has been given
@torch.inference_mode(False)
def _planes(values: tuple[float, ...], device: torch.device) -> Float[Tensor, "c 1 1"]:
    """As a tensor: a GPU multiplies by the inverse of a plain number, which rounds otherwise."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


@dataclass(frozen=True)
class Preprocess:
    """A model's test transform, bit for bit: CLIP's is a bicubic resize of the short side, centre crop,
    normalise; SigLIP's squashes the whole image to the square (`fit`); DINOv2's makes the short side
    longer than the crop (`resize`).

    `draft`, where given, asks the loader for the faster, approximate JPEG decoding of `open_image`; `fast`
    whoever decodes files for a faster resize, approximate too.
    """

    size: int
    mean: Triple
    std: Triple
    draft: int | None = None
    fit: Fit = "crop"
    interpolation: Interpolation = "bicubic"
    resize: int | None = None
    fast: bool = False

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 h w"]:
        return self.normalised(self.cropper(image))

    def normalised(self, square: Image.Image) -> Float[Tensor, "3 h w"]:
        """What the tower reads of a square: to make a square of it again would crop it twice."""
        return normalise(torch.from_numpy(np.array(square))[None], self.mean, self.std)[0]

    @property
    def cropper(self) -> Crop:
        return Crop(self.size, self.fit, self.interpolation, self.resize, self.draft, self.fast)

    @property
    def kept(self) -> float:
        """The share of an image's shorter side that is in the square, where that is a crop."""
        return self.size / (self.resize or self.size)

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.size

    @property
    def identity(self) -> str:
        """A text naming the transform and all its numbers, for cache keys."""
        return self.identity_of(self.cropper)

    def view(self, seed: int, epoch: int) -> TrainingView:
        """What makes training views for the same tower."""
        return TrainingView(self.size, seed, epoch, interpolation=self.interpolation)

    def identity_of(self, cropper: Crop | Crops | TrainingView) -> str:
        """The same of a cropper, or of a family of views, whatever their seed and epoch."""
        kind = "train-view" if isinstance(cropper, TrainingView) else "clip-test"
        facts = {"size": cropper.size, "mean": tuple(self.mean), "std": tuple(self.std), **vars(cropper)}
        used = {name: value for name, value in facts.items() if name not in ("seed", "epoch")}
        usual = (None, "crop", "bicubic", False)
        return f"{kind}({', '.join(f'{name}={value}' for name, value in used.items() if value not in usual)})"
