"""The map's axes, against the eigenvectors of the covariance; and its picture and table."""

import csv
import io

import numpy as np
import pytest

from pbprompt.apps.explain.prompt_map import draw_prompt_map, map_prompts, principal_plane
from pbprompt.errors import InputError

CLASSES = ("cat", "dog", "car")


def points(seed=0, images=9):
    rng = np.random.default_rng(seed)
    stretch = np.array([4, 2.5, 1, 1, 0.5, 0.2])
    return (
        (rng.normal(size=(5, 3, 6)) * stretch + 3).astype(np.float32),
        (rng.normal(size=(images, 6)) * stretch - 2).astype(np.float32),
        np.arange(images) % 3,
    )


def by_eigenvectors(prompts, images):
    parts = []
    for part in (prompts.reshape(-1, 6), images):
        rows = [row / np.sqrt((row**2).sum()) for row in part.astype(np.float64)]
        parts += [row - sum(rows) / len(rows) for row in rows]
    x = np.array(parts)
    values, vectors = np.linalg.eigh(x.T @ x)
    axes = vectors[:, ::-1][:, :2]
    for k in range(2):
        if axes[np.abs(axes[:, k]).argmax(), k] < 0:
            axes[:, k] *= -1
    return x @ axes, values[::-1][:2] / values.sum()


def test_axes_by_eigenvectors():
    prompts, images, labels = points()
    found = map_prompts(prompts, images, labels, CLASSES)
    coordinates, shares = by_eigenvectors(prompts, images)
    np.testing.assert_allclose(found.prompts, coordinates[:15].reshape(5, 3, 2), atol=1e-9)
    np.testing.assert_allclose(found.images, coordinates[15:], atol=1e-9)
    np.testing.assert_allclose(found.shares, shares, atol=1e-12)
    assert found.shares[0] > found.shares[1] > 0


def test_the_gap_between_texts_and_images_is_no_axis():
    prompts, images, labels = points()
    found = map_prompts(prompts, images, labels, CLASSES)
    np.testing.assert_allclose(found.prompts.mean((0, 1)), 0, atol=1e-12)
    np.testing.assert_allclose(found.images.mean(0), 0, atol=1e-12)


def test_signs_are_fixed():
    centred = points()[0].reshape(-1, 6).astype(np.float64)
    centred -= centred.mean(0)
    one, other = principal_plane(centred)[0], principal_plane(-centred)[0]
    np.testing.assert_allclose(one, -other, atol=1e-12)


def test_without_images_and_too_few_points():
    prompts, images, labels = points(images=0)
    assert map_prompts(prompts, images, labels, CLASSES).images.shape == (0, 2)
    with pytest.raises(InputError, match="at least 3 points, not 2"):
        map_prompts(prompts[:1, :2], images, labels, CLASSES[:2])


def test_the_table_has_every_point():
    found = map_prompts(*points(), CLASSES)
    rows = list(csv.DictReader(io.StringIO(found.as_csv())))
    assert len(rows) == 15 + 9
    at = rows[5 + 2]  # the second class's third prompt
    assert (at["kind"], at["class"], at["sample"]) == ("prompt", "dog", "3")
    assert [float(at["x"]), float(at["y"])] == pytest.approx(found.prompts[2, 1].tolist(), abs=1e-6)
    assert (rows[-1]["kind"], rows[-1]["class"], rows[-1]["sample"]) == ("image", "car", "")


def test_the_picture_has_every_point_and_says_pca():
    pytest.importorskip("matplotlib")
    found = map_prompts(*points(), CLASSES)
    axes = draw_prompt_map(found).axes[0]
    assert "PCA of 5 prompts per class" in axes.get_title(loc="left") and "9 images" in axes.get_title(
        loc="left"
    )
    assert "of the variance" in axes.get_xlabel()
    dots = [np.asarray(part.get_offsets()) for part in axes.collections]
    np.testing.assert_allclose(dots[0], found.images[found.labels == 0])
    np.testing.assert_allclose(dots[1], found.prompts[:, 0])
    assert [text.get_text() for text in axes.texts] == list(CLASSES)
