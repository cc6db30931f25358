"""The default model, fitted: names as prior, photographs as evidence (`posterior.py`). Nothing in it changes.

    Shown ──fit_evidence──▶ FittedEvidence ──▶ predict, left_out, sources, for_classes, tensors

What learns more, or has its classes called otherwise, is another `Shown` and a fit to that. It knows neither
a backbone nor a file: `conjugate.py` has images read, `EvidenceClassifier` takes embeddings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.evidence.answers import Answers
from pbprompt.evidence.evidence import Evidence, Kept, Statistics, apart, feature_keys, joined
from pbprompt.evidence.expert import HeldOutPhotographs, Seen
from pbprompt.evidence.experts.patches import Patches
from pbprompt.evidence.posterior import Posterior, fit_posterior
from pbprompt.evidence.shown import Shown, Sight
from pbprompt.evidence.unlabelled import IN_KERNEL, PER_CLASS, Absorbed, absorb, absorb_by_names, seen
from pbprompt.learners.fitted import LeftOut
from pbprompt.learners.memory import labels_among
from pbprompt.learners.predictive import Predictive
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Encoded

DRAWS = 16  # of the experts' weights
LEAST_PATCHES = 4  # of an image, where parts of it are compared
SAVED_AS = {  # since revision 3, of the posterior's tensors
    "nearest/bandwidth": "fitted_kernel_bandwidth",
    "names/directions": "fitted_names",
}
CENTRE, OF_GAUSSIANS = "fitted_centre", "fitted_gaussians_centre"


@dataclass(frozen=True, eq=False)
class FittedEvidence:
    """A `Fitted`: what the experts make of photographs and names, asked for some classes.

    Example:
        >>> texts = torch.eye(2, 8)
        >>> read = lambda names: texts[[["cat", "dog"].index(name) for name in names]]
        >>> images = texts.repeat(3, 1) + 0.1
        >>> shown = Shown.nothing(8).with_more(images, torch.tensor([0, 1] * 3), ["cat", "dog"])
        >>> said = fit_evidence(shown, Sight((8,), (100.0,), read)).predict(Encoded(images, images[:, None]))
        >>> [one.label for one in said][:2]
        ['cat', 'dog']
    """

    shown: Shown
    fitted: Mapping[str, Tensor]
    """the posterior's tensors"""
    pool: Float[Tensor, "p d"]
    """photographs without a label that stand among those with one"""
    pool_labels: Int[Tensor, " p"]
    """their likeliest ones"""
    sight: Sight
    classes: tuple[Any, ...]
    left: HeldOutPhotographs | None = None
    """None: made when it is first asked for"""
    absorbed: Absorbed | None = None
    """what became of images without a label; None: there were none, or it was loaded"""

    # what is saved

    def tensors(self) -> dict[str, Tensor]:
        """All there is to save, but the names."""
        sums, kept = self.shown.evidence
        series = {} if self.shown.groups is None else {"kept_groups": self.shown.groups}
        fitted = {saved_as(name): value for name, value in self.fitted.items()}
        if torch.equal(fitted[CENTRE], fitted[OF_GAUSSIANS]):  # but beside images without a label
            del fitted[CENTRE]
        return {
            **sums._asdict(),
            "kept": kept.images,
            "kept_labels": kept.labels,
            "kept_weights": kept.weights,
            **series,
            "pool": self.pool,
            "pool_labels": self.pool_labels,
            **fitted,
        }

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], names: Sequence[Any], sight: Sight, classes: Sequence[Any]
    ) -> Self:
        """What `tensors` gave, whether its series were told or not."""
        tensors = {CENTRE: tensors[OF_GAUSSIANS], **tensors}
        k, wide, n, p = len(names), sum(sight.widths), len(tensors["kept"]), len(tensors["pool"])
        shapes = {"counts": (k,), "sums": (k, wide), "moment": (wide, wide), "kept": (n, wide)}
        shapes |= {"kept_labels": (n,), "kept_weights": (n,), "pool": (p, wide), "pool_labels": (p,)}
        if any(tuple(tensors[name].shape) != shape for name, shape in shapes.items()):
            raise ValueError(f"not of {k} classes and {wide} dimensions")
        sums = Statistics(*(tensors[name].double() for name in Statistics._fields))
        kept = Kept.of(tensors["kept"], tensors["kept_labels"], tensors["kept_weights"])
        groups = tensors.get("kept_groups")
        compares = len(tensors.get("fitted_patches_prototypes", ())) > 0
        names_of = Posterior.saved(len(sight.widths), patches=compares)
        fitted = {name: tensors[saved_as(name)] for name in names_of}
        patches = Patches(*(fitted[f"patches/{name}"] for name in Patches._fields)) if compares else None
        series = groups if groups is not None and len(groups) else None
        shown = Shown(tuple(names), Evidence(sums, kept), series, patches)
        return cls(shown, fitted, tensors["pool"], tensors["pool_labels"], sight, tuple(classes))

    def rounded(self) -> Self:
        """In float32, as it is saved: the same answers to the last bit as after a load."""
        # in the order of a file: products of what is loaded are then the same
        fitted = {
            name: (value.float() if value.dtype == torch.float64 else value).contiguous()
            for name, value in self.fitted.items()
        }
        return replace(self, fitted=fitted, pool=self.pool.float())

    # who is asked about

    def for_classes(self, names: Sequence[Any]) -> Self:
        """Asked about these: known ones, and others by their names alone."""
        return replace(self, classes=tuple(names), left=self.__dict__.get("held_out", self.left))

    @cached_property
    def labels(self) -> Int[Tensor, " c"]:
        """Of each class that is asked about its label among all, −1 of those known by name alone."""
        device = self.shown.evidence.kept.labels.device
        return torch.tensor(labels_among(self.shown.names, self.classes), device=device)

    @cached_property
    def posterior(self) -> Posterior:
        known, kept = self.shown.known, self.shown.evidence.kept
        rows = self.shown.judged
        photographs = torch.cat([kept.images[rows].to(self.pool), self.pool])
        labels = torch.searchsorted(known, torch.cat([kept.labels[rows], self.pool_labels]))
        return Posterior.from_tensors(self.fitted, apart(photographs, self.sight.widths), labels, len(known))

    @cached_property
    def answers(self) -> Answers:
        """The posterior for the classes that are asked about."""
        known, labels = self.shown.known, self.labels
        place = torch.searchsorted(known, labels.clamp(min=0)).clamp(max=len(known) - 1)
        columns = torch.where((labels >= 0) & (known[place] == labels), place, -1)
        texts = self.sight.read([self.classes[at] for at in (columns < 0).nonzero().squeeze(1).tolist()])
        return Answers(self.posterior, columns, apart(texts, self.sight.widths), self.sight.scales)

    def class_counts(self) -> Float[Tensor, " c"]:
        """How many photographs each class has."""
        return torch.where(self.labels >= 0, self.shown.evidence.statistics.counts[self.labels], 0.0)

    # predictions

    def views(self, images: Encoded) -> list[Seen]:
        """Images as each backbone sees them."""
        patches = enough_patches(images) if self.shown.patches else None
        parts = images.global_.split(list(self.sight.widths), dim=1)
        return [Seen(unit(part).to(self.pool), patches) for part in parts]

    def scored(self, views: Sequence[Seen]) -> tuple[Float[Tensor, "e b k"], Float[Tensor, " b"]]:
        """What the experts say of images, and F."""
        scores = self.posterior.scores(*views)
        return scores, self.posterior.strangeness(scores)

    def averaged(
        self, views: Sequence[Seen], scores: Float[Tensor, "e b k"], looks: Float[Tensor, " b"]
    ) -> Float[Tensor, "b c"]:
        """p, over draws of the weights; `looks`: F."""
        draws = self.posterior.weights.draws(DRAWS).to(scores)
        return self.answers.logits(views, scores, looks, draws).softmax(-1).mean(0)

    def bank(self, samples: int = DRAWS) -> Float[Tensor, "s c e"]:
        """Draws of the experts' weights, the same for every class; the classes themselves are looked up."""
        answers = self.answers  # made now: an export traces what is left to do
        draws = answers.posterior.weights.draws(samples)
        return draws.unsqueeze(1).expand(-1, len(self.classes), -1)

    def logits(self, images: Encoded, bank: Float[Tensor, "s c e"]) -> Float[Tensor, "s b c"]:
        """Under each draw of the weights."""
        views = self.views(images)
        return self.answers.logits(views, *self.scored(views), bank[:, 0])

    def answer(
        self, images: Encoded, bank: Float[Tensor, "s c e"]
    ) -> tuple[Float[Tensor, "s b c"], Float[Tensor, " b"] | None]:
        """Logits and familiarity."""
        views = self.views(images)
        scores, looks = self.scored(views)
        logits = self.answers.logits(views, scores, looks, bank[:, 0])
        return logits, self.posterior.novelty.familiarity(looks)

    def familiarity(self, images: Encoded) -> Float[Tensor, " b"] | None:
        """All classes with photographs count, whichever are asked about."""
        return self.posterior.novelty.familiarity(self.scored(self.views(images))[1])

    def predict(self, images: Encoded) -> Predictive:
        logits, familiar = self.answer(images, self.bank())
        return replace(Predictive.of_logits(logits).of_classes(self.classes), familiarity=familiar)

    def sources(self, images: Encoded) -> dict[str, Float[Tensor, "b c"]]:
        """What the class's mean, single photographs and the name add to a class's logit, by the best weights;
        of a name without photographs, what all photographs say against it."""
        return self.answers.sources(self.views(images), self.sight.named)

    def found_by_name(self) -> float | None:
        """Share of classes left out whole, photographs and all, that their name alone was given images of."""
        found = self.posterior.novelty.found
        return float(found) if len(found) else None

    def told_by_names(self) -> float | None:
        return float(self.posterior.information) if self.sight.reads_names else None

    @property
    def compares(self) -> bool:
        return self.shown.patches is not None

    def parts(self, images: Encoded) -> tuple[Float[Tensor, "b m c"], Int[Tensor, "b m c 2"]]:
        """What each patch adds to a class's logit, and the photograph and the place in it most like it."""
        made, answers = self.shown.patches, self.answers
        assert made is not None
        adds = answers.posterior.weights.best[-1] * made.spoken_for(images.patches)
        near = made.similar(images.patches).argmax(-1)
        sources = made.sources[torch.arange(near.shape[-1], device=near.device), near]
        new = (0, answers.new)  # of names without photographs there are no patches
        adds = F.pad(adds[..., answers.columns], new)[..., answers.order]
        return adds, F.pad(sources[:, :, answers.columns], (0, 0, *new), value=-1)[:, :, answers.order]

    # photographs that are held out

    @cached_property
    def held_out(self) -> HeldOutPhotographs:
        if self.left is not None:
            return self.left
        evidence, pools = self.shown.photographs(self.sight), apart(self.pool, self.sight.widths)
        return absorb(evidence, pools).left if len(self.pool) else fit_posterior(*evidence)[1]

    def held_out_answers(self, rows: Int[Tensor, " n"] | slice = slice(None)) -> Float[Tensor, "n c"]:
        """p of each, by the model without it. Classes known by their names alone take part as they do in
        predictions."""
        left, kept = self.held_out, self.shown.evidence.kept
        views = apart(kept.images[self.shown.judged[rows]].double(), self.sight.widths)
        return self.averaged([Seen(part) for part in views], left.scores[:, rows], left.looks[rows])

    def left_out(self) -> LeftOut | None:
        """The held-out photographs that can be judged for the classes asked about: they are of these, and not
        their class's only ones. Without any nothing is known of how the model does."""
        kept, groups = self.shown.evidence.kept, self.shown.judged_groups
        if not len(kept.labels) or len(self.shown.known) < 2:
            return None
        own = kept.labels[self.shown.judged]
        rows = (self.held_out.several & torch.isin(own, self.labels)).nonzero().squeeze(1)
        if not len(rows):
            return None
        places = (own[rows].unsqueeze(1) == self.labels).int().argmax(1)
        familiar = self.posterior.novelty.familiarity(self.held_out.looks[rows])
        series = None if groups is None else groups[rows]
        return LeftOut(self.held_out_answers(rows), places, series, familiar)


