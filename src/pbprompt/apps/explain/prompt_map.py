"""A plane on which a model's sampled prompts and some images lie.

    X = [ĝ − mean ĝ; f̂ − mean f̂] = U Σ Vᵀ,  coordinates = X·V[:, :2],  shares = Σ_k² / Σ Σ²

Principal component analysis of unit vectors. Text and image features fill separate cones, so each kind is
centred by itself: otherwise the first axis would show nothing but which kind a point is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from pbprompt.apps.pages.plots import COLOURS, INK, MARKERS, new_axes, styled
from pbprompt.errors import InputError
from pbprompt.files import as_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PromptMap:
    """Where everything lies on the plane of the two principal axes."""

    prompts: Points  # [s, c, 2]
    images: Points  # [n, 2]
    labels: NDArray[np.int64]  # [n], the images' places in `classes`
    classes: tuple[str, ...]
    shares: tuple[float, float]  # of the variance, for each axis

    def as_csv(self) -> str:
        """A row per point: kind, class, sample (of a prompt), x, y."""
        rows: list[tuple[str | int, ...]] = [("kind", "class", "sample", "x", "y")]
        for row, name in enumerate(self.classes):
            for sample, (x, y) in enumerate(self.prompts[:, row]):
                rows.append(("prompt", name, sample + 1, f"{x:.6f}", f"{y:.6f}"))
        for label, (x, y) in zip(self.labels, self.images, strict=True):
            rows.append(("image", self.classes[label], "", f"{x:.6f}", f"{y:.6f}"))
        return as_csv(rows)


def map_prompts(
    prompts: Float[np.ndarray, "s c d"],
    images: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    classes: Sequence[str],
) -> PromptMap:
    """The plane of the prompts and of images that may be none."""
    samples, count, _ = prompts.shape
    points = np.concatenate([_centred(prompts.reshape(samples * count, -1)), _centred(images)])
    coordinates, shares = principal_plane(points)
    return PromptMap(
        prompts=coordinates[: samples * count].reshape(samples, count, 2),
        images=coordinates[samples * count :],
        labels=np.asarray(labels, np.int64),
        classes=tuple(classes),
        shares=shares,
    )


def principal_plane(points: Float[np.ndarray, "n d"]) -> tuple[Points, tuple[float, float]]:
    """Coordinates of centred points on their two principal axes, and each axis's share of the variance.

    An axis points to where its largest component is positive, so that the same points give the same map.
    """
    if len(points) < 3:
        raise InputError(f"a map needs at least 3 points, not {len(points)}: more samples, classes or images")
    _, sizes, axes = np.linalg.svd(points, full_matrices=False)
    axes = axes[:2]
    largest = np.abs(axes).argmax(1)
    axes = axes * np.sign(axes[np.arange(2), largest])[:, None]
    variance = sizes**2
    first, second = variance[:2] / (variance.sum() or 1)
    return points @ axes.T, (float(first), float(second))


def _centred(vectors: Float[np.ndarray, "n d"]) -> Points:
    """Unit vectors less their mean, in float64."""
    vectors = np.asarray(vectors, np.float64)
    if not len(vectors):
        return vectors
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors - vectors.mean(0)


@styled
def draw_prompt_map(found: PromptMap) -> "Figure":
    """Prompts as large outlined marks with the class's name, images as small dots of the same colour."""
    from matplotlib.patheffects import withStroke

    samples = len(found.prompts)
    what = f"{samples} prompt{'s' * (samples > 1)} per class (outlined)"
    if len(found.images):
        what += f" and {len(found.images)} images (dots)"
    figure, axes = new_axes(6.4, 5.2, f"PCA of {what}")
    for row, name in enumerate(found.classes):
        colour = COLOURS[row % len(COLOURS)]
        marker = MARKERS[row // len(COLOURS) % len(MARKERS)]
        own = found.images[found.labels == row]
        axes.scatter(*own.T, s=9, color=colour, marker=marker, alpha=0.45, linewidths=0)
        x, y = found.prompts[:, row].T
        axes.scatter(x, y, s=48, color=colour, marker=marker, edgecolors=INK, linewidths=0.8, zorder=3)
        label = axes.annotate(name, (x.mean(), y.max()), (0, 6), textcoords="offset points", ha="center")
        label.set(fontsize=8, zorder=4, path_effects=[withStroke(linewidth=2.5, foreground="white")])
    for axis, (number, share) in zip((axes.xaxis, axes.yaxis), enumerate(found.shares, 1), strict=True):
        axis.set_label_text(f"Principal axis {number} ({share:.0%} of the variance)")
    axes.margins(0.08)
    return figure
