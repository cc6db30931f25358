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
from pbprompt.evidence.evidence import Evidence, Kept, Statistics, apart, joined, kept_rows, unit_features
from pbprompt.evidence.experts.patches import compare
from pbprompt.evidence.fitted import FittedEvidence, check_names_alone, enough_patches, fit_evidence
from pbprompt.evidence.label_head import LabelHead, fit_label_head
from pbprompt.evidence.shown import Shown, Sight
from pbprompt.evidence.unlabelled import IN_KERNEL, Absorbed
from pbprompt.learners.memory import KnowsClasses, Memory, TrainingImages
from pbprompt.learners.method import Method, MethodConfig, setting
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
class Conjugate(Memory):
    """Names place the classes, photographs move them; both in closed form: a door to `FittedEvidence`."""

    Config = ConjugateConfig
    makes = FittedEvidence
    revision = 5
    tags = ("closed form",)
    takes_several = True
    needs_text = False
    takes_weights = True
    paper = "this library, after Wang et al., ICLR 2024"
    config: ConjugateConfig

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

    @property
    def sight(self) -> Sight:
        towers = self.backbone.towers
        scales = tuple(float(tower.logit_scale) for tower in towers)
        read = partial(read_names, self.backbone, self.config, self.template)
        named = tuple(tower.config.name for tower in towers)
        return Sight(tuple(self.backbone.widths), scales, read, named, self.takes_new_names)

    def prepare(self, classes: Sequence[str], template: str) -> None:
        KnowsClasses.prepare(self, classes, template)
        if self.fitted:
            self.hold(replace(self.fitted.for_classes(self.classes), sight=self.sight))

    def restored(self, tensors: Mapping[str, Tensor]) -> FittedEvidence:
        return FittedEvidence.from_tensors(tensors, self.seen, self.sight, self.classes)

    # the evidence

    def fit(self, shown: TrainingImages) -> FittedEvidence:
        x, labels = unit_features(shown.images.global_, self.sight.widths), shown.labels
        first = Shown.nothing(x.shape[1], x.device).with_more(
            x, labels, self.classes, shown.weights, shown.groups
        )
        if self.config.patches:
            rows = kept_rows(x, labels)[first.judged]
            known = torch.searchsorted(first.known, labels[rows])
            made = compare(x, enough_patches(shown.images), rows, known, first.judged_groups)
            first = first._replace(patches=made)
        return self._fitted_to(first, shown.unlabelled)

    def begin_with(self, evidence: Evidence, unlabelled: Float[Tensor, "m d"] | None = None) -> None:
        device = self.backbone.device
        sums, kept = (type(part)(*(each.to(device) for each in part)) for part in evidence)
        shown = Shown(self.classes, Evidence(Statistics(*sums), Kept(*kept)))
        self._keep(self._fitted_to(shown, unlabelled))

    def begin_by_names(self, unlabelled: Float[Tensor, "m d"]) -> None:
        """Names place the classes, images without a label move them."""
        if not self.takes_new_names or len(self.classes) < 2:
            raise InputError("without labels it takes two names or more, and a backbone that reads them")
        check_names_alone(len(unlabelled), len(self.classes))
        shown = Shown.nothing(sum(self.sight.widths), self.backbone.device, self.classes)
        self._keep(self._fitted_to(shown, unlabelled))

    def add_unlabelled(self, images: Float[Tensor, "m d"], *, to_classify: bool = False) -> None:
        fitted = self.known()
        if not len(fitted.shown.evidence.kept.labels):
            raise InputError(
                "the model was fitted without any label, so that nothing can judge more images: fit it again "
                "with all of them unlabelled, or with a few labels"
            )
        self._keep(self._fitted_to(fitted.shown, images, 0 if to_classify else IN_KERNEL))

    def learn(self, images: Encoded, labels: Int[Tensor, " n"], classes: Sequence[str] | None = None) -> None:
        """As if fitted on the former images and these; classes without a photograph so far get theirs."""
        Method.prepare(self, self.classes if classes is None else classes, self.template)
        if self.fitted is None:
            self.begin(images, labels)
        else:
            self._refuse_patches("learns no more photographs: fit it again on all")
            x = unit_features(images.global_, self.sight.widths)
            self._keep(self._fitted_to(self.fitted.shown.with_more(x, labels, self.classes)))

    def regroup(self, named: Mapping[str, str | None]) -> None:
        self._keep(self._fitted_to(self.known().shown.regrouped(named)))

    def _fitted_to(
        self, shown: Shown, unlabelled: Float[Tensor, "m d"] | None = None, in_kernel: int = IN_KERNEL
    ) -> FittedEvidence:
        """Photographs without a label that were counted in before are weighed anew, with more labels."""
        pool, old = None, self.fitted
        if unlabelled is not None:
            if self.config.patches and len(unlabelled):
                raise InputError(
                    "images without a label have no part where patches are compared: leave them out, or fit "
                    "without the setting 'patches'"
                )
            pool = unit_features(unlabelled, self.sight.widths).float()
        before = old.pool if old and len(old.shown.evidence.kept.labels) else None
        return fit_evidence(shown, self.sight, self.classes, pool, before, in_kernel).rounded()

    def _keep(self, fitted: FittedEvidence) -> None:
        self.hold(fitted)
        self.remember(fitted.shown.names)

    def label_head(self, images: Encoded, targets: Float[Tensor, "n k"]) -> LabelHead:
        """One-vs-rest by the same statistics; its own state stays as it is."""
        self._refuse_patches("tells one label of each image: leave the setting 'patches' out")
        widths, read = self.sight.widths, self.sight.read
        return fit_label_head(unit_features(images.global_, widths), targets, read(self.classes))

    def _refuse_patches(self, why: str) -> None:
        if self.config.patches:
            raise InputError(f"a model that compares patches {why}")

    @property
    def absorbed(self) -> Absorbed | None:
        return self.fitted.absorbed if self.fitted else None

    # what a prediction asks

    def answer(
        self, images: Encoded, features: Float[Tensor, "s c k"]
    ) -> tuple[Float[Tensor, "s b c"], Float[Tensor, " b"] | None]:
        return self.fitted.answer(images, features)

    def prompts_of(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        """The first backbone's."""
        texts = apart(self.sight.read(self.classes), self.sight.widths)[0]
        return texts.to(features).expand(len(features), -1, -1)

    def directions(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        """The slope of a class's logit at the centre of all classes: the photographs' part is not linear."""
        return self.fitted.answers.slopes(features[:, 0])


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
