"""Linear classifiers on image features, solved at once: GDA, LP++ and the linear probe.

    logit_c(x) = w_c·f + b_c + a_c·(f·t_c)                    f = f(x)/‖f(x)‖, t_c = g(c)/‖g(c)‖

They share a weight vector and a bias per class, and a share of text: w and b, [k + 1, d] and [k + 1], are
what the images say; a, `text_scale`, how far the sentence counts.

The last row is for a class without images, by a name that came later or from the start: the mean of the other
rows, so that the images speak neither for it nor against it and its sentence decides. A method that reads no
names gives such a class no chance.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.rivals.logistic import Affine, logistic_regression
from pbprompt.evidence.series import held_out
from pbprompt.learners.memory import Memory, Remembered, TrainingImages
from pbprompt.learners.method import MethodConfig, setting
from pbprompt.registry import register
from pbprompt.vision.similarity import log_likelihood, unit
from pbprompt.vision.towers.backbone import Encoded

NEVER = -1e4  # a bias below any logit


@dataclass(frozen=True, eq=False)
class Linear(Remembered):
    """The k classes with images, and the one that stands for the others."""

    weights: Float[Tensor, "k d"]
    bias: Float[Tensor, " k"]
    text_scale: Float[Tensor, " k"]

    def bank(self, samples: int = 1) -> Float[Tensor, "s c d1"]:
        """For each class its weights and its bias, side by side."""
        own, text = self.asked.labels, unit(self.asked.texts).to(self.weights)
        weights = self.weights[own] + self.text_scale[own].unsqueeze(1) * text
        return torch.cat([weights, self.bias[own].unsqueeze(1)], dim=1).unsqueeze(0)

    def logits(self, images: Encoded, bank: Float[Tensor, "s c d1"]) -> Float[Tensor, "s b c"]:
        weights, bias = bank.tensor_split([self.weights.shape[1]], dim=-1)
        x = unit(images.global_).to(weights)
        return torch.einsum("bd,scd->sbc", x, weights) + bias.transpose(1, 2)


class Present(NamedTuple):
    """What a linear classifier is solved from: images of k classes, of which each has some."""

    x: Float[Tensor, "n d"]
    """of length 1, as `text` is"""
    labels: Int[Tensor, " n"]
    text: Float[Tensor, "k d"]
    groups: Int[Tensor, " n"] | None
    """series"""


class LinearClassifier(Memory):
    """A method that solves for a linear classifier at once: it implements `solve`."""

    makes = Linear
    promptless = "votes by its images"

    def solve(self, given: Present) -> tuple[Float[Tensor, "k d"], Float[Tensor, " k"], Float[Tensor, " k"]]:
        """Weights, bias and text scale of the classes."""
        raise NotImplementedError

    def fit(self, shown: TrainingImages) -> Linear:
        """Solve over the classes that have images, and fill in the others."""
        present, own = shown.labels.unique(return_inverse=True)
        x = unit(shown.images.global_)
        found = self.solve(Present(x, own, unit(shown.asked.texts).to(x)[present], shown.groups))
        tables = []
        for values, unknown in zip(found, (0.0, NEVER, 0.0), strict=True):
            other = values.mean(0) if self.takes_new_names else torch.full_like(values[0], unknown)
            rows = other.repeat(len(self.classes) + 1, *[1] * other.dim())
            rows[present] = values
            tables.append(rows.to(x))
        return Linear(shown.asked, *tables)


ALPHAS = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True, kw_only=True)
class GDAConfig(MethodConfig):
    """One number to choose."""

    alpha: float = setting(1.0, "α, weight of the images; 0: by cross-validation within them", least=0)


@register("gda")
class GDA(LinearClassifier):
    """GDA for CLIP: zero-shot plus Gaussian discriminant analysis of the images (Wang et al., ICLR 2024).

        logits(x) = s·f·Tᵀ + α·(f·Wᵀ + b)        W_c = P μ_c,  b_c = −½ μ_cᵀPμ_c        f = f(x)/‖f(x)‖

    T is the unit text features of the dataset's template, [c, d]; μ_c the class means; P the shrunk inverse
    covariance (Kubokawa & Srivastava), of the N deviations x_i − μ_{y_i}:

        P = d·((N − 1)·Σ̂ + tr(Σ̂)·I)⁻¹        Σ̂ = cov(x_i − μ_{y_i})

    With one image per class Σ̂ is zero and says nothing. The spread of the class means about their own mean
    then takes its place: the shape is that of the classes, the only spread there is to see.

    The paper searches α on validation images among 10⁻⁴, 10⁻³ … 10². Here none are needed: α is fixed at 1,
    the value that the authors' published log finds most often (46 of 165 searches). The preset
    `cross-validated` (alpha=0) searches the same values by the same accuracy, ties going to the likelier, on
    five folds within the training images. That needs no further image, but every fold has fewer images to fit
    than there are in the end, so it leans towards the text; with one image per class it is α = 1 again.

    The paper estimates from ten augmented views per image; here it is the views that the run has. A name
    without images has its sentence, and the mean of the others' image part; the paper's own way to make up
    means and covariances for new names from their nearest images, which it uses among new names alone, is not
    here.

    On a backbone that reads no text T is left out: it is the discriminant analysis alone.
    """

    Config = GDAConfig
    needs_text = False
    presets = {"cross-validated": {"alpha": 0.0}}
    paper = "Wang et al., ICLR 2024"
    config: GDAConfig

    def solve(self, given: Present) -> tuple[Tensor, Tensor, Tensor]:
        x, scale = given.x.double(), float(self.backbone.logit_scale)
        by_text = scale * x @ given.text.double().T
        alpha = self.config.alpha or best_alpha(x, given.labels, by_text, given.groups)
        found = gaussian_discriminant(x, given.labels)
        return alpha * found.weights, alpha * found.bias, torch.full_like(found.bias, scale)


def best_alpha(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    text_logits: Float[Tensor, "n k"],
    groups: Int[Tensor, " n"] | None = None,
) -> float:
    """The α that is most often right on images held out with their series (`groups`); 1 where none can be."""
    right, likelihood = torch.zeros(2, len(ALPHAS), dtype=torch.float64)
    folds = held_out(labels, groups)
    for held in folds:
        image_logits = gaussian_discriminant(x[~held], labels[~held]).logits(x[held])
        for place, alpha in enumerate(ALPHAS):
            logits = text_logits[held] + alpha * image_logits
            right[place] += (logits.argmax(1) == labels[held]).sum().item()
            likelihood[place] += log_likelihood(logits, labels[held]).sum().item()
    best = max(range(len(ALPHAS)), key=lambda place: (right[place].item(), likelihood[place].item()))
    return ALPHAS[best] if folds else 1.0


def class_means(x: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> Float[Tensor, "c d"]:
    """The mean of every class 0 to the largest label, each of which has an image."""
    members = F.one_hot(labels).to(x)
    return members.T @ x / members.sum(0).unsqueeze(1)


def shrunk_precision(deviations: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """P of deviations that sum to zero; zero where none deviates."""
    n, d = deviations.shape
    scatter = deviations.T @ deviations  # (N − 1)·Σ̂
    trace = scatter.trace() / max(1, n - 1)
    if not trace > 0:
        return torch.zeros_like(scatter)
    scatter.diagonal().add_(trace)
    return d * torch.cholesky_inverse(torch.linalg.cholesky(scatter))


def gaussian_discriminant(x: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> Affine:
    """The linear classifier of classes 0 to the largest label, each of which has an image."""
    means = class_means(x, labels)
    deviations = x - means[labels]
    if len(x) == len(means):
        deviations = means - means.mean(0)
    weights = means @ shrunk_precision(deviations)
    return Affine(weights, -0.5 * (weights * means).sum(1))


MOMENTUM = 0.9
TEXT_EVERY = 10
START = 250.0


@dataclass(frozen=True, kw_only=True)
class LPPlusPlusConfig(MethodConfig):
    """The published recipe: 300 full-batch iterations."""

    iterations: int = setting(300, "full-batch iterations", least=0)


@register("lp++")
class LPPlusPlus(LinearClassifier):
    """LP++: a linear probe whose weights blend image and text (Huang et al., CVPR 2024).

        l_ik = f_i·(w_k + α_k t_k) + b_k            L = −(1/N) Σ_i log softmax(l_i)[y_i]       f = f(x)/‖f(x)‖
        w_k ← Σ_{i of k} f_i                             α_k ← 250·mean over classes of the mean f_i·t_{y_i}
        step of W, b:  4N / λ_max(FᵀF)                   step of α:  N / (4·max_k Σ_i (f_i·t_k)²)

    w, b are visual prototypes and biases, t the unit text features of the dataset's template, α `text_scale`.

    The probe is trained at once, full batch, by block coordinate majorise-minimise. The steps follow from
    bounds on the loss's curvature, so nothing is searched, and no validation image is used. As published: 300
    iterations, momentum 0.9 on W and b, a step of α in every tenth. The published program starts b at random
    and adds up α's gradient over all iterations so far, and keeps the iterate that is best on validation
    images; here b starts at 0, α follows the gradient where it is, as the paper has it, and the last iterate
    is kept. A name without images has its sentence times the mean multiplier, and the mean of the others'
    visual part.
    """

    Config = LPPlusPlusConfig
    paper = "Huang et al., CVPR 2024"
    config: LPPlusPlusConfig

    def solve(self, given: Present) -> tuple[Tensor, Tensor, Tensor]:
        return fit_blend(*given[:3], self.config.iterations)


def step_sizes(x: Float[Tensor, "n d"], cosines: Float[Tensor, "n k"]) -> tuple[Tensor, Tensor]:
    """Of the probe (W, b) and of α."""
    largest = torch.linalg.matrix_norm(x, 2).square()
    return 4 * len(x) / largest, len(x) / (4 * cosines.square().sum(0).amax())


def fit_blend(
    x: Float[Tensor, "n d"], labels: Int[Tensor, " n"], text: Float[Tensor, "k d"], iterations: int
) -> tuple[Float[Tensor, "k d"], Float[Tensor, " k"], Float[Tensor, " k"]]:
    """W, b and α of logits = f Wᵀ + b + α·(f tᵀ); every one of the K classes has an image."""
    cosines, wanted = x @ text.T, F.one_hot(labels, len(text)).to(x)
    alpha = (START * class_means(cosines, labels).diagonal().mean()).expand(len(text)).clone()
    probe = torch.cat([wanted.T @ x, x.new_zeros(len(text), 1)], dim=1)
    inputs = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
    probe_step, alpha_step = step_sizes(x, cosines)
    velocity = torch.zeros_like(probe)
    for iteration in range(1, iterations + 1):
        errors = ((inputs @ probe.T + alpha * cosines).softmax(1) - wanted) / len(x)
        velocity = MOMENTUM * velocity + errors.T @ inputs
        probe = probe - probe_step * velocity
        if iteration % TEXT_EVERY == 0:
            alpha = alpha - alpha_step * (errors * cosines).sum(0)
    return probe[:, :-1], probe[:, -1], alpha


ROUGH = 1e-4  # gradient at which a fold's fit is good enough to be compared


@dataclass(frozen=True, kw_only=True)
class LinearProbeConfig(MethodConfig):
    """Nothing to set but how C is found."""

    strength: float = setting(
        0.0, "C of the logistic regression; 0: by cross-validation within the images", least=0
    )


@register("linear-probe")
class LinearProbe(LinearClassifier):
    """Linear probe: logistic regression on the image features, no text (Radford et al., 2021).

        min over W, b of   C·Σ_i −log softmax(W f_i + b)[y_i] + ½‖W‖²               f = f(x)/‖f(x)‖

    W, b are a weight vector and a bias per class; C says how far the images are trusted against W = 0.

    C is chosen by cross-validation within the training images (five folds or as many as the largest class has
    images; the mean log-likelihood decides) among s²/d·10^(−2, −1.5, …), up to s²/(d v)·10², v the variance
    of f: where all features share a large offset, little is left to tell them by. s²/d, with s = exp(logit
    scale), is the C whose penalty is the prior under which a weight vector is as long as zero-shot's, ‖W_c‖²
    = s² on average. It is used as it is where cross-validation is impossible, with one image per class. The
    published probe searches C on validation images, on features that are not normalised.

    It has no use for a class name; a class without images has no chance, which is the limit of the fit.
    """

    Config = LinearProbeConfig
    needs_text = False
    takes_several = True
    takes_new_names = False
    revision = 2  # C is searched further where features share an offset
    paper = "Radford et al., 2021"
    config: LinearProbeConfig

    def solve(self, given: Present) -> tuple[Tensor, Tensor, Tensor]:
        typical = float(self.backbone.logit_scale) ** 2 / given.x.shape[1]
        strength = self.config.strength or best_strength(given.x, given.labels, typical, given.groups)
        (found,) = logistic_regression(given.x.double(), given.labels, [strength])
        return *found, torch.zeros_like(found.bias)


def best_strength(
    x: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    typical: float,
    groups: Int[Tensor, " n"] | None = None,
) -> float:
    """The C near `typical` with the best log-likelihood of images held out with their series (`groups`);
    `typical` where none can be."""
    variance = float((x - x.mean(0)).square().sum(1).mean().clamp(1e-12, 1))
    strengths = [typical * 10 ** (half / 2) for half in range(-4, 5 + math.ceil(-2 * math.log10(variance)))]
    losses = torch.zeros(len(strengths), dtype=torch.float64)
    folds = held_out(labels, groups)
    for held in folds:
        fits = logistic_regression(x[~held], labels[~held], strengths, tolerance=ROUGH)
        for place, fit in enumerate(fits):
            losses[place] += F.cross_entropy(fit.logits(x[held]), labels[held], reduction="sum").item()
    return strengths[int(losses.argmin())] if folds else typical
