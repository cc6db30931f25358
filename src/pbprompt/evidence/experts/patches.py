"""Patches that look alike: which parts of an image are parts of a class's photographs.

    v = Wᵀ(û − b) / ‖Wᵀ(û − b)‖,  û = u/‖u‖            a patch, centred and whitened within the classes
    s_c(v) = max_{p ∈ P_c} v·p                          how like the class's prototype that is most like it
    P_c(x) = 1/M Σ_m max(0, s_c(v_m) − s_(r)(v_m))      s_(r): of the class r places behind the best
    E_c(x) = P_c(x) / spread                            of P over the classes, of photographs held out

| symbol | name here    | meaning                                                                     |
|--------|--------------|-----------------------------------------------------------------------------|
| u      | `patches`    | the M patch features of an image; of a fine grid, the means of squares      |
| b      | `centre`     | mean over the classes of their mean patch                                   |
| W      | `whiten`     | W Wᵀ = ((1 − h) S + h tr(S)/d I)⁻¹, S the covariance of û within classes     |
| h      | `SPHERE`     | how far S is shrunk to a sphere                                             |
| P_c    | `prototypes` | means of patches of class c that are alike (spherical k-means of û), placed |
| r      | `RIVALS`     | so many classes at most does a patch speak for                              |

A patch asks for its nearest neighbour in every class (NBNN, Boiman et al., CVPR 2008), and speaks for the
near classes alone (local NBNN, McCann and Lowe, CVPR 2012). It is the forward half of conditional transport
(`prompts/pbprompt/transport.py`) with a plan that is sharp.

Prototypes are made part by part, the photographs of each class being dealt into parts: those of a part rest
on its photographs alone. So a photograph is judged by the prototypes of the other parts, under b and S of the
other parts, which is what a fit to them would say: nothing is clustered twice. A series is in one part.

Patches are many, and no model keeps them: the expert is made and its photographs judged while they are there
(`compare`), which `fit` hands on.
"""

import math
from functools import reduce
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8
from torch import Tensor

from pbprompt.evidence.evidence import Statistics, feature_keys
from pbprompt.evidence.expert import HeldOut, Kind, Photographs, Seen
from pbprompt.evidence.series import places_in_class, series_folds

SPHERE = 0.1
RIVALS = 10
PROTOTYPES = 48  # of each class
PARTS = 4  # into which photographs are dealt
SIDE = 8  # patches down and across at most
STEPS = 6  # of k-means
ROUND = 127.0  # a prototype is kept in bytes: its direction is all that counts
BLOCK = 1 << 24  # similarities at once


def patch_sums(patches: Float[Tensor, "n m d"], labels: Int[Tensor, " n"], classes: int) -> Statistics:
    """Of patches of length 1: what b and S are made of."""
    flat = patches.flatten(0, 1)
    sums = patches.new_zeros(classes, patches.shape[2]).index_add_(0, labels, patches.sum(1))
    counts = patches.shape[1] * labels.bincount(minlength=classes).double()
    return Statistics(counts, sums.double(), (flat.T @ flat).double())


