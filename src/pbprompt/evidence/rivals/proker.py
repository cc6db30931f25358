"""ProKeR: kernel ridge regression of the labels that stays near zero-shot CLIP (Bendou et al., CVPR 2025).

    logits(x) = s·[ f·Tᵀ + k(f, S)·A ]        A = (k(S, S)/λ + I)⁻¹ (Y − S·Tᵀ)        f = f(x)/‖f(x)‖

T are the unit text features of the dataset's template, [c, d]; S the unit training features, `keys`, [n, d],
and Y their one-hot labels; k is exp(−β·(1 − cos)); A, `coefficients`, has a column per class, kept as rows; s
is as in the paper's form that is trained jointly. Kernel ridge regression has (k(S, S) + λI)⁻¹ = A/λ; the
published program adds k(x, S)·A itself, and its λ was searched for so. λ is therefore the weight of the
images too: the answer goes to zero-shot's as λ goes to 0.

λ and β are searched on validation images in the paper; without any it transfers what was found on ImageNet
(RN50), by the number of shots, and those are the defaults here, for the mean number of images per class. They
were found with ten augmented views per image as training features; here it is the views that the run has. A
correction is λ-fold at most, and CLIP's cosines with texts differ by hundredths from class to class: with a
backbone whose cosines differ more, the published λ leaves the answer where zero-shot has it. The preset
`left-out` searches both by the accuracy on training images of classes that have several, each left out: β
within the authors' bounds, λ from theirs up. A name without images has its sentence, and the mean of the
others' columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pbprompt.learners.memory import Memory, Remembered, TrainingImages
from pbprompt.learners.method import MethodConfig, setting
from pbprompt.registry import register
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Encoded

PUBLISHED = {1: (0.05, 3.0), 2: (0.05, 2.6), 4: (0.05, 1.5), 8: (0.07, 1.66), 16: (0.1, 1.7)}  # shots: λ, β
AFFINITIES = 1 << 26  # images × training images held at once
BETAS = [0.5 * step for step in range(1, 11)]
RIDGES = [0.05 * 2**step for step in range(11)]


@dataclass(frozen=True, kw_only=True)
class ProKeRConfig(MethodConfig):
    """The published settings, by the number of shots."""

    ridge: float = setting(0.0, "λ, weight of the images; 0: published for so many per class", least=0)
    beta: float = setting(0.0, "β, kernel's sharpness; 0: published for so many images per class", least=0)
    search: bool = setting(False, "search both by training images that are left out")


def published(shots: float) -> tuple[float, float]:
    """λ and β for so many images per class: those of the nearest number of shots from below."""
    return PUBLISHED[max((known for known in PUBLISHED if known <= shots), default=1)]


@dataclass(frozen=True, eq=False)
class Corrections(Remembered):
    """Of the k classes with images, and of the one that stands for the others."""

    keys: Float[Tensor, "n d"]
    coefficients: Float[Tensor, "k n"]
    beta: Float[Tensor, "1"]

    def bank(self, samples: int = 1) -> Float[Tensor, "s c dn"]:
        """For each class its sentence's feature and its coefficients, side by side."""
        coefficients = self.coefficients[self.asked.labels]
        return torch.cat([unit(self.asked.texts).to(coefficients), coefficients], dim=1).unsqueeze(0)

    def logits(self, images: Encoded, bank: Float[Tensor, "s c dn"]) -> Float[Tensor, "s b c"]:
        text, coefficients = bank[0].tensor_split([self.keys.shape[1]], dim=1)
        parts = []
        for x in unit(images.global_).to(self.keys).split(max(1, AFFINITIES // len(self.keys))):
            corrections = (-self.beta * (1 - x @ self.keys.T)).exp() @ coefficients.T
            parts.append(self.asked.scale * (x @ text.T + corrections))
        return torch.cat(parts).unsqueeze(0)


@register("proker")
class ProKeR(Memory):
    """Zero-shot CLIP, corrected by a kernel regression of what it gets wrong."""

    Config = ProKeRConfig
    makes = Corrections
    presets = {"left-out": {"search": True}}
    paper = "Bendou et al., CVPR 2025"
    promptless = "votes by its images"
    config: ProKeRConfig

    def fit(self, shown: TrainingImages) -> Corrections:
        """Solve for the coefficients."""
        keys = unit(shown.images.global_)
        x, (present, own) = keys.double(), shown.labels.unique(return_inverse=True)
        ridge, beta = published(len(x) / len(present))
        ridge, beta = self.config.ridge or ridge, self.config.beta or beta
        start = x @ unit(shown.asked.texts).to(x)[present].T
        several = own.bincount()[own] > 1
        if self.config.search and several.any():
            ridge, beta = best_settings(x, start, own, several)
        residuals = F.one_hot(own).to(x) - start
        found = proximal_coefficients(rbf_kernel(x, x, beta), residuals, ridge).T
        rows = found.mean(0).repeat(len(self.classes) + 1, 1)
        rows[present] = found
        return Corrections(shown.asked, keys, rows.to(keys), keys.new_tensor([beta]))


def best_settings(
    x: Float[Tensor, "n d"], start: Float[Tensor, "n k"], own: Int[Tensor, " n"], judged: Bool[Tensor, " n"]
) -> tuple[float, float]:
    """λ and β that are most often right on images left out; among equals the first."""
    found = {
        (ridge, beta): share
        for beta in BETAS
        for ridge, share in zip(
            RIDGES, left_out_accuracy(rbf_kernel(x, x, beta), start, own, judged, RIDGES), strict=True
        )
    }
    return max(found, key=found.__getitem__)


def rbf_kernel(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"], sharpness: float) -> Float[Tensor, "n m"]:
    """exp(−β·(1 − cos)) of unit features."""
    return (-sharpness * (1 - x @ y.T)).exp()


def proximal_coefficients(
    kernel: Float[Tensor, "n n"], residuals: Float[Tensor, "n c"], ridge: float
) -> Float[Tensor, "n c"]:
    """A; `residuals`: Y − S·Tᵀ."""
    system = kernel / ridge
    system.diagonal().add_(1)
    return torch.cholesky_solve(residuals, torch.linalg.cholesky(system))


def left_out_accuracy(
    kernel: Float[Tensor, "n n"],
    start: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    judged: Bool[Tensor, " n"],
    ridges: Sequence[float],
) -> list[float]:
    """For each λ the share of the judged images that is right when left out, with `start` S·Tᵀ.

    Without image i its correction is λ·(R_i − (C R)_i / C_ii), C = (k(S, S) + λI)⁻¹, R = Y − S·Tᵀ.
    """
    residuals = F.one_hot(labels, start.shape[1]).to(start) - start
    values, vectors = torch.linalg.eigh(kernel)
    turned = vectors.T @ residuals
    shares = []
    for ridge in ridges:
        inverse = 1 / (values + ridge)
        own = vectors.square() @ inverse  # C_ii
        solved = vectors @ (inverse.unsqueeze(1) * turned)
        said = start + ridge * (residuals - solved / own.unsqueeze(1))
        shares.append((said.argmax(1) == labels)[judged].double().mean().item())
    return shares
