"""How often classes come among new images, where that is otherwise than among training images.

A model takes classes to be as frequent as in training, π. Where they come with π′ (a shift of the prior),

    p′(c | x) ∝ p(c | x) r_c,   r_c = π′_c / π_c

and a left-out image stands for so many new ones as its class is more frequent among them: its weight. A class
without training images keeps its odds (r = 1). What is not known can be estimated from the new images
themselves, by expectation and maximisation (Saerens, Latinne and Decaestecker, Neural Computation, 2002):

    π′_c ← (Σ_i p′(c | x_i) + 1) / (m + C)          until it stays; one image of each class is taken for seen
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from pbprompt.errors import InputError, suggest
from pbprompt.vision.images.names import name_key, read_classes_file

TRAINED, BALANCED, ESTIMATE = "as-trained", "balanced", "estimate"
SKEWED = 4  # times as many training images, from which on it is said
STEPS, STAYS = 1000, 1e-6

Mix = str | Mapping[str, float]  # balanced, or how often each class comes, up to a factor


def read_mix(path: Path, classes: Sequence[str]) -> dict[str, float]:
    """How often each class comes, of a file of two columns or of lines `class: number`."""
    known, found = {name_key(name): name for name in classes}, dict.fromkeys(classes, 0.0)
    for name, text in read_classes_file(path, "number").items():
        if name_key(name) not in known:
            raise InputError(f"{path}: no class is called {name!r}: {suggest(name, classes)}")
        try:
            often = float(text)
        except ValueError:
            often = math.nan
        if not 0 <= often < math.inf:
            raise InputError(f"{path}: class {name!r} comes {text!r} times: give a number, 0 or more")
        found[known[name_key(name)]] = often
    return found


def shares(mix: Mix, classes: Sequence[str], counts: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """π′ of the classes that have training images; 0 of the others."""
    if isinstance(mix, str) and mix != BALANCED:
        raise InputError(f"class_mix is {mix!r}: give '{BALANCED}', or how often each class comes")
    often = [1.0 if isinstance(mix, str) else float(mix.get(name, 0.0)) for name in classes]
    wanted = counts.new_tensor(often) * (counts > 0)
    if not bool((wanted >= 0).all() and 0 < wanted.sum() < math.inf):
        raise InputError("class_mix: give numbers of 0 or more, above 0 for a class with training images")
    return wanted / wanted.sum()


def ratio(wanted: Float[Tensor, " c"], counts: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """r"""
    return (wanted * counts.sum() / counts).where(counts > 0, 1.0)


def estimated(probabilities: Float[Tensor, "m c"], counts: Float[Tensor, " c"]) -> Float[Tensor, " c"]:
    """π′ of the images that have these p; of the classes with training images."""
    known = counts > 0
    p, own = probabilities[:, known].to(counts), counts[known]
    share = own / own.sum()
    for _ in range(STEPS):
        said = p * (share / own)
        before = share
        share = ((said / said.sum(1, keepdim=True).clamp_min(1e-300)).sum(0) + 1) / (len(p) + len(own))
        if float((share - before).abs().max()) < STAYS:
            break
    found = counts.new_zeros(len(counts))
    found[known] = share
    return found


def skew_words(classes: Sequence[str], counts: Float[Tensor, " c"]) -> str:
    """What follows where classes are not equally frequent among training images."""
    known = [(int(n), name) for name, n in zip(classes, counts.tolist(), strict=True) if n > 0]
    (few, rare), (many, common) = min(known), max(known)
    if many < SKEWED * few:
        return ""
    return (
        f"classes are not equally frequent: {many:,} training images of {common}, {few:,} of {rare}; new "
        "images are taken to be so too; where they are not, `predict --class-mix balanced`, or give a file"
    )
