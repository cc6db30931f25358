"""Photographs that are nearly the same picture."""

import torch

from pbprompt.core.look_alikes import Alike, look_alikes


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def burst():
    """Class 0: five pictures, the last two nearly copies of the first; class 1: four apart."""
    images = draw(9, 40)
    images[3:5] = images[:1] + 0.1 * draw(2, 40, seed=1)
    return images, torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1])


def test_a_burst_is_found():
    alike = look_alikes(*burst())
    assert alike.sizes.tolist() == [3, 1, 1, 3, 3, 1, 1, 1, 1]


def test_against_all_pairs():
    images, labels = draw(30, 3, seed=2), torch.arange(30) % 4
    alike = look_alikes(images, labels)
    for i in range(30):
        own = [j for j in range(30) if labels[j] == labels[i] and j != i]
        far = {j: float((images[i] - images[j]).square().sum()) for j in own}
        near = [j for j in own if far[j] < 0.5 * sum(far.values()) / len(own)]
        assert alike.sizes[i] == 1 + len(near)
        torch.testing.assert_close(alike.means[i], images[[i, *near]].mean(0))
    assert (alike.sizes > 1).any()


def test_of_many_the_nearest_fifteen_count():
    """Two styles of one class: forty images close together, forty elsewhere."""
    images = 0.1 * draw(80, 20, seed=3)
    images[40:] += 1
    alike = look_alikes(images, torch.zeros(80, dtype=torch.long))
    assert (alike.sizes == 16).all()
    nearest = torch.cdist(images, images)[7].argsort()[:16]
    torch.testing.assert_close(alike.means[7], images[nearest].mean(0))
    few = look_alikes(images[32:48], torch.zeros(16, dtype=torch.long))
    assert few.sizes.tolist() == [8] * 16, "sixteen images can have no more"


def test_the_order_of_images_does_not_matter():
    images, labels = burst()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    whole, other = look_alikes(images, labels), look_alikes(images[order], labels[order])
    torch.testing.assert_close(other.means, whole.means[order])
    assert other.sizes.equal(whole.sizes[order])


def test_few_or_equal_images_have_none():
    images = draw(4, 3)
    assert look_alikes(images, torch.tensor([0, 0, 1, 5])).sizes.tolist() == [1, 1, 1, 1]
    equal = look_alikes(images[:1].repeat(4, 1), torch.zeros(4, dtype=torch.long))
    assert equal.sizes.tolist() == [1, 1, 1, 1]


def test_none_and_at():
    images = draw(4, 3)
    some = Alike.none(images).at(torch.tensor([2, 0]))
    assert some.means.equal(images[[2, 0]]) and some.sizes.tolist() == [1, 1]


def test_weights_count_among_look_alikes():
    images, labels = burst()
    weights = torch.linspace(0.5, 2, len(labels)).to(images)
    plain, weighted = look_alikes(images, labels), look_alikes(images, labels, weights)
    assert plain.sizes[3] == 3
    row, near = 3, torch.tensor([0, 3, 4])
    torch.testing.assert_close(weighted.sizes[row], weights[near].sum())
    expected = (weights[near].unsqueeze(1) * images[near]).sum(0) / weights[near].sum()
    torch.testing.assert_close(weighted.means[row], expected)
    assert weighted.weights.equal(weights)
