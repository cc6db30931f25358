"""A colour scale for heat: from dark blue over red to pale yellow, every step lighter than the one before."""

import numpy as np
from jaxtyping import Float, UInt8

# Equally spaced from 0 to 1. Lightness only rises: the scale reads right in grey and to the colour-blind.
ANCHORS = np.array(
    [
        (10, 8, 44),
        (66, 18, 104),
        (130, 32, 110),
        (193, 55, 82),
        (236, 104, 42),
        (250, 172, 36),
        (253, 248, 176),
    ]
)


def heat_colours(heat: Float[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """RGB of every value between 0 and 1; values outside take the colour of the nearer end."""
    at = np.linspace(0, 1, len(ANCHORS))
    channels = [np.interp(heat, at, channel) for channel in ANCHORS.T]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
