"""What the closed-form model, fitted to all labelled images but one, says of that one; for every image.

The fit is `conjugate`'s, of features and names; the answers are those of `core/left_out.py`. With an image go
its look-alikes of the same label: a copy must not vouch for a label. An image whose class has no other cannot
be judged: without it, its class is a mere name.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.core import left_out
from pbprompt.core.conjugate import make_frame
from pbprompt.core.evidence_choice import choose
from pbprompt.core.likelihood import unit
from pbprompt.core.look_alikes import Alike, look_alikes
from pbprompt.core.statistics import Statistics
from pbprompt.core.text_map import learn_text_map, move

CHOOSING = 2048  # images that stand for all when κ and T are chosen
LARGEST_CLASS = 8192  # images of a class, up to which look-alikes are looked for: all its pairs are compared


class LeftOutAnswers(NamedTuple):
    """Of n images, in the order given."""

    probabilities: Float[Tensor, "n k"]
    odds: Float[Tensor, " n"]
    judged: Bool[Tensor, " n"]
    """its class has another image"""


def left_out_answers(
    images: Float[Tensor, "n d"], labels: Int[Tensor, " n"], texts: Float[Tensor, "k d"], scale: float
) -> LeftOutAnswers | None:
    """For image features and the text features of the class names; `scale`: exp(logit scale).

    None where fewer than two classes have images: there is nothing to tell apart.
    """
    x, plain = unit(images).double(), unit(texts).double()
    statistics = Statistics.of(x, labels, len(texts))
    known = statistics.counts.nonzero().squeeze(1)
    if len(known) < 2:
        return None
    frame = make_frame(statistics, _moved_texts(statistics, plain, known))
    z = x @ frame.basis
    few = int(statistics.counts.max()) <= LARGEST_CLASS
    alike = look_alikes(z, labels) if few else Alike.none(z)
    some = torch.arange(0, len(z), -(-len(z) // CHOOSING))
    choice = choose(frame, z[some], labels[some], scale, plain @ frame.basis, alike.at(some))
    said = left_out.left_out_answers(frame, choice, z, labels, known, alike)
    probabilities = torch.zeros(len(z), len(texts))
    probabilities[:, known] = said.probabilities.float()
    return LeftOutAnswers(probabilities, said.odds.float(), said.several)


def _moved_texts(
    statistics: Statistics, texts: Float[Tensor, "k d"], known: Int[Tensor, " seen"]
) -> Float[Tensor, "k d"]:
    """Texts where the other classes' photographs put them, as the model's own are."""
    counts = statistics.counts[known]
    text_map = learn_text_map(statistics.sums[known] / counts.unsqueeze(1), counts, texts[known])
    place = torch.full((len(texts),), -1)
    place[known] = torch.arange(len(known))
    return move(text_map, texts, place)
