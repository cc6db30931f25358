"""Names as prior, photographs as evidence: the closed-form classifier (`posterior.py`).

A name (its sentences) says where a class lies among images, the labelled photographs correct it, and how much
names, class means and single photographs count is what left-out photographs say. Nothing is trained, and no
validation image is used. A class of which there is no photograph is known by its name.

    p(c | x) = mean over w of softmax_c Σ_k w_k E_k[x, c]        E_k: what an expert, such as names, says

Prior art: Gaussian discriminant analysis for CLIP (Wang et al., ICLR 2024), Tip-Adapter, ProKeR, LP++, CLAP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.evidence.evidence import Evidence, Kept, apart, joined, kept_rows, unit_features
from pbprompt.evidence.experts.patches import compare
from pbprompt.evidence.fitted import FittedEvidence, check_names_alone, enough_patches, fit_evidence
from pbprompt.evidence.label_head import LabelHead, fit_label_head
from pbprompt.evidence.posterior import Posterior
from pbprompt.evidence.shown import Shown, Sight
from pbprompt.evidence.statistics import Statistics
from pbprompt.evidence.unlabelled import IN_KERNEL, Absorbed
from pbprompt.learners.memory import FittedMemory
from pbprompt.learners.method import MethodConfig, setting
from pbprompt.learners.zeroshot import Templates, ZeroShotConfig, name_features
from pbprompt.registry import register
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Backbone, Encoded

SENTENCES: Mapping[str, Templates] = {"sentence": "single", "ensemble": "ensemble", "sentences": "both"}


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
class Conjugate(FittedMemory):
    """Names place the classes, photographs move them; both in closed form: a door to `FittedEvidence`."""

    Config = ConjugateConfig
    revision = 5
    tags = ("closed form",)
    takes_several = True
    needs_text = False
    takes_weights = True
    paper = "this library, after Wang et al., ICLR 2024"
    config: ConjugateConfig
    _fitted: FittedEvidence | None

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
        self.takes_new_names = config.prior != "none"
        self._shown: Shown | None = None  # what it is about to be fitted to, unless to what it was before
        self._unlabelled: tuple[Float[Tensor, "m d"], int] | None = None  # for the next fit, with `in_kernel`

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        if self._fitted:
            self._fitted = replace(self._fitted.for_classes(self.classes), sight=self.sight)

    # the evidence

    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        x = unit_features(images.global_, self.widths)
        more = x, labels, self.classes, self.image_weights, self.image_groups
        shown = Shown.nothing(x.shape[1], x.device).with_more(*more)
        if self.config.patches:
            rows = kept_rows(x, labels)[shown.judged]
            known = torch.searchsorted(shown.known, labels[rows])
            made = compare(x, enough_patches(images), rows, known, shown.judged_groups)
            shown = shown._replace(patches=made)
        self._shown, self._fitted = shown, None

    def begin_with(self, evidence: Evidence) -> None:
        device = self.backbone.device
        sums, kept = (type(part)(*(each.to(device) for each in part)) for part in evidence)
        self._shown, self._fitted = Shown(self.classes, Evidence(Statistics(*sums), Kept(*kept))), None

    def beside(self, images: Float[Tensor, "m d"], *, asked: bool = False) -> None:
        if self._fitted and not len(self._fitted.shown.evidence.kept.labels):
            raise InputError(
                "the model was fitted without any label, so that nothing can judge more images: fit it again "
                "with all of them unlabelled, or with a few labels"
            )
        if self.config.patches and len(images):
            raise InputError(
                "images without a label have no part where patches are compared: leave them out, or fit "
                "without the setting 'patches'"
            )
        self._unlabelled = unit_features(images, self.widths).float(), 0 if asked else IN_KERNEL

    def begin_by_names(self) -> None:
        """Names place the classes, images without a label move them."""
        if not self.takes_new_names or self._unlabelled is None or len(self.classes) < 2:
            raise InputError(
                "without labels it takes two names or more, a backbone that reads them, and images"
            )
        check_names_alone(len(self._unlabelled[0]), len(self.classes))
        shown = Shown.nothing(sum(self.widths), self.backbone.device, self.classes)
        self._shown, self._fitted = shown, None

    def finish(self) -> None:
        """Fit, once all photographs are there."""
        self._fit(self._shown or self.fitted.shown)

    def _fit(self, shown: Shown) -> None:
        (pool, in_kernel), old = self._unlabelled or (None, IN_KERNEL), self._fitted
        # those that were counted in are weighed anew, with more labels beside them
        before = old.pool if old and len(old.shown.evidence.kept.labels) else None
        found = fit_evidence(shown, self.sight, self.classes, pool, before, in_kernel)
        self._fitted, self._shown, self._unlabelled = found.rounded(), None, None
        self.remember(found.shown.names)

    def learn(self, images: Encoded, labels: Int[Tensor, " n"]) -> None:
        """As if fitted on the former images and these; classes without a photograph so far get theirs."""
        if self._fitted is None:
            self.begin(images, labels, seed=0)
            self.finish()
            return
        self._refuse_patches("learns no more photographs: fit it again on all")
        x = unit_features(images.global_, self.widths)
        self._fit(self._fitted.shown.with_more(x, labels, self.classes))

    def regroup(self, named: Mapping[str, str | None]) -> None:
        self._fit(self.fitted.shown.regrouped(named))

    def label_head(self, images: Encoded, targets: Float[Tensor, "n k"]) -> LabelHead:
        """One-vs-rest by the same statistics (`evidence/one_vs_rest.py`); its own state stays as it is."""
        self._refuse_patches("tells one label of each image: leave the setting 'patches' out")
        return fit_label_head(unit_features(images.global_, self.widths), targets, self.texts(self.classes))

    def _refuse_patches(self, why: str) -> None:
        if self.config.patches:
            raise InputError(f"a model that compares patches {why}")

    # names

    @property
    def widths(self) -> list[int]:
        return self.backbone.widths

    @property
    def sight(self) -> Sight:
        scales = tuple(float(tower.logit_scale) for tower in self.backbone.towers)
        read = partial(read_names, self.backbone, self.config, self.template)
        return Sight(tuple(self.widths), scales, read)

    def texts(self, classes: Sequence[str]) -> Float[Tensor, "c d"]:
        return self.sight.read(classes)

    # what is asked of it

    def restored(self, tensors: Mapping[str, Tensor]) -> FittedEvidence:
        return FittedEvidence.from_tensors(tensors, self.seen, self.sight, self.classes)

    @property
    def fitted(self) -> FittedEvidence:
        """What was fitted, for the present classes."""
        if self._fitted is None:
            raise InputError(f"{self.name} has no photographs yet: fit it on images first")
        return self._fitted

    def posterior(self) -> Posterior:
        return self.fitted.posterior

    @property
    def absorbed(self) -> Absorbed | None:
        return self._fitted.absorbed if self._fitted else None

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c k"]:
        """Draws of the experts' weights, the same for every class; the classes themselves are looked up."""
        answers = self.fitted.answers  # made now: an export traces what is left to do
        draws = answers.posterior.weights.draws(samples).float()
        return draws.unsqueeze(1).expand(-1, len(self.classes), -1)

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s b c"]:
        return self.fitted.logits(images, features[:, 0])

    def familiarity(self, images: Encoded) -> Float[Tensor, " b"] | None:
        """All classes with photographs count, whichever are asked for."""
        return self.fitted.familiarity(images)

    def answer(
        self, images: Encoded, features: Float[Tensor, "s c k"]
    ) -> tuple[Float[Tensor, "s b c"], Float[Tensor, " b"] | None]:
        return self.fitted.answer(images, features[:, 0])

    def found_by_name(self) -> float | None:
        """Share of classes left out whole, photographs and all, that their name alone was given images of."""
        found = self.posterior().novelty.found
        return float(found) if len(found) else None

    def told_by_names(self) -> float | None:
        return float(self.posterior().information) if self.takes_new_names else None

    def class_counts(self) -> Float[Tensor, " c"]:
        return self.fitted.class_counts()

    def left_out(self) -> tuple[Float[Tensor, "n c"], Int[Tensor, " n"]] | None:
        found = self.fitted.left_out()
        return found and (found[0].float(), found[1])

    def series_left_out(self) -> Int[Tensor, " n"] | None:
        return self.fitted.series_left_out()

    def familiarity_left_out(self) -> Float[Tensor, " n"] | None:
        return self.fitted.familiarity_left_out()

    def prompts_of(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        """The first backbone's."""
        return apart(self.texts(self.classes), self.widths)[0].to(features).expand(len(features), -1, -1)

    def directions(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        """The slope of a class's logit at the centre of all classes: the photographs' part is not linear."""
        return self.fitted.answers.slopes(features[:, 0])

    def sources(self, images: Encoded) -> dict[str, Float[Tensor, "b c"]]:
        return self.fitted.sources(images, [tower.config.name for tower in self.backbone.towers])

    @property
    def compares(self) -> bool:
        return self.config.patches

    def parts(self, images: Encoded) -> tuple[Float[Tensor, "b m c"], Int[Tensor, "b m c 2"]]:
        return self.fitted.parts(images)


def read_names(
    backbone: Backbone, config: ConjugateConfig, template: str, classes: Sequence[str]
) -> Float[Tensor, "c d"]:
    """Text features of length 1, of several backbones side by side; zero where names say nothing."""
    sentences = SENTENCES.get(config.prior)
    settings = ZeroShotConfig(templates=sentences or "single", descriptions=config.descriptions)
    parts = [
        unit(name_features(tower, tuple(classes), template, settings)).float()
        if sentences and tower.reads_text and classes
        else torch.zeros(len(classes), tower.embed_dim, device=backbone.device)
        for tower in backbone.towers
    ]
    return joined(parts)
