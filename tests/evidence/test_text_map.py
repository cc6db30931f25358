"""Where names are moved to by what other classes' photographs teach."""

import torch

from pbprompt.evidence.text_map import WORTH, learn_text_map, move

COUNTS = torch.tensor([4.0, 1, 2, 8, 3, 5], dtype=torch.float64)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(classes: int = 6, width: int = 9):
    texts = draw(classes, width)
    return 0.4 * texts + 0.3 * texts.roll(1, 1) + 0.1 * draw(classes, width, seed=1), texts


def ridge(names, left_over, worth: float) -> torch.Tensor:
    """argmin ‖names R − left_over‖² + worth ‖R‖², by least squares on more rows."""
    width = names.shape[1]
    more = worth**0.5 * torch.eye(width, dtype=torch.float64)
    return torch.linalg.lstsq(
        torch.cat([names, more]), torch.cat([left_over, torch.zeros_like(more)])
    ).solution


def test_against_regressions_without_each_class():
    means, texts = problem()
    found, moved = learn_text_map(means, COUNTS, texts)
    names, away = texts - texts.mean(0), means - means.mean(0)
    size = names.square().sum(1).mean()
    gain = (names * away).sum() / names.square().sum()
    worth = WORTH * (1 + 2 * (1 / COUNTS).mean()) * size
    torch.testing.assert_close(found.learned, ridge(names, away - gain * names, float(worth)))
    for c in range(6):
        rest = torch.arange(6) != c
        without = ridge(names[rest], (away - gain * names)[rest], float(worth))
        direction = gain * names[c] + names[c] @ without
        torch.testing.assert_close(moved[c], texts.mean(0) + size.sqrt() * direction / direction.norm())


def test_a_new_name_is_moved_by_all_classes():
    means, texts = problem()
    (found, _), new = learn_text_map(means, COUNTS, texts), draw(2, 9, seed=5)
    away = new - texts.mean(0)
    direction = found.gain * away + away @ found.learned
    expected = texts.mean(0) + found.length * torch.nn.functional.normalize(direction)
    torch.testing.assert_close(move(found, new), expected)


def test_many_classes_teach_where_names_lie():
    """Images that are a turn of the texts: with many classes a new name is moved towards its images."""
    skew = 0.2 * draw(12, 12, seed=3)
    turn = torch.linalg.matrix_exp(skew - skew.T)
    texts, new = draw(4000, 12), draw(5, 12, seed=4)
    found, _ = learn_text_map(texts @ turn, torch.full((4000,), 16.0, dtype=torch.float64), texts)
    moved = move(found, new)
    cosine = torch.nn.functional.cosine_similarity
    assert (cosine(moved, new @ turn) > cosine(new, new @ turn)).all()
    assert (cosine(moved, new @ turn) > 0.95).all()


def test_names_that_point_away_keep_their_direction():
    """Nothing is learned of them: all are as long as they are in the mean, new ones too."""
    means, texts = problem()
    found, moved = learn_text_map(-means, COUNTS, texts)
    assert (found.learned == 0).all() and found.gain == 1
    names = texts - texts.mean(0)
    length = names.square().sum(1).mean().sqrt()
    torch.testing.assert_close(moved, texts.mean(0) + length * torch.nn.functional.normalize(names))
    torch.testing.assert_close(move(found, texts), moved)


def test_names_that_say_nothing_stay():
    means, texts = problem()
    equal = texts[:1].expand(6, -1)
    for silent in (equal, torch.zeros_like(texts)):
        found, moved = learn_text_map(means, COUNTS, silent)
        torch.testing.assert_close(moved, silent, rtol=0, atol=1e-9)
        assert (found.learned == 0).all()
    found, moved = learn_text_map(means[:1], COUNTS[:1], texts[:1])
    torch.testing.assert_close(moved, texts[:1])
    assert move(found, texts).isfinite().all()


def test_a_name_with_photographs_says_no_more_than_one_without():
    """t̂ of a class is that of a new name by the others, up to their own mean and gain: its photographs do
    not move it."""
    means, texts = problem()
    other = means.clone()
    other[2] += 5 * (texts[2] - texts.mean(0))  # along its name: only the gain sees it
    plain, turned = (learn_text_map(each, COUNTS, texts)[1][2] - texts.mean(0) for each in (means, other))
    assert torch.nn.functional.cosine_similarity(plain, turned, dim=0) > 0.99
