"""The default model, fitted: names as prior, photographs as evidence, and how far to trust each.

Experts (`experts/`) score every class, and what they say is added up:

    p(c | x) = mean over w of softmax_c Σ_k w_k E_k[x, c]

    gaussians    L_c(x)                  the class about its photographs and its name
    kernel       R_c(x)                  single photographs that look alike
    nearest      Q_c(x)                  the nearest photograph of the class
    names        e^scale x·(t_c − t̄)     the name alone, as zero-shot has it
    patches      P_c(x)                  parts of photographs that look alike, where these are compared

of each backbone, if there are several. Each expert answers every photograph as if it had not been there, with
as many of the other classes (`expert.py`), and the weights w are fitted to that (`weights.py`).

An image unlike all photographs (`novelty.py`), such as a drawing where they are photos, is left to the
names as far as they tell anything, g = I · unlike(x), I the share of ln K that names alone tell:

    p(c | x) ← (1 − g) p(c | x) + g softmax_c(ψ₀·E_names[x, c])

A class known by name alone joins the others at its odds against them (`answers.py`).
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.expert import Expert, HeldOutPhotographs, Kind, Photographs, Seen, held_out_by_series
from pbprompt.evidence.experts import EXPERTS
from pbprompt.evidence.novelty import HUGE, Novelty, fit_novelty, openness
from pbprompt.evidence.text_map import TextMap
from pbprompt.evidence.weights import Weights, combined, fit_trust, name_rows, names_alone

KEPT_ELSEWHERE = ("photographs", "labels", "classes", "views", "experts")  # no model saves them twice


class View(NamedTuple):
    """What one backbone knows."""

    experts: Mapping[str, Expert]
    photographs: Float[Tensor, "n d"]
    """those that were held out; behind them come those without a label"""
    text_map: TextMap
    moved_centre: Float[Tensor, " d"]
    """the mean of the moved names of the known classes"""
    centre: Float[Tensor, " d"]
    """b"""


class Posterior(NamedTuple):
    """All that an answer needs; nothing is decomposed any more."""

    views: Sequence[View]
    weights: Weights
    novelty: Novelty
    name_scale: Float[Tensor, " v"]
    """ψ₀, of each backbone's names"""
    information: Float[Tensor, ""]
    """I"""
    open: Float[Tensor, " n"]
    """of the photographs that were held out, how far each is open to a new name; −1e30 of those that cannot
    say"""

    @classmethod
    def saved(cls, views: int = 1, *, patches: bool = False) -> list[str]:
        """The names of `tensors`; `patches`: whether these are compared."""
        experts = {name: kind.made for name, kind in EXPERTS.items() if patches or not kind.from_patches}
        first = {**experts, **cls.__annotations__, **View.__annotations__}
        return [
            (f"{place}/" if place else "") + (f"{whole}/{part}" if part else whole)
            for place in range(views)
            for whole, kind in ({**experts, **View.__annotations__} if place else first).items()
            if whole not in KEPT_ELSEWHERE
            for part in getattr(kind, "_fields", ("",))
            if part not in KEPT_ELSEWHERE
        ]

    @property
    def labels(self) -> Int[Tensor, " n"]:
        """Of the photographs: those that were held out, and the likeliest of those without a label."""
        return next(each.labels for each in self.experts if hasattr(each, "labels"))

    @property
    def kinds(self) -> list[Kind]:
        return list(chain.from_iterable(kinds_of(self.views)))

    @property
    def experts(self) -> list[Expert]:
        return list(chain.from_iterable(view.experts.values() for view in self.views))

    def scores(self, *images: Seen) -> Float[Tensor, "e b k"]:
        """E of images, as each backbone sees them."""
        pairs = zip(self.views, images, strict=True)
        return torch.stack([each.scores(seen) for view, seen in pairs for each in view.experts.values()])

    def strangeness(self, scores: Float[Tensor, "e b k"]) -> Float[Tensor, " b"]:
        """F of images, from what the experts say of all known classes."""
        close = [each.closeness(table) for each, table in zip(self.experts, scores, strict=True)]
        known = [table for table in close if table is not None]
        return self.novelty.statistic(torch.stack(known), beyond(self.views))

    def by_name(self, scores: Float[Tensor, "e b k"]) -> Float[Tensor, "b k"]:
        """ψ₀·E of the names."""
        return combined(scores[name_rows(kinds_of(self.views))], self.name_scale.unsqueeze(0))[0]

    def names_alone(self, *images: Seen) -> Float[Tensor, "b k"]:
        """The same, of images."""
        names = [self.experts[row] for row in name_rows(kinds_of(self.views))]
        scores = torch.stack([each.scores(seen) for each, seen in zip(names, images, strict=True)])
        return combined(scores, self.name_scale.unsqueeze(0))[0]

    def mixed_with_names(
        self,
        logits: Float[Tensor, "s b k"],
        by_name: Float[Tensor, "b k"],
        looks: Float[Tensor, " b"],
    ) -> Float[Tensor, "s b k"]:
        """log of the class distributions, where images unlike the photographs (F) are left to the names."""
        share = (self.information.to(logits) * self.novelty.unlike(looks)).to(logits).unsqueeze(1)
        return ((1 - share) * logits.softmax(-1) + share * by_name.softmax(-1)).clamp(min=1e-37).log()

    def tensors(self) -> dict[str, Tensor]:
        """Flat, by names such as `kernel/bandwidth`, as `from_tensors` takes it; without photographs."""
        flat: dict[str, Tensor] = {}
        for place, (experts, *_) in enumerate(self.views):
            flat |= _flat({**experts, **self.views[place]._asdict()}, str(place or ""))
        return flat | _flat(self._asdict())

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        photographs: Sequence[Float[Tensor, "n _"]],
        labels: Int[Tensor, " n"],
        classes: int,
    ) -> Self:
        """With the photographs as each backbone sees them, and their labels."""
        views = []
        for place, images in enumerate(photographs):
            mine = _below(tensors, str(place)) if place else tensors
            known = {"photographs": images, "labels": labels, "classes": torch.arange(classes).to(labels)}
            experts = {}
            for name, kind in EXPERTS.items():
                if parts := _below(mine, name):
                    experts[name] = kind.made(
                        **parts, **{key: known[key] for key in known.keys() & kind.made._fields}
                    )
            text_map = TextMap(**_below(mine, "text_map"))
            views.append(View(experts, images, text_map, mine["moved_centre"], mine["centre"]))
        weights, novelty = Weights(**_below(tensors, "weights")), Novelty(**_below(tensors, "novelty"))
        if novelty.reference.ndim == 1:  # as models had it before 0.2: of the kernel, then of distances
            by_kernel, far = novelty.reference.view(2, 2)
            novelty = novelty._replace(reference=torch.stack([far * far.new_tensor([-1, 1]), by_kernel]))
        if len(novelty.odds) == 3:  # as models had it before 0.2: without ρ
            novelty = novelty._replace(odds=torch.cat([novelty.odds, novelty.odds.new_zeros(1)]))
        scale = tensors["name_scale"].reshape(-1)
        return cls(views, weights, novelty, scale, tensors["information"], tensors["open"])


