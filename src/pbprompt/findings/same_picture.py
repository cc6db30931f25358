"""Do two files show the same picture, perhaps saved again, resized or cropped a little? Judged by pixels.

    δ(A, B) = min over windows W of max over blocks of RMS( W(A) − B )      or with A and B exchanged

A and B are small squares in colour, and the difference is in units of their own standard deviation; W(A) is
what a crop of up to a tenth of each side may have left of A. A block is a sixth of each side: two motorcycles
before the same wall differ in some block, however alike the rest.
"""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

SIDE = 48
DRAFT = 2 * SIDE  # pixels of each side that a decoder must at least give
COARSE, FINE, BLOCK = 16, 24, 4  # sides at which squares are compared: outlines, windows, blocks of windows
PAIRS_AT_ONCE = 128
FLAT = 1.0  # grey levels of deviation, below which there is nothing to compare


def small_square(image: Image.Image) -> UInt8[Tensor, "3 side side"]:
    """The whole image, pressed into a small square."""
    small = image.resize((SIDE, SIDE), Image.Resampling.BOX, reducing_gap=2.0)
    return torch.from_numpy(np.asarray(small, dtype=np.uint8).copy()).permute(2, 0, 1).contiguous()


def outlines(squares: UInt8[Tensor, "n 3 side side"]) -> Float[Tensor, "n d"]:
    """Vectors of length 1 (0 for an image of one colour) whose products are correlations at 16 × 16."""
    coarse = F.adaptive_avg_pool2d(squares.float(), COARSE).flatten(1)
    return F.normalize(coarse - coarse.mean(1, keepdim=True), eps=FLAT * coarse.shape[1] ** 0.5)


def differences(squares: UInt8[Tensor, "n 3 side side"], pairs: Int[Tensor, "p 2"]) -> Float[Tensor, " p"]:
    """δ of each pair: 0 for equal squares, about 0.1 for a file saved again, above 1 for other pictures."""
    if not len(pairs):
        return torch.zeros(0)
    found = []
    for some in pairs.split(PAIRS_AT_ONCE):
        first, second = (squares[some[:, place]].float() for place in (0, 1))
        found.append(torch.minimum(_best_window(first, second), _best_window(second, first)))
    return torch.cat(found)


def _best_window(
    whole: Float[Tensor, "p 3 side side"], part: Float[Tensor, "p 3 side side"]
) -> Float[Tensor, " p"]:
    cut = _cutter()
    small = torch.einsum("ys,pcst,xt->pcyx", cut[0], part, cut[0])
    deviation = ((whole.var((1, 2, 3)) + part.var((1, 2, 3))) / 2).sqrt().clamp(min=FLAT)
    rows = torch.einsum("ays,pcst->pacyt", cut, whole)
    best = part.new_full((len(part),), torch.inf)
    for across in cut:
        windows = torch.einsum("pacyt,xt->pacyx", rows, across)
        squared = (windows - small.unsqueeze(1)).square().mean(2)
        worst = F.avg_pool2d(squared, BLOCK).flatten(2).amax(2).sqrt()
        best = torch.minimum(best, worst.amin(1))
    return best / deviation


def _cutter() -> Float[Tensor, "w fine side"]:
    """Matrices that average the pixels of a line into the cells of each window, the whole line first."""
    edges = torch.arange(SIDE + 1) / SIDE
    found = []
    for length in (1.0, 0.95, 0.9):
        for start in torch.arange(round(40 * (1 - length)) + 1) / 40:
            cells = start + length * torch.linspace(0, 1, FINE + 1)
            low = torch.maximum(cells[:-1, None], edges[None, :-1])
            high = torch.minimum(cells[1:, None], edges[None, 1:])
            found.append((high - low).clamp(min=0) * FINE / length)
    return torch.stack(found)
