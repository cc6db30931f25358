import torch

from pbprompt.train.order import epoch_order


def epoch(weights, number):
    images = 5 if weights is None else len(weights)
    return epoch_order(images, weights, torch.Generator().manual_seed(number))


def test_every_image_once_without_weights_or_with_equal_ones():
    for weights in (None, torch.full((5,), 0.2)):
        orders = [epoch(weights, number).tolist() for number in range(20)]
        assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
        assert len(set(map(tuple, orders))) > 10


def test_an_image_comes_up_as_often_as_it_counts():
    weights = torch.tensor([0.1, 2.5, 1.0, 0.4, 1.0])
    met = torch.stack([epoch(weights, number).bincount(minlength=5) for number in range(2000)])
    assert (met.sum(1) == 5).all()
    assert (met >= weights.floor()).all() and (met <= weights.ceil()).all()
    torch.testing.assert_close(met.double().mean(0), weights.double(), atol=0.04, rtol=0)


def test_the_same_generator_gives_the_same_order():
    weights = torch.tensor([3.0, 1.0, 0.5])
    assert epoch(weights, 4).equal(epoch(weights, 4))