def _flat(parts: Mapping[str, Any], name: str = "") -> dict[str, Tensor]:
    flat: dict[str, Tensor] = {}
    for key, part in parts.items():
        whole = f"{name}/{key}" if name else key
        if key not in KEPT_ELSEWHERE:
            flat |= {whole: part} if isinstance(part, Tensor) else _flat(part._asdict(), whole)
    return flat


def _below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}/"): part for key, part in tensors.items() if key.startswith(f"{name}/")}


def kinds_of(views: Sequence[View]) -> list[list[Kind]]:
    """Of the experts of each backbone."""
    return [[EXPERTS[name] for name in view.experts] for view in views]


def beyond(views: Sequence[View]) -> list[bool]:
    """Of the experts that tell how near an image is, whether only distance tells."""
    every = chain.from_iterable(kinds_of(views))
    return [kind.only_beyond for kind in every if kind.only_beyond is not None]


def fit_posterior(*photographs: Photographs) -> tuple[Posterior, HeldOutPhotographs]:
    """From labelled photographs as each backbone sees them."""
    fitted = [
        {name: kind.fit(each) for name, kind in EXPERTS.items() if each.patches or not kind.from_patches}
        for each in photographs
    ]
    held_out = [held for experts in fitted for _, held in experts.values()]
    views = [
        View(
            {name: expert for name, (expert, _) in experts.items()},
            seen.images,
            seen.placed[0],
            seen.placed[1].mean(0),
            seen.statistics.means.mean(0),
        )
        for experts, seen in zip(fitted, photographs, strict=True)
    ]
    left, groups = HeldOutPhotographs.of(photographs[0], held_out), photographs[0].groups
    if groups is not None:
        left = held_out_by_series(photographs, kinds_of(views), left, groups)
    return judged(views, photographs, left)


def judged(
    views: Sequence[View], photographs: Sequence[Photographs], left: HeldOutPhotographs, absorbed: float = 0.0
) -> tuple[Posterior, HeldOutPhotographs]:
    """The experts with weights and all that tells the unknown, from held-out photographs, whose F is then
    known too. `absorbed`: how many photographs count beside those with a label (`unlabelled.py`).
    """
    kinds = kinds_of(views)
    name_scale, information = names_alone(kinds, left)
    weights = fit_trust(kinds, left, name_scale, information, photographs[0].statistics.counts, absorbed)
    logits = combined(left.scores, weights.draws(1))[0]
    cosines = [
        seen.scale * (seen.images - view.centre) @ (seen.placed[1] - view.moved_centre).T
        for view, seen in zip(views, photographs, strict=True)
    ]
    by_name = combined(left.scores[name_rows(kinds)], name_scale.unsqueeze(0))[0]
    novelty = fit_novelty(left, beyond(views), logits, torch.stack(cosines).mean(0), by_name)
    looks = novelty.statistic(left.closeness, beyond(views))
    answered = left.several if left.several.any() else torch.ones_like(left.several)
    open_ = torch.where(answered, openness(novelty, looks, logits), -HUGE)
    return Posterior(views, weights, novelty, name_scale, information, open_), left._replace(looks=looks)
