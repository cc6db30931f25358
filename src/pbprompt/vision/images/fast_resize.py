"""A resize by weights of 16 bits: a third of the time of Pillow's, whose have 22, and approximate.

Where an image is made smaller, one value in two hundred is off by a grey level; where it is made larger, some
are off by two. For predictions that ask for it: all else sees what a model's own preparation gives.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from pbprompt.vision.images.crops import Crop, Cropper


def finished(pixels: NDArray[np.uint8], cropper: Cropper) -> NDArray[np.uint8]:
    """The square of what `square_of` gave, [h, w, 3], in other memory; it may be the square already."""
    height, width = pixels.shape[:2]
    if not isinstance(cropper, Crop) or height == width == cropper.size:
        return pixels.copy()
    wide, high, left, top = cropper.placed((width, height))
    channels = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = F.interpolate(channels, size=(high, wide), mode=cropper.interpolation, antialias=True)[0]
    kept: NDArray[np.uint8] = resized.permute(1, 2, 0).numpy()
    return kept[top : top + cropper.size, left : left + cropper.size]
