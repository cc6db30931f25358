"""The linear probe against scikit-learn, its search for C included."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from pbprompt.errors import InputError
from pbprompt.evidence.rivals.linear import LinearProbe, LinearProbeConfig, best_strength
from pbprompt.vision.towers.backbone import Encoded


def test_logits(frozen):
    method = frozen.fit(LinearProbe, strength=20.0)
    theirs = LogisticRegression(C=20.0, tol=1e-12, max_iter=100_000).fit(frozen.x, frozen.labels)
    wanted = theirs.decision_function(frozen.z)
    found = frozen.logits(method)
    wanted, found = (z - z.mean(1, keepdims=True) for z in (wanted, found))
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_the_strength_has_the_best_held_out_likelihood():
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([0, 1, 2, 3] * 4 + [0, 1])
    x = torch.randn(4, 12, generator=generator)[y] + 2.5 * torch.randn(len(y), 12, generator=generator)
    x = torch.nn.functional.normalize(x, dim=1).double()
    typical = 30.0
    strengths = [typical * 10 ** (half / 2) for half in range(-4, 5)]
    places = [int((y[:i] == y[i]).sum()) % 5 for i in range(len(y))]
    losses = []
    for strength in strengths:
        total = 0.0
        for fold in range(5):
            held = np.array(places) == fold
            theirs = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(x[~held], y[~held])
            total -= theirs.predict_log_proba(x[held])[range(held.sum()), y[held]].sum()
        losses.append(total)
    assert 0 < np.argmin(losses) < 8  # within the grid, so that it says something
    assert best_strength(x, y, typical) == strengths[int(np.argmin(losses))]


def test_one_shot_takes_the_strength_of_zero_shots_length(frozen):
    one_each = frozen.encoded(3, seed=5)
    method = frozen.fit(LinearProbe, labels=(2, 0, 1), images=one_each)
    typical = 100.0**2 / frozen.backbone.embed_dim
    given = frozen.fit(LinearProbe, labels=(2, 0, 1), images=one_each, strength=typical)
    np.testing.assert_allclose(frozen.logits(method), frozen.logits(given), rtol=1e-9)


def test_other_names_and_settings_are_refused(frozen):
    method = frozen.fit(LinearProbe, strength=1.0)
    with pytest.raises(InputError, match="linear-probe knows only the classes"):
        method.prepare(("cat", "dog"), frozen.template)
    with pytest.raises(InputError, match="strength"):
        LinearProbeConfig(strength=-1)


def test_an_offset_that_all_features_share_leaves_the_classes_apart(frozen):
    """As the features of many towers have one: C is searched further, as far as it takes."""
    offset = 2000 * torch.ones(frozen.backbone.embed_dim, dtype=torch.float64)
    y = torch.arange(24) % 3
    drawn = frozen.encoded(24, seed=4).global_
    images = Encoded(offset + 20 * frozen.encoded(3, seed=3).global_[y] + drawn, drawn[:, None])
    found = frozen.fit(LinearProbe, labels=y.tolist(), images=images)
    p = torch.from_numpy(frozen.logits(found, images)).softmax(1)
    assert p[torch.arange(24), y].min() > 0.9