class PatchFrame(NamedTuple):
    """Where patches are compared."""

    centre: Float[Tensor, " d"]
    whiten: Float[Tensor, "d d"]

    @classmethod
    def of(cls, sums: Statistics) -> Self:
        """b and W, of the classes that have photographs."""
        has = sums.counts > 0
        means = sums.sums[has] / sums.counts[has].unsqueeze(1)
        within = sums.moment - sums.sums[has].T @ means
        within = within / (sums.counts.sum() - has.sum()).clamp(min=1)
        floor = 1e-6 * sums.moment.diagonal().mean() / sums.counts.sum()  # all patches may be equal
        sphere = within.diagonal().mean().clamp(min=float(floor))
        spectrum, basis = torch.linalg.eigh(within)
        spectrum = (1 - SPHERE) * spectrum.clamp(min=0) + SPHERE * sphere
        return cls(means.mean(0).float(), (basis / spectrum.sqrt()).float())

    def place(self, patches: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        """v, of û."""
        return F.normalize((patches - self.centre) @ self.whiten, dim=-1)


class Patches(NamedTuple):
    """What tells the classes by parts of images."""

    centre: Float[Tensor, " d"]
    whiten: Float[Tensor, "d d"]
    prototypes: Int8[Tensor, "k p d"]
    """of any length; a class of few has its first one several times"""
    sources: Int[Tensor, "k p 2"]
    """the photograph and the patch of it that is most like the prototype"""
    spread: Float[Tensor, ""]
    """of P over the classes: E = P / spread has no other scale"""
    held_out: Float[Tensor, "n k"]
    """E_c of each photograph by the other parts, in half precision"""

    def scores(self, images: Seen) -> Float[Tensor, "b k"]:
        """E_c"""
        assert images.patches is not None
        return self.spoken_for(images.patches).sum(1)

    def slopes(self, centre: Float[Tensor, " d"]) -> Float[Tensor, "k d"]:
        """0: the image's own feature says nothing here."""
        return centre.new_zeros(len(self.prototypes), len(centre))

    def closeness(self, scores: Float[Tensor, "b k"]) -> None:
        return None

    def similar(self, patches: Float[Tensor, "b m d"]) -> Float[Tensor, "b m k p"]:
        """v·p"""
        classes, each = self.prototypes.shape[:2]
        prototypes = F.normalize(self.prototypes.flatten(0, 1).float(), dim=-1)
        placed = PatchFrame(self.centre, self.whiten).place(regions(patches))
        return (placed @ prototypes.T).unflatten(-1, (classes, each))

    def spoken_for(self, patches: Float[Tensor, "b m d"]) -> Float[Tensor, "b m k"]:
        """What each patch adds to E_c of its image."""
        best = self.best(patches)
        return spoken_for(best) / best.shape[1] / self.spread

    def best(self, patches: Float[Tensor, "b m d"]) -> Float[Tensor, "b m k"]:
        """s_c(v); of a class without prototypes that of the class least like it."""
        at_once = max(1, BLOCK // (patches.shape[1] * self.prototypes.shape[:2].numel()))
        parts = [patches] if torch.compiler.is_exporting() else patches.split(at_once)
        best = torch.cat([self.similar(part).amax(-1) for part in parts])
        return torch.where(self.sources[:, 0, 0] < 0, best.amin(-1, keepdim=True), best)


def regions(patches: Float[Tensor, "b m d"]) -> Float[Tensor, "b n d"]:
    """û, of a square grid of more than `SIDE` patches a side the means of squares of them."""
    side = math.isqrt(patches.shape[1])
    patches = patches.float()
    if side > SIDE and side * side == patches.shape[1]:
        grid = patches.unflatten(1, (side, side)).permute(0, 3, 1, 2)
        patches = F.avg_pool2d(grid, -(-side // SIDE), ceil_mode=True).flatten(2).mT
    return F.normalize(patches, dim=-1)


def spoken_for(best: Float[Tensor, "*n k"]) -> Float[Tensor, "*n k"]:
    """max(0, s_c − s_(r))"""
    place = min(RIVALS, best.shape[-1] - 1)
    return (best - best.topk(place + 1, dim=-1).values[..., place:]).clamp(min=0)


def clusters(patches: Float[Tensor, "n d"], count: int) -> tuple[Float[Tensor, "p d"], Int[Tensor, " p"]]:
    """Spherical k-means of û from evenly chosen ones: the means, and which patch is most like each."""
    if len(patches) <= count:
        return patches, torch.arange(len(patches), device=patches.device)
    means = patches[torch.linspace(0, len(patches) - 1, count, device=patches.device).long()]
    for step in range(STEPS):
        similar = patches @ means.T
        near = similar.argmax(1)
        sums = torch.zeros_like(means).index_add_(0, near, patches)
        empty = near.bincount(minlength=count).unsqueeze(1) == 0  # such stay where they are
        means = torch.where(empty, means, sums if step == STEPS - 1 else F.normalize(sums, dim=-1))
    own = near.unsqueeze(1) == torch.arange(count, device=near.device)
    like = torch.where(own, similar, similar - 4).argmax(0)
    return means / near.bincount(minlength=count).clamp(min=1).unsqueeze(1), like


class PatchPart(NamedTuple):
    """Photographs of one part, as what was made of them alone."""

    sums: Statistics
    means: list[Float[Tensor, "p d"]]
    """of each class, in the space of û; none of a class without photographs"""
    sources: list[Int[Tensor, "p 2"]]

    @classmethod
    def of(
        cls,
        patches: Float[Tensor, "n m d"],
        labels: Int[Tensor, " n"],
        rows: Int[Tensor, " r"],
        classes: int,
        count: int,
    ) -> Self:
        """Of some of the photographs; patches of half precision are widened a class at a time."""
        found = []
        sums = patch_sums(regions(patches[:0]), labels[:0], classes)
        for label in range(classes):
            own = rows[labels[rows] == label]
            several = regions(patches[own])
            sums = sums.merged(patch_sums(several, labels[own], classes))
            means, like = clusters(several.flatten(0, 1), count)
            each = several.shape[1]
            found.append((means, torch.stack([own[like // each], like % each], dim=1)))
        return cls(sums, [means for means, _ in found], [sources for _, sources in found])


def patches_of(parts: list[PatchPart]) -> Patches:
    """The expert that rests on these parts, its spread not known yet."""
    frame = PatchFrame.of(reduce(Statistics.merged, (part.sums for part in parts)))
    means = [torch.cat(each) for each in zip(*(part.means for part in parts), strict=True)]
    sources = [torch.cat(each) for each in zip(*(part.sources for part in parts), strict=True)]
    most = max(1, *map(len, means))
    prototypes = frame.centre.new_zeros(len(means), most, frame.whiten.shape[1])
    places = torch.full((len(means), most, 2), -1, device=prototypes.device)
    for label, (own, origin) in enumerate(zip(means, sources, strict=True)):
        if len(own):  # else it stays 0, which is like nothing
            again = torch.arange(most, device=own.device) % len(own)
            prototypes[label], places[label] = frame.place(own)[again], origin[again]
    longest = prototypes.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    rounded = (ROUND / longest * prototypes).round().to(torch.int8)
    return Patches(*frame, rounded, places, frame.centre.new_ones(()), prototypes[0, :0])


def fit_patches(
    patches: Float[Tensor, "n m d"], labels: Int[Tensor, " n"], parts: Int[Tensor, " n"], classes: int
) -> Patches:
    """From photographs and the part that each is dealt into.

    Without other parts a photograph is judged by all other classes, and its own has nothing to say for it.
    """
    count = int(parts.max()) + 1
    each = -(-PROTOTYPES // count)
    made = [
        PatchPart.of(patches, labels, (parts == part).nonzero().squeeze(1), classes, each)
        for part in range(count)
    ]
    fitted = patches_of(made)
    held_out = torch.zeros(len(labels), classes, device=labels.device)
    for part in range(count):
        others = patches_of(made[:part] + made[part + 1 :]) if count > 1 else fitted
        at_once = max(1, BLOCK // (patches.shape[1] * classes * others.prototypes.shape[1]))
        for rows in (parts == part).nonzero().squeeze(1).split(at_once):
            best = others.best(patches[rows])
            if count == 1:
                own = labels[rows, None, None].expand(-1, best.shape[1], 1)
                best = best.scatter(2, own, best.amin(-1, keepdim=True))
            held_out[rows] = spoken_for(best).mean(1)
    spread = held_out.var(1).mean().sqrt() if classes > 1 else held_out.new_zeros(())
    spread = spread.clamp(min=1e-6)
    return fitted._replace(spread=spread, held_out=(held_out / spread).half())


def dealt(labels: Int[Tensor, " n"], groups: Int[Tensor, " n"] | None = None) -> Int[Tensor, " n"]:
    """The part of each photograph: of every class as many in each, as far as that goes; series whole."""
    if groups is None:
        return places_in_class(labels) % min(PARTS, int(labels.bincount().max()))
    parts = torch.zeros_like(labels)
    for part, rows in enumerate(series_folds(labels, groups, PARTS)):
        parts[rows] = part
    return parts


def compare(
    images: Float[Tensor, "n d"],
    patches: Float[Tensor, "n m e"],
    rows: Int[Tensor, " r"],
    labels: Int[Tensor, " r"],
    groups: Int[Tensor, " r"] | None = None,
) -> Patches:
    """`fit_patches` of some of the images, in an order of chance: sources are rows of all of them."""
    order = feature_keys(images[rows].float()).argsort(stable=True)
    few = [
        regions(patches[some].to(images.device)).half() for some in rows[order].to(patches.device).split(64)
    ]
    labels, groups = labels[order], None if groups is None else groups[order]
    made = fit_patches(torch.cat(few), labels, dealt(labels, groups), int(labels.max()) + 1)
    of, places = made.sources.unbind(-1)
    sources = torch.stack([torch.where(of < 0, of, rows[order][of]), places], dim=-1)
    return made._replace(sources=sources, held_out=made.held_out[order.argsort()])


def fit(photographs: Photographs) -> tuple[Patches, HeldOut]:
    """As it was made where the patches were."""
    made = photographs.patches
    assert made is not None
    return made, HeldOut(made.held_out.double())


EXPERT = Kind(fit, Patches, says="patches", usual=0.3, from_patches=True)
