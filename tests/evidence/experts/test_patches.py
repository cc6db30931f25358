"""Patches that look alike, against plain NumPy and real refits."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pbprompt.evidence.experts import patches as expert
from pbprompt.evidence.experts.patches import (
    PatchFrame,
    clusters,
    compare,
    dealt,
    fit_patches,
    patch_sums,
    patches_of,
    regions,
    spoken_for,
)


def photographs(counts, seed=0, m=6, width=5):
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    means = 2 * torch.randn(len(counts), 1, width, generator=chance)
    return means[labels] + torch.randn(len(labels), m, width, generator=chance), labels


def plain_frame(patches, labels):
    """b and W Wᵀ by loops over the patches."""
    rows = [
        (u / np.linalg.norm(u), label) for image, label in zip(patches, labels, strict=True) for u in image
    ]
    means = {label: np.mean([u for u, own in rows if own == label], axis=0) for label in sorted(set(labels))}
    within = sum(np.outer(u - means[label], u - means[label]) for u, label in rows) / (len(rows) - len(means))
    sphere = np.trace(within) / len(within) * np.eye(len(within))
    shrunk = (1 - expert.SPHERE) * within + expert.SPHERE * sphere
    return np.mean(list(means.values()), axis=0), np.linalg.inv(shrunk)


def plain_scores(image, centre, precision, prototypes):
    """P_c of one image; `prototypes`: of each class, in the space of û."""
    root = np.linalg.cholesky(precision)

    def place(u):
        v = (u - centre) @ root
        return v / np.linalg.norm(v)

    scores = np.zeros(len(prototypes))
    for u in image:
        v = place(u / np.linalg.norm(u))
        best = np.array([max(v @ place(p) for p in own) for own in prototypes])
        behind = np.sort(best)[::-1][min(expert.RIVALS, len(best) - 1)]
        scores += np.maximum(0, best - behind) / len(image)
    return scores


def test_where_patches_are_compared():
    patches, labels = photographs([3, 2, 4])
    frame = PatchFrame.of(patch_sums(regions(patches), labels, 3))
    centre, precision = plain_frame(patches.double().numpy(), labels.numpy())
    np.testing.assert_allclose(frame.centre, centre, atol=1e-5)
    np.testing.assert_allclose(frame.whiten @ frame.whiten.T, precision, rtol=1e-3, atol=1e-3)
    parts = [patch_sums(regions(patches[some]), labels[some], 3) for some in (slice(0, 4), slice(4, 9))]
    again = PatchFrame.of(parts[0].merged(parts[1]))
    np.testing.assert_allclose(again.centre, frame.centre, atol=1e-6)


def test_scores_against_loops(monkeypatch):
    monkeypatch.setattr(expert, "RIVALS", 2)
    patches, labels = photographs([2, 2, 2, 2])
    fitted = fit_patches(patches, labels, torch.zeros_like(labels), 4)  # 12 patches a class: all are kept
    new, _ = photographs([1, 1, 1], seed=4)
    centre, precision = plain_frame(patches.double().numpy(), labels.numpy())
    own = [regions(patches[labels == label]).flatten(0, 1).double().numpy() for label in range(4)]
    plain = [plain_scores(image, centre, precision, own) for image in new.double().numpy()]
    found = fitted.spoken_for(new).sum(1) * fitted.spread
    np.testing.assert_allclose(found, plain, atol=0.01)  # prototypes are rounded to bytes
    assert ((found > 0).sum(1) <= 4).all()


def test_a_patch_speaks_for_its_nearest_classes_alone(monkeypatch):
    monkeypatch.setattr(expert, "RIVALS", 2)
    best = torch.tensor([0.5, 0.1, 0.4, 0.3, 0.2])
    np.testing.assert_allclose(spoken_for(best), [0.2, 0, 0.1, 0, 0], atol=1e-7)
    np.testing.assert_allclose(spoken_for(best[:2]), [0.4, 0], atol=1e-7)
    assert spoken_for(best[:1]).tolist() == [0]


@pytest.mark.parametrize("counts", [[4, 4, 4], [5, 1, 3], [2, 2], [16, 3]])
def test_held_out_photographs_against_refits(counts):
    patches, labels = photographs(counts)
    half = patches.half()
    parts = torch.cat([torch.arange(count) % min(4, max(counts)) for count in counts])
    fitted = fit_patches(half, labels, parts, len(counts))
    held_out = fitted.held_out.float()
    np.testing.assert_allclose(held_out.var(1).mean().sqrt(), 1, rtol=1e-3)
    for part in parts.unique():
        rest, gone = parts != part, parts == part
        apart = torch.unique(parts[rest], return_inverse=True)[1]
        each = -(-expert.PROTOTYPES // (int(parts.max()) + 1))
        made = [
            expert.PatchPart.of(
                half[rest], labels[rest], (apart == one).nonzero().squeeze(1), len(counts), each
            )
            for one in apart.unique()
        ]
        refit = patches_of(made)._replace(spread=fitted.spread)
        np.testing.assert_allclose(held_out[gone], refit.spoken_for(half[gone]).sum(1), rtol=1e-3, atol=1e-3)


def test_nothing_of_a_photograph_is_in_what_judges_it():
    """Whatever the photographs of a part show, the prototypes and the frame that judge them stay."""
    patches, labels = photographs([4, 4])
    parts = torch.arange(8) % 4
    changed = patches.clone()
    changed[parts == 2] = 9 * torch.randn(2, *patches.shape[1:])
    # another photograph in the place of the first of part 2, judged by what never saw either

    def judged(some):
        fitted = fit_patches(some, labels, parts, 2)
        return fitted.held_out * fitted.spread

    assert not torch.equal(*(judged(some)[parts != 2] for some in (patches, changed)))
    changed[parts == 2] = patches[parts == 2]
    changed[6] = patches[2]
    torch.testing.assert_close(*(judged(some)[2] for some in (patches, changed)))


def test_clusters_find_what_is_alike():
    ends = F.normalize(torch.eye(3)).repeat_interleave(20, 0)
    noisy = F.normalize(ends + 0.05 * torch.randn(60, 3, generator=torch.Generator().manual_seed(0)))
    means, like = clusters(noisy, 3)
    assert sorted(F.normalize(means).argmax(1).tolist()) == [0, 1, 2]
    assert (noisy[like] * F.normalize(means)).sum(1).min() > 0.99
    few, like = clusters(noisy[:2], 3)
    assert torch.equal(few, noisy[:2])
    assert like.tolist() == [0, 1]


def test_prototypes_know_where_they_are_from():
    patches, labels = photographs([3, 1])
    fitted = fit_patches(patches, labels, torch.zeros_like(labels), 2)
    image, place = fitted.sources[0, 0].tolist()
    itself = fitted.similar(patches[image : image + 1])[0, place, 0, 0]
    assert itself > 0.999
    assert set(fitted.sources[1, :, 0].tolist()) == {3}


def test_photographs_that_say_nothing():
    patches = torch.ones(4, 3, 5)
    fitted = fit_patches(patches, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]), 2)
    assert fitted.held_out.isfinite().all()
    assert fitted.spoken_for(torch.randn(2, 3, 5)).isfinite().all()


def test_of_single_photographs_none_speaks_for_its_own_class():
    patches, labels = photographs([1, 1, 1])
    fitted = fit_patches(patches, labels, dealt(labels), 3)
    assert not fitted.held_out.diagonal().any()
    assert fitted.held_out.any()
    assert (fitted.spoken_for(patches).sum(1).argmax(1) == labels).all()


def test_photographs_are_dealt_evenly():
    labels = torch.tensor([0, 1, 0, 0, 1, 0, 0, 2])
    assert dealt(labels).tolist() == [0, 0, 1, 2, 1, 3, 0, 0]
    assert dealt(torch.tensor([0, 0, 1])).tolist() == [0, 1, 0]
    series = torch.tensor([0, 1, 0, 2, 3, 0, 0, 1])
    parts = dealt(labels, series)
    assert len(parts[(labels == 0) & (series == 0)].unique()) == 1
    assert len(parts[labels == 0].unique()) == len(parts[labels == 1].unique()) == 2


def test_a_fine_grid_is_read_in_squares():
    grid = torch.randn(2, 14, 14, 5)
    found = regions(grid.flatten(1, 2))
    plain = grid.unflatten(2, (7, 2)).unflatten(1, (7, 2)).mean((2, 4)).flatten(1, 2)
    np.testing.assert_allclose(found, F.normalize(plain, dim=-1), atol=1e-6)
    assert regions(grid[:, :1, :5].flatten(1, 2)).shape == (2, 5, 5)
    assert regions(torch.ones(1, 81, 5)).shape == (1, 25, 5)


def test_the_order_of_photographs_does_not_matter():
    """Some of them are compared, and sources are rows of all."""
    patches, labels = photographs([4, 5, 3])
    images, rows = patches.mean(1), torch.tensor([0, 1, 2, 5, 6, 7, 9, 10, 11])
    found = compare(images, patches, rows, labels[rows])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    other = compare(images, patches, rows[order], labels[rows][order])
    torch.testing.assert_close(other.held_out, found.held_out[order], rtol=1e-3, atol=2e-3)
    assert torch.equal(other.sources, found.sources)
    assert set(found.sources[..., 0].flatten().tolist()) <= set(rows.tolist())
    assert (labels[found.sources[..., 0]] == torch.arange(3).unsqueeze(1)).all()
