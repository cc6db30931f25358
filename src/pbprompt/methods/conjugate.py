"""Prompts as prior, photographs as evidence: the closed-form classifier (see `core/conjugate.py`).

    p(c | x) = mean over (κ, T) of softmax_c( T h(x) L_c(x) )                     classes with photographs
    p(c | x) = (1 − g)·p(c | x) + g·softmax_c( ψ x·t_c )                          an image unlike any of them

A name (its sentences, or the prompts of any method that reads names) says where a class lies among images
(`core/text_map.py`), the labelled photographs correct it, and how much each counts is what left-out
photographs say (`core/evidence_choice.py`). Nothing is trained but such a prior method, and no validation
image is used. A class of which there is no photograph is known by its name (`core/names_alone.py`); g is the
gate for other domains (`core/domain_gate.py`).

Prior art: Gaussian discriminant analysis for CLIP (Wang et al., ICLR 2024), Tip-Adapter, ProKeR, LP++, CLAP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.core.conjugate import (
    KAPPA,
    Frame,
    covariance,
    distances,
    inflation,
    log_density,
    make_frame,
    posterior_means,
    tail_factor,
    text_slope,
)
from pbprompt.core.domain_gate import share_of_names
from pbprompt.core.evidence import Evidence, Kept, checked
from pbprompt.core.evidence_bank import EXTRA, asked_frame, make_rows, row_distances, row_logits, split_rows
from pbprompt.core.evidence_choice import Choice, choose, strata
from pbprompt.core.label_head import LabelHead, fit_label_head
from pbprompt.core.left_out import left_out_answers, with_names
from pbprompt.core.likelihood import mean_features, unit
from pbprompt.core.look_alikes import look_alikes
from pbprompt.core.names_alone import NamesAlone, background_density, known_odds
from pbprompt.core.statistics import Statistics
from pbprompt.core.text_map import TextMap, learn_text_map, move
from pbprompt.errors import InputError
from pbprompt.methods.abilities import (
    LearnsOn,
    LeavesOut,
    MultiLabel,
    NamesSources,
    Streams,
    TellsFamiliarity,
    can,
)
from pbprompt.methods.base import Batch, Method, MethodConfig, Terms, setting
from pbprompt.methods.exemplars import Memory
from pbprompt.methods.prior_reader import prior_reader, trained_as
from pbprompt.registry import register

TABLE = 1 << 24  # cells of a table of left-out photographs by classes
SAMPLES = 20  # draws of a prior's prompts, for the mean that κ and T are chosen with


@dataclass(frozen=True, kw_only=True)
class ConjugateConfig(MethodConfig):
    """Nothing is chosen by hand; training settings are those of the prior, where that is tuned."""

    prior: str = setting(
        "sentences",
        "what a name says: sentence (the data's), ensemble (general ones), sentences (both; none where the "
        "backbone reads no text), none, or a method that reads names, tuned first",
    )
    beside: str = setting(
        "none", "a method that is tuned too and whose probabilities are averaged in, or none"
    )
    gate: bool = setting(True, "leave images unlike the photographs to the names")


class View(NamedTuple):
    """How an image is looked at, in float32."""

    centre: Float[Tensor, " d"]
    whiten: Float[Tensor, "d d"]
    names: Float[Tensor, "c d"]
    """text features of length 1"""
    known: Float[Tensor, "n k"]
    """rows of all classes with photographs, at the usual κ and T = 1"""


@register("conjugate")
class Conjugate(Memory, LearnsOn, Streams, MultiLabel, LeavesOut, TellsFamiliarity, NamesSources):
    """Names place the classes, photographs move them; both in closed form."""

    Config = ConjugateConfig
    revision = 2
    tags = ("closed form",)
    needs_text = False
    stepwise = False
    takes_weights = True
    paper = "this library, after Wang et al., ICLR 2024"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"with-pbprompt": {"beside": "pbprompt"}}
    config: ConjugateConfig
    counts: Tensor
    sums: Tensor
    moment: Tensor
    kept: Tensor
    kept_labels: Tensor
    kept_weights: Tensor
    texts: Tensor
    choice_name_scale: Tensor
    choice_information: Tensor
    choice_nearest: Tensor

    def __init__(self, config: ConjugateConfig, backbone: Backbone) -> None:
        if config.prior == ConjugateConfig.prior and not backbone.reads_text:
            config = replace(config, prior="none")
        prior, beside = prior_reader(config.prior, backbone), prior_reader(config.beside, backbone)
        tuned = [method for method in (prior, beside) if method is not None and method.stepwise]
        if len(tuned) > 1:
            raise InputError("settings 'prior' and 'beside' both name a method to tune: choose one")
        if tuned:
            config = trained_as(tuned[0].config, config)
        super().__init__(config, backbone)
        self.prior, self.beside = prior, beside
        self._tuned = tuple(tuned)  # a tuple: it is part of the state already
        self.stepwise = bool(tuned)
        self.takes_new_names = prior is not None
        self.takes_weights = all(method.takes_weights for method in tuned)
        if self.stepwise:
            self.without |= {LearnsOn}
        if self.stepwise or beside is not None:
            self.without |= {LeavesOut, MultiLabel}
        if any(method.trains for method in self._readers):
            self.without |= {Streams}
        d = backbone.embed_dim
        for name, shape in {"counts": (0,), "sums": (0, d), "moment": (0, d), "texts": (0, d)}.items():
            self.register_buffer(name, torch.empty(shape, dtype=torch.float64))
        self.register_buffer("kept", torch.empty(0, d))
        self.register_buffer("kept_labels", torch.empty(0, dtype=torch.long))
        self.register_buffer("kept_weights", torch.empty(0, dtype=torch.float64))
        for name in Choice._fields:
            self.register_buffer(f"choice_{name}", torch.empty(0, dtype=torch.float64))

    # the prior

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        for method in self._readers:
            method.prepare(classes, template)

    @property
    def _readers(self) -> list[Method]:
        return [method for method in (self.prior, self.beside) if method is not None]

    def trainable(self) -> list[nn.Parameter]:
        return [parameter for method in self._tuned for parameter in method.trainable()]

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        if not self._tuned:
            return super().loss(batch, generator, examples)
        return self._tuned[0].loss(batch, generator, examples)

    def backward(self, terms: Terms) -> None:
        self._tuned[0].backward(terms)

    def epochs_for(self, shots: int) -> int:
        return self._tuned[0].epochs_for(shots) if self._tuned else 0

    def batch_for(self, examples: int) -> int:
        return self._tuned[0].batch_for(examples) if self._tuned else super().batch_for(examples)

    def counted_parameters(self) -> int:
        return sum(method.counted_parameters() for method in self._tuned)

    def _draws(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        """Text features of the classes, of length 1; zero where names say nothing."""
        if self.prior is None:
            return self.kept.new_zeros(1, len(self.classes), self.backbone.embed_dim)
        with torch.no_grad():
            return unit(self.prior.combine(self.prior.class_features(samples, generator)))

    # the evidence

    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        x = checked(images.global_)
        for method in self._readers:
            method.begin(images, labels, seed)
        self.remember()
        self._keep(Evidence.of(x, labels, len(self.classes), self.image_weights))

    def begin_with(self, evidence: Evidence) -> None:
        if not can(self, Streams):
            other = next(method.name for method in self._readers if method.trains)
            raise InputError(f"{self.name} with {other} needs all training images at once: leave {other} out")
        self.remember()
        self._keep(evidence)

    def finish(self) -> None:
        """Choose κ, T and the rest, once the prior is what it will be."""
        labels = self.labels_of_classes()
        own = [labels.index(label) for label in range(len(self.seen))]
        draws = self._draws(SAMPLES, torch.Generator().manual_seed(0))[:, own]
        self.texts.data = (draws[0] if len(draws) == 1 else mean_features(draws)).double()
        frame, _ = self._frame()
        rows = torch.arange(0, len(self.kept), max(1, -(-len(self.kept) * len(own) // TABLE)))
        images = self.kept.double() @ frame.basis
        alike = look_alikes(images, self.kept_labels, self.kept_weights).at(rows)
        scale, plain = float(self.backbone.logit_scale), self.texts @ frame.basis
        choice = choose(frame, images[rows], self.kept_labels[rows], scale, plain, alike)
        for name, value in choice._asdict().items():
            getattr(self, f"choice_{name}").data = value.to(self.counts).reshape(-1)

    def label_head(self, images: Encoded, targets: Float[Tensor, "n k"]) -> LabelHead:
        """One-vs-rest by the same statistics (`core/one_vs_rest.py`); its own state stays as it is."""
        draws = self._draws(SAMPLES, torch.Generator().manual_seed(0))
        return fit_label_head(checked(images.global_), targets, draws.mean(0))

    def learn(self, images: Encoded, labels: Int[Tensor, " n"]) -> None:
        """As if fitted on the former images and these; classes without a photograph so far get theirs."""
        if not can(self, LearnsOn):
            raise InputError(
                f"{self.name} with {self._tuned[0].name} is tuned on all its images: fit it again"
            )
        if not self.seen:
            self.begin(images, labels, seed=0)
            self.finish()
            return
        x = checked(images.global_)
        asked = self.classes
        new = [name for name, label in zip(asked, self.labels_of_classes(), strict=True) if label < 0]
        self.remember((*self.seen, *new))
        present = torch.tensor(self.labels_of_classes(), device=labels.device)[labels]
        former = Evidence(
            Statistics(self.counts, self.sums, self.moment),
            Kept.of(self.kept, self.kept_labels, self.kept_weights),
        )
        self._keep(former.merged(Evidence.of(x, present, len(self.seen))))
        if asked == self.seen:
            self.finish()
            return
        self.prepare(self.seen, self.template)  # the choice rests on all that was learned
        self.finish()
        self.prepare(asked, self.template)

    def _keep(self, evidence: Evidence) -> None:
        for name, value in evidence.statistics._asdict().items():
            getattr(self, name).data = value.to(self.counts.device)
        kept, device = evidence.kept, self.kept.device
        self.kept.data, self.kept_labels.data = kept.images.to(device), kept.labels.to(device)
        self.kept_weights.data = kept.weights.to(self.kept_weights)

    def _frame(self) -> tuple[Frame, TextMap | None]:
        """All classes ever learned, their texts moved to where the others' photographs put them."""
        known = (self.counts > 0).nonzero().squeeze(1)
        means = self.sums[known] / self.counts[known].unsqueeze(1)
        text_map = learn_text_map(means, self.counts[known], self.texts[known])
        texts = self._moved(text_map, self.texts, torch.arange(len(self.counts)).to(known))
        return make_frame(Statistics(self.counts, self.sums, self.moment), texts), text_map

    def _moved(
        self, text_map: TextMap | None, texts: Float[Tensor, "c d"], labels: Int[Tensor, " c"]
    ) -> Float[Tensor, "c d"]:
        """Texts of classes by their label, −1 for a new one; the map has those with photographs alone."""
        has = self.counts > 0
        rank = torch.where(has, has.cumsum(0) - 1, -1)
        return move(text_map, texts, torch.where(labels >= 0, rank[labels.clamp(min=0)], -1))

    def _choice(self) -> Choice:
        one = ("name_scale", "background", "offset", "information")
        values = {name: getattr(self, f"choice_{name}") for name in Choice._fields}
        return Choice(**{name: value.squeeze() if name in one else value for name, value in values.items()})

    # prediction

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c k"]:
        """The rows of `core/evidence_bank.py`, one bank a pair (κ, T).

        Behind them come the features of the method beside it, where there is one.
        """
        if not self.seen:
            raise InputError(f"{self.name} has no photographs yet: fit it on images first")
        (frame, text_map), choice = self._frame(), self._choice()
        sigma = covariance(frame)
        slope, by_name = text_slope(frame, sigma), _names(choice)
        draws = self._draws(samples, generator).double()
        beside = None
        if self.beside is not None:
            beside = self.beside.combine(self.beside.class_features(samples, generator))
            draws = draws.expand(max(len(draws), len(beside)), -1, -1)
        labels = torch.tensor(self.labels_of_classes(), device=self.counts.device)
        one = len(draws) == 1
        self._weights = choice.weight.float() if one else None
        kappa, temper = (choice.kappa, choice.temper) if one else strata(choice, len(draws))
        asked = [asked_frame(frame, self._moved(text_map, texts, labels), labels) for texts in draws]
        bank = self.kept.new_empty(len(kappa), len(labels), frame.width + EXTRA)
        for index, pair in enumerate(zip(kappa.tolist(), temper.tolist(), strict=True)):
            bank[index] = make_rows(asked[index % len(asked)], sigma, slope, by_name, *pair)
        plain = mean_features(draws) if len(draws) > 1 else draws[0]
        known = frame.known
        seen = frame._replace(means=frame.means[known], counts=frame.counts[known], texts=frame.texts[known])
        nearest = make_rows(seen, sigma, slope, by_name, KAPPA, 1.0)
        view = View(frame.basis @ frame.centre, frame.basis / sigma.sqrt(), plain, nearest)
        self._view = View(*(part.float() for part in view))
        self._all_seen = bool((labels >= 0).all() and (self.counts[labels] > 0).all())
        if beside is None:
            return bank
        return torch.cat([bank, beside.to(bank).expand(len(bank), -1, -1)], dim=2)

    def sample_weights(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, " s"] | None:
        """Of a prior without draws, the bank holds every pair (κ, T) with its weight."""
        return self._weights

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s b c"]:
        x = unit(images.global_).float()
        u = x - self._view.centre
        squared = (u @ self._view.whiten).square().sum(1, keepdim=True)
        near = row_distances(self._view.known, u, squared).amin(1, keepdim=True)
        logits = row_logits(self._own(features), u, squared, tail_factor(near, self.backbone.embed_dim))
        if self.config.gate and self._all_seen and len(self.choice_nearest) > 2:
            share = share_of_names(near.squeeze(1), self.choice_nearest, self.choice_information.squeeze())
            names = self.choice_name_scale.float() * x @ self._view.names.T
            logits = _mixed(logits, names, share.unsqueeze(1))
        if self.beside is None:
            return logits
        theirs = self.beside.sample_logits(images, features[..., self.backbone.embed_dim + EXTRA :])
        return _mixed(logits, theirs, logits.new_tensor(0.5))

    def _own(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c own"]:
        return features[..., : self.backbone.embed_dim + EXTRA]

    def left_out(self) -> "tuple[Float[Tensor, 'n c'], Int[Tensor, ' n']] | None":
        """Of photographs that are not their class's only ones; without these, nothing is known of how the
        model does. Classes known by their names alone take part as they do in predictions."""
        if not (can(self, LeavesOut) and len(self.choice_nearest)):
            return None
        labels = torch.tensor(self.labels_of_classes(), device=self.counts.device)
        draws = self._draws(SAMPLES, torch.Generator().manual_seed(0))
        texts = (draws[0] if len(draws) == 1 else mean_features(draws)).double()
        frame, text_map = self._frame()
        new = labels < 0
        wide = with_names(frame, self._moved(text_map, texts, labels)[new])
        columns = labels.clone()
        columns[new] = torch.arange(len(frame.counts), len(wide.counts), device=labels.device)
        kept = self.kept.double() @ frame.basis
        alike = look_alikes(kept, self.kept_labels, self.kept_weights)
        rows = torch.isin(self.kept_labels, labels).nonzero().squeeze(1)
        rows = rows[:: max(1, -(-len(rows) * len(wide.counts) // TABLE))]
        own = self.kept_labels[rows]
        said, near, _, several = left_out_answers(
            wide, self._choice(), kept[rows], own, columns, alike.at(rows)
        )
        if not several.any():
            return None
        if self.config.gate and bool((labels >= 0).all() and (self.counts[labels] > 0).all()):
            names = (self.choice_name_scale * kept[rows] @ (texts @ frame.basis).T).softmax(1)
            share = share_of_names(near.float(), self.choice_nearest, self.choice_information.squeeze())
            said = (1 - share.double()).unsqueeze(1) * said + share.double().unsqueeze(1) * names
        return said[several].float(), (own[several].unsqueeze(1) == labels).int().argmax(1)

    def familiarity(self, images: Encoded) -> Float[Tensor, " b"]:
        """(1 + #{odds_i ≤ odds}) / (n + 1): the rank of its log-odds among those of left-out photographs.

        All classes with photographs count, whichever are asked for.
        """
        frame, choice = self._frame()[0], self._choice()
        known, sigma = frame.known, covariance(frame)
        z = unit(images.global_).double() @ frame.basis
        u, kappa = z - frame.centre, float(choice.kappa[0])
        squared = distances(frame, sigma, text_slope(frame, sigma), z)
        sharp = float(choice.temper[0]) * self._tail(frame, squared(KAPPA))
        density = log_density(squared(kappa), frame.counts, kappa, frame.width)[:, known]
        ground = background_density((u.square() / sigma).sum(1), choice.background, frame.width)
        names = choice.name_scale * u @ (frame.texts[known] - frame.text_centre).T
        odds = known_odds(sharp.unsqueeze(1) * density, sharp * ground, names)
        rank = torch.searchsorted(choice.odds, odds, right=True)
        return ((1 + rank) / (len(choice.odds) + 1)).float()

    def _tail(self, frame: Frame, squared: Float[Tensor, "b k"]) -> Float[Tensor, " b"]:
        """h of images by their squared distances to all classes, at the usual κ."""
        near = (squared / inflation(frame.counts, KAPPA))[:, frame.known].amin(1)
        return tail_factor(near, frame.width)

    def prompts_of(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        return self._view.names.expand(len(features), -1, -1)

    def directions(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        return split_rows(self._own(features)).direction

    def sources(self, images: Encoded) -> dict[str, Float[Tensor, "b c"]]:
        """What name and photographs add to a class's logit, for the most probable κ and T."""
        (frame, text_map), choice = self._frame(), self._choice()
        sigma, kappa = covariance(frame), float(choice.kappa[0])
        slope = text_slope(frame, sigma)
        labels = torch.tensor(self.labels_of_classes(), device=self.counts.device)
        asked = asked_frame(frame, self._moved(text_map, self._view.names.double(), labels), labels)
        z = unit(images.global_).double() @ frame.basis
        u, iota = z - frame.centre, inflation(asked.counts, kappa)
        sharp = float(choice.temper[0]) * self._tail(frame, distances(frame, sigma, slope, z)(KAPPA))
        by_name, by_photographs = (
            sharp.unsqueeze(1) * (u / sigma) @ part.T / iota
            for part in posterior_means(asked, sigma, slope, kappa)
        )
        alone = choice.name_scale * u @ (asked.texts - frame.text_centre).T
        return {
            "name": torch.where(asked.counts > 0, by_name, alone),
            "photographs": torch.where(asked.counts > 0, by_photographs, 0.0),
        }


def _names(choice: Choice) -> NamesAlone:
    return NamesAlone(choice.name_scale, choice.background, choice.offset, choice.information)


def _mixed(
    logits: Float[Tensor, "s b c"], others: Float[Tensor, "*s b c"], share: Float[Tensor, "*b"]
) -> Float[Tensor, "s b c"]:
    """log of a mixture of two class distributions; `share`: that of the others."""
    return ((1 - share) * logits.softmax(-1) + share * others.softmax(-1)).clamp(min=1e-37).log()
