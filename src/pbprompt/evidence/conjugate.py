"""Names as prior, photographs as evidence: the closed-form classifier (`posterior.py`).

A name (its sentences) says where a class lies among images, the labelled photographs correct it, and how much
names, class means and single photographs count is what left-out photographs say. Nothing is trained, and no
validation image is used. A class of which there is no photograph is known by its name.

    p(c | x) = mean over w of softmax_c Σ_k w_k E_k[x, c]        E_k: what an expert, such as names, says

Prior art: Gaussian discriminant analysis for CLIP (Wang et al., ICLR 2024), Tip-Adapter, ProKeR, LP++, CLAP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.evidence.answers import Answers
from pbprompt.evidence.evidence import Evidence, Kept, apart, feature_keys, joined, unit_features
from pbprompt.evidence.expert import HeldOutPhotographs, Photographs, Seen, judged_rows
from pbprompt.evidence.experts.patches import Patches, compare
from pbprompt.evidence.label_head import LabelHead, fit_label_head
from pbprompt.evidence.posterior import Posterior, fit_posterior
from pbprompt.evidence.statistics import Statistics
from pbprompt.evidence.unlabelled import IN_KERNEL, PER_CLASS, Absorbed, absorb, absorb_by_names, seen
from pbprompt.learners.memory import Memory
from pbprompt.learners.method import MethodConfig, setting
from pbprompt.learners.zeroshot import Templates, ZeroShot, ZeroShotConfig
from pbprompt.registry import register
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone, Encoded

SENTENCES: Mapping[str, Templates] = {"sentence": "single", "ensemble": "ensemble", "sentences": "both"}
LEFT_OUT_DRAWS = 16  # of the experts' weights
LEAST_PATCHES = 4  # of an image, where parts of it are compared
SAVED_AS = {  # since revision 3, of the posterior's tensors
    "centre": "fitted_gaussians_centre",
    "nearest/bandwidth": "fitted_kernel_bandwidth",
    "names/directions": "fitted_names",
}


@dataclass(frozen=True, kw_only=True)
class ConjugateConfig(MethodConfig):
    """What the names say; `docs/readings-conjugate.md` has the constants of the model, and what they do."""

    prior: str = setting(
        "sentences",
        "what a name says: sentence (the data's), ensemble (general ones), sentences (both) or none; none "
        "where the backbone reads no text",
    )
    descriptions: tuple[tuple[str, ...], ...] = setting(
        (), "a class and sentences that say what it is, in place of those about its name"
    )

    patches: bool = setting(
        False,
        "compare parts of photographs too: better on fine differences, slower, and all photographs at once",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior not in (*SENTENCES, "none"):
            raise InputError(f"setting 'prior' is {self.prior!r}: use {', '.join(SENTENCES)} or none")


@register("conjugate")
class Conjugate(Memory):
    """Names place the classes, photographs move them; both in closed form."""

    Config = ConjugateConfig
    revision = 5
    tags = ("closed form",)
    takes_several = True
    needs_text = False
    takes_weights = True
    paper = "this library, after Wang et al., ICLR 2024"
    config: ConjugateConfig
    absorbed: Absorbed | None = None  # what became of images without a label; None: there were none

    def __init__(self, config: ConjugateConfig, backbone: Backbone) -> None:
        if not backbone.reads_text:
            if config.prior not in (ConjugateConfig.prior, "none"):
                raise InputError(
                    f"{backbone.config.name} is an image tower that reads no text: leave the setting "
                    "'prior' as it is"
                )
            config = replace(config, prior="none")
        if config.patches and len(backbone.towers) > 1:
            raise InputError("patches are compared by one backbone: give one, or leave the setting out")
        super().__init__(config, backbone)
        sentences = SENTENCES.get(config.prior)
        told = ZeroShotConfig(templates=sentences or "single", descriptions=config.descriptions)
        self.readers = [
            ZeroShot(told, tower) if sentences and tower.reads_text else None for tower in backbone.towers
        ]
        self.takes_new_names = any(self.readers)
        self.fitted = {
            name: SAVED_AS.get(name, f"fitted_{name.replace('/', '_')}")
            for name in Posterior.saved(len(backbone.towers), patches=config.patches)
        }
        self.of_patches = {
            name.removeprefix("patches/"): saved
            for name, saved in self.fitted.items()
            if name.startswith("patches/")
        }
        d = backbone.embed_dim
        self.counts = nn.Buffer(torch.empty(0, dtype=torch.float64))
        self.sums, self.moment = (nn.Buffer(torch.empty(0, d, dtype=torch.float64)) for _ in range(2))
        self.kept, self.kept_labels = nn.Buffer(torch.empty(0, d)), nn.Buffer(torch.empty(0).long())
        self.kept_weights = nn.Buffer(torch.empty(0, dtype=torch.float64))
        self.kept_groups = nn.Buffer(torch.empty(0).long())  # the series of each; empty: each is by itself
        # without a label, in the kernel; the labels are the likeliest ones
        self.pool, self.pool_labels = nn.Buffer(torch.empty(0, d)), nn.Buffer(torch.empty(0).long())
        for saved in self.fitted.values():
            self.register_buffer(saved, torch.empty(0))
        self._left: HeldOutPhotographs | None = None
        self._answers: Answers | None = None  # for the present classes
        self._beside: Tensor | None = None
        self._places = torch.arange(0)  # of them, among those that were given and those of before
        self._asked = 0  # how many were given
        self._in_kernel = IN_KERNEL

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        self._answers = None

    # the evidence

    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        x = unit_features(images.global_, self.widths)
        self.begin_with(Evidence.of(x, labels, len(self.classes), self.image_weights))
        kept = Kept.of(x, torch.arange(len(x)).to(labels)).labels
        if self.image_groups is not None:
            self.kept_groups.data = self.image_groups.to(labels)[kept]
        if self.config.patches:
            rows = kept[judged_rows(len(kept), len(self._known()))]
            known = torch.searchsorted(self._known(), labels[rows])
            self._keep_patches(compare(x, _compared(images), rows, known, self._judged_groups()))

    def begin_with(self, evidence: Evidence) -> None:
        self.remember()
        self._keep(evidence)

    def beside(self, images: Float[Tensor, "m d"], *, asked: bool = False) -> None:
        if self.seen and not len(self.kept):
            raise InputError(
                "the model was fitted without any label, so that nothing can judge more images: fit it again "
                "with all of them unlabelled, or with a few labels"
            )
        if self.config.patches and len(images):
            raise InputError(
                "images without a label have no part where patches are compared: leave them out, or fit "
                "without the setting 'patches'"
            )
        self._in_kernel = 0 if asked else IN_KERNEL
        features = torch.cat([unit_features(images.to(self.kept), self.widths).float(), self.pool])
        order = feature_keys(features).argsort(stable=True)  # of chance, and the same for the same images
        self._beside, self._places, self._asked = features[order], order, len(images)

    def begin_by_names(self) -> None:
        """Names place the classes, images without a label move them."""
        if not self.takes_new_names or self._beside is None or len(self.classes) < 2:
            raise InputError(
                "without labels it takes two names or more, a backbone that reads them, and images"
            )
        if len(self._beside) < PER_CLASS * len(self.classes):
            raise InputError(
                f"{len(self._beside)} images without labels are too few for {len(self.classes)} classes, of "
                f"which nothing else is known: give {PER_CLASS * len(self.classes)} or more, or use zero-shot"
            )
        self.remember()
        self._keep(Evidence.of(self._beside[:0], self.kept_labels[:0], len(self.classes)))

    def finish(self) -> None:
        """Fit, once all photographs are there."""
        self.absorbed = self._answers = None
        if self._beside is None or not len(self._beside):
            posterior, self._left = fit_posterior(*self._known_evidence())
        else:
            looked_at = self._beside[: seen(len(self.seen))]
            found = self._absorbed(looked_at)
            familiar = torch.zeros_like(self._places, dtype=torch.bool)
            familiar[self._places[: len(looked_at)]] = found.familiar
            self.absorbed = found._replace(familiar=familiar[: self._asked])
            posterior, self._left = found.posterior, found.left
        photographs, labels = joined([view.photographs for view in posterior.views]), posterior.labels
        labelled = len(labels) - (len(self.absorbed.kernel_rows) if self.absorbed else 0)
        self.pool.data = photographs[labelled:].to(self.pool)
        self.pool_labels.data = self._known()[labels[labelled:]]
        self._beside = None
        tensors = posterior.tensors()
        for name, saved in self.fitted.items():
            # in the order of a file: products of what is loaded are then the same to the last bit
            if saved not in self.of_patches.values():  # which stay as they were made
                getattr(self, saved).data = tensors[name].to(self.kept).contiguous()

    def learn(self, images: Encoded, labels: Int[Tensor, " n"]) -> None:
        """As if fitted on the former images and these; classes without a photograph so far get theirs."""
        if not self.seen:
            self.begin(images, labels, seed=0)
            self.finish()
            return
        self._refuse_patches("learns no more photographs: fit it again on all")
        if len(self.kept):  # those that were counted in are weighed anew, with more labels beside them
            self.beside(self.pool[:0])
        x, asked = unit_features(images.global_, self.widths), self.classes
        new = [name for name, label in zip(asked, self.labels_of_classes(), strict=True) if label < 0]
        self.remember((*self.seen, *new))
        present = torch.tensor(self.labels_of_classes(), device=labels.device)[labels]
        groups = self.kept_groups.data
        self._keep(self._evidence().merged(Evidence.of(x, present, len(self.seen))))
        if len(groups) and len(self.kept) == len(groups) + len(x):  # each of the new ones is by itself
            alone = torch.arange(len(x)).to(groups) + int(groups.max()) + 1
            self.kept_groups.data = torch.cat([groups, alone])
        self.finish()

    def regroup(self, named: Mapping[str, str | None]) -> None:
        statistics, kept = self._evidence()
        names = [named.get(name, name) for name in self.seen]
        new = list(dict.fromkeys(name for name in names if name is not None))
        place = torch.tensor([-1 if name is None else new.index(name) for name in names]).to(kept.labels)
        if len(new) < len(names):
            self._refuse_patches("neither joins nor forgets classes: fit it again")
        gone, lost = place < 0, (place < 0)[kept.labels]
        if not torch.isclose(statistics.counts[gone].sum(), kept.weights[lost].sum()):
            raise InputError(f"{self.name} keeps too few of its photographs to forget a class: fit it again")
        away = kept.images[lost].double()
        few = Statistics(
            statistics.counts[~gone],
            statistics.sums[~gone],
            statistics.moment - away.T @ (kept.weights[lost].unsqueeze(1) * away),
        ).relabelled(place[~gone], len(new))
        if not len(self.kept):
            raise InputError(
                f"{self.name} was fitted without any label: fit it again with the names you want"
            )
        self.beside(self.pool[:0])  # weighed anew
        self.remember(new)
        groups = self.kept_groups[~lost] if len(self.kept_groups) else self.kept_groups
        patches = self.patches()
        self._keep(
            Evidence(few, kept._at((~lost).nonzero().squeeze(1))._replace(labels=place[kept.labels][~lost]))
        )
        self.kept_groups.data = groups
        self._keep_patches(patches)
        self.finish()

    def label_head(self, images: Encoded, targets: Float[Tensor, "n k"]) -> LabelHead:
        """One-vs-rest by the same statistics (`evidence/one_vs_rest.py`); its own state stays as it is."""
        self._refuse_patches("tells one label of each image: leave the setting 'patches' out")
        return fit_label_head(unit_features(images.global_, self.widths), targets, self.texts(self.classes))

    def _evidence(self) -> Evidence:
        kept = Kept.of(self.kept, self.kept_labels, self.kept_weights)
        return Evidence(Statistics(self.counts, self.sums, self.moment), kept)

    def _keep(self, evidence: Evidence) -> None:
        for name, value in evidence.statistics._asdict().items():
            getattr(self, name).data = value.to(self.counts.device)
        kept, device = evidence.kept, self.kept.device
        self.kept.data, self.kept_labels.data = kept.images.to(device), kept.labels.to(device)
        self.kept_weights.data = kept.weights.to(self.kept_weights)
        self.kept_groups.data = self.kept_groups[:0]
        self._keep_patches(None)

    def _keep_patches(self, made: Patches | None) -> None:
        for name, saved in self.of_patches.items():
            value = self.kept[:0] if made is None else getattr(made, name)
            getattr(self, saved).data = value.to(self.kept.device).contiguous()

    def _refuse_patches(self, why: str) -> None:
        if self.config.patches:
            raise InputError(f"a model that compares patches {why}")

    def patches(self) -> Patches | None:
        """What was made of the photographs' patches, if they are compared."""
        parts = {name: getattr(self, saved).data for name, saved in self.of_patches.items()}
        return Patches(**parts) if parts and len(parts["prototypes"]) else None

    def _known(self) -> Int[Tensor, " k"]:
        """Labels of the classes with photographs: the posterior's columns."""
        return (self.counts > 0).nonzero().squeeze(1)

    def _known_evidence(self) -> list[Photographs]:
        """Of the classes with photographs: all that the posterior is made of."""
        known, groups = self._known(), self._judged_groups()
        texts = self.texts([self.seen[label] for label in known.tolist()])
        shown = Photographs.by_each(self._evidence(), known, self.widths, texts, self._scales())
        return [replace(each, groups=groups, patches=self.patches()) for each in shown]

    def _judged_groups(self) -> Int[Tensor, " n"] | None:
        """The series of the photographs that are held out in turn."""
        rows = judged_rows(len(self.kept), len(self._known()))
        return self.kept_groups[rows] if len(self.kept_groups) else None

    def _absorbed(self, pool: Float[Tensor, "m d"]) -> Absorbed:
        if self.counts.any():
            return absorb(self._known_evidence(), apart(pool, self.widths), self._in_kernel)
        texts = apart(self.texts(self.seen), self.widths)
        found, statistics = absorb_by_names(texts, self._scales(), apart(pool, self.widths))
        self._keep(Evidence(statistics, self._evidence().kept))
        return found

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not len(self.kept_groups):  # as models were before there were series
            del destination[prefix + "kept_groups"]

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        self._left = self._answers = None  # they are of other photographs
        state.setdefault(prefix + "kept_groups", self.kept_groups.new_empty(0))
        for saved in self.fitted.values():
            given = state.get(prefix + saved, self.counts)
            dtype = given.dtype if saved in self.of_patches.values() else self.kept.dtype
            getattr(self, saved).data = self.kept.new_empty(given.shape, dtype=dtype)
        super()._load_from_state_dict(state, prefix, *rest)

    def texts(self, classes: Sequence[str]) -> Float[Tensor, "c d"]:
        """Text features of length 1, of several backbones side by side; zero where names say nothing."""
        parts = []
        for reader, width in zip(self.readers, self.widths, strict=True):
            if reader is None or not classes:
                parts.append(self.kept.new_zeros(len(classes), width))
            else:
                reader.prepare(tuple(classes), self.template)
                parts.append(unit(reader.class_features(1, torch.Generator()))[0].float())
        return joined(parts)

    # prediction

    def posterior(self) -> Posterior:
        """What was fitted, as it is saved."""
        if not self.seen:
            raise InputError(f"{self.name} has no photographs yet: fit it on images first")
        tensors, known = {name: getattr(self, saved) for name, saved in self.fitted.items()}, self._known()
        rows = judged_rows(len(self.kept), len(known))
        photographs = torch.cat([self.kept[rows], self.pool])
        labels = torch.searchsorted(known, torch.cat([self.kept_labels[rows], self.pool_labels]))
        return Posterior.from_tensors(tensors, apart(photographs, self.widths), labels, len(known))

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c k"]:
        """Draws of the experts' weights, the same for every class; the classes themselves are looked up."""
        draws = self.answers().posterior.weights.draws(samples).to(self.kept)
        return draws.unsqueeze(1).expand(-1, len(self.classes), -1)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s b c"]:
        return self.answers().logits(*self._scored(images), features[:, 0])

    def familiarity(self, images: Encoded) -> Float[Tensor, " b"] | None:
        """All classes with photographs count, whichever are asked for."""
        return self.answers().posterior.novelty.familiarity(self._scored(images)[-1])

    def answer(
        self, images: Encoded, features: Float[Tensor, "s c k"]
    ) -> tuple[Float[Tensor, "s b c"], Float[Tensor, " b"] | None]:
        answers, scored = self.answers(), self._scored(images)
        return answers.logits(*scored, features[:, 0]), answers.posterior.novelty.familiarity(scored[-1])

    def _scored(self, images: Encoded) -> tuple[list[Seen], Float[Tensor, "e b k"], Float[Tensor, " b"]]:
        """Images as the experts see them, their scores, and F."""
        views, posterior = self._views(images), self.answers().posterior
        scores = posterior.scores(*views)
        return views, scores, posterior.strangeness(scores)

    def _views(self, images: Encoded) -> list[Seen]:
        """Images as each backbone sees them."""
        patches = _compared(images) if self.config.patches else None
        return [Seen(unit(part).float(), patches) for part in images.global_.split(self.widths, dim=1)]

    @property
    def widths(self) -> list[int]:
        return self.backbone.widths

    def _scales(self) -> list[float]:
        return [float(tower.logit_scale) for tower in self.backbone.towers]

    def found_by_name(self) -> float | None:
        """Share of classes left out whole, photographs and all, that their name alone was given images of."""
        found = self.posterior().novelty.found
        return float(found) if len(found) else None

    def told_by_names(self) -> float | None:
        return float(self.posterior().information) if self.takes_new_names else None

    def class_counts(self) -> Float[Tensor, " c"]:
        labels = torch.tensor(self.labels_of_classes(), device=self.counts.device)
        return torch.where(labels >= 0, self.counts[labels], 0.0)

    def left_out(self) -> "tuple[Float[Tensor, 'n c'], Int[Tensor, ' n']] | None":
        """Of photographs that are not their class's only ones; without these, nothing is known of how the
        model does. Classes known by their names alone take part as they do in predictions."""
        if (found := self._left_rows()) is None:
            return None
        left, rows, every = found
        labels = torch.tensor(self.labels_of_classes(), device=self.counts.device)
        own = self.kept_labels[every]
        answers = self.answers()
        draws = answers.posterior.weights.draws(LEFT_OUT_DRAWS).to(left.scores)
        views = [Seen(part) for part in apart(self.kept[every[rows]].double(), self.widths)]
        logits = answers.logits(views, left.scores[:, rows], left.looks[rows], draws)
        said = logits.softmax(-1).mean(0)
        return said.float(), (own[rows].unsqueeze(1) == labels).int().argmax(1)

    def series_left_out(self) -> Int[Tensor, " n"] | None:
        """The series of each of these photographs; None where each is by itself."""
        found, groups = self._left_rows(), self._judged_groups()
        return None if found is None or groups is None else groups[found[1]]

    def familiarity_left_out(self) -> Float[Tensor, " n"] | None:
        if (found := self._left_rows()) is None:
            return None
        left, rows, _ = found
        return self.answers().posterior.novelty.familiarity(left.looks[rows])

    def _left_rows(self) -> tuple[HeldOutPhotographs, Tensor, Tensor] | None:
        """What was held out, which of it can be judged for the classes asked for, and where it is kept."""
        if not len(self.kept) or len(self._known()) < 2:
            return None
        if self._left is None:
            evidence, pools = self._known_evidence(), apart(self.pool, self.widths)
            self._left = absorb(evidence, pools).left if len(self.pool) else fit_posterior(*evidence)[1]
        labels = torch.tensor(self.labels_of_classes(), device=self.counts.device)
        every = judged_rows(len(self.kept), len(self._known()))
        own = torch.isin(self.kept_labels[every], labels)
        rows = (self._left.several & own).nonzero().squeeze(1)
        return (self._left, rows, every) if len(rows) else None

    # what it shows of itself

    def prompts_of(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        """The first backbone's."""
        texts = apart(self.texts(self.classes), self.widths)[0]
        return texts.to(features).expand(len(features), -1, -1)

    def directions(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        """The slope of a class's logit at the centre of all classes: the photographs' part is not linear."""
        return self.answers().slopes(features[:, 0])

    def sources(self, images: Encoded) -> dict[str, Float[Tensor, "b c"]]:
        """What the class's mean, single photographs and the name add to a class's logit, by the best weights;
        of a name without photographs, what all photographs say against it."""
        named = [tower.config.name for tower in self.backbone.towers]
        return self.answers().sources(self._views(images), named)

    @property
    def compares(self) -> bool:
        return self.config.patches

    def parts(self, images: Encoded) -> tuple[Float[Tensor, "b m c"], Int[Tensor, "b m c 2"]]:
        made, answers = self.patches(), self.answers()
        assert made is not None
        adds = answers.posterior.weights.best[-1] * made.spoken_for(images.patches)
        near = made.similar(images.patches).argmax(-1)
        sources = made.sources[torch.arange(near.shape[-1], device=near.device), near]
        new = (0, answers.new)  # of names without photographs there are no patches
        adds = F.pad(adds[..., answers.columns], new)[..., answers.order]
        return adds, F.pad(sources[:, :, answers.columns], (0, 0, *new), value=-1)[:, :, answers.order]

    def answers(self) -> Answers:
        """The posterior for the present classes, made when it is first asked for."""
        if self._answers is None:
            self._answers = self._made()
        return self._answers

    def _made(self) -> Answers:
        posterior, known = self.posterior(), self._known()
        labels = torch.tensor(self.labels_of_classes(), device=known.device)
        place = torch.searchsorted(known, labels.clamp(min=0)).clamp(max=len(known) - 1)
        columns = torch.where((labels >= 0) & (known[place] == labels), place, -1)
        texts = self.texts([self.classes[at] for at in (columns < 0).nonzero().squeeze(1).tolist()])
        return Answers(posterior, columns, apart(texts, self.widths), self._scales())


def _compared(images: Encoded) -> Float[Tensor, "b m e"]:
    """Their patches; refused where there are next to none."""
    if images.patches.shape[1] < LEAST_PATCHES:
        raise InputError(
            f"patches are compared, and these images have {images.patches.shape[1]} each: give images, or "
            "features with patches, of a backbone that has some"
        )
    return images.patches