def saved_as(name: str) -> str:
    """Of a tensor of the posterior."""
    return SAVED_AS.get(name, f"fitted_{name.replace('/', '_')}")


def fit_evidence(
    shown: Shown,
    sight: Sight,
    classes: Sequence[Any] | None = None,
    pool: Float[Tensor, "m d"] | None = None,
    before: Float[Tensor, "p d"] | None = None,
    in_kernel: int = IN_KERNEL,
) -> FittedEvidence:
    """To photographs and names, asked about these unless others are given.

    `pool`: features of length 1 without a label; `before`: those of an earlier fit, which are weighed anew.
    `in_kernel`: how many of them vouch for others (`unlabelled.absorb`).
    """
    parts = [part for part in (pool, before) if part is not None and len(part)]
    found = None
    if not parts:
        posterior, left = fit_posterior(*shown.photographs(sight))
    else:
        every = torch.cat(parts)
        order = feature_keys(every).argsort(stable=True)  # of chance, and the same for the same images
        order = order[: seen(len(shown.names))]
        looked_at = apart(every[order], sight.widths)
        if len(shown.known):
            found = absorb(shown.photographs(sight), looked_at, in_kernel)
        else:
            check_names_alone(len(every), len(shown.names))
            texts = apart(sight.read(shown.names), sight.widths)
            found, statistics = absorb_by_names(texts, sight.scales, looked_at)
            shown = shown._replace(evidence=Evidence(statistics, shown.evidence.kept))
        posterior, left = found.posterior, found.left
        familiar = torch.zeros(len(every), dtype=torch.bool, device=every.device)
        familiar[order] = found.familiar
        found = found._replace(familiar=familiar[: 0 if pool is None else len(pool)])
    fitted = posterior.tensors()
    photographs, labels = joined([view.photographs for view in posterior.views]), posterior.labels
    rest = slice(len(shown.judged), None)
    pooled, pool_labels = photographs[rest], shown.known[labels[rest]]
    names = tuple(shown.names if classes is None else classes)
    return FittedEvidence(shown, fitted, pooled, pool_labels, sight, names, left, found)


def check_names_alone(images: int, classes: int) -> None:
    """Refuse to fit so few images without a label to names, where no image has one."""
    if images < PER_CLASS * classes:
        raise InputError(
            f"{images} images without labels are too few for {classes} classes, of which nothing else is "
            f"known: give {PER_CLASS * classes} or more, label some, or use zero-shot"
        )


def enough_patches(images: Encoded) -> Float[Tensor, "b m e"]:
    """Their patches; refused where there are next to none."""
    if images.patches.shape[1] < LEAST_PATCHES:
        raise InputError(
            f"patches are compared, and these images have {images.patches.shape[1]} each: give images, or "
            "features with patches, of a backbone that has some"
        )
    return images.patches
