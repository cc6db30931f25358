"""LP++ with a tower: how its parts make logits (the search itself is in test_blended_probe.py)."""

import numpy as np
import torch

from pbprompt.evidence.rivals.blended_probe import fit_blend
from pbprompt.evidence.rivals.lp_plus_plus import LPPlusPlus


def test_logits(frozen):
    method = frozen.fit(LPPlusPlus, iterations=40)
    weights, bias, alpha = fit_blend(
        torch.tensor(frozen.x), torch.tensor(frozen.labels), torch.tensor(frozen.unit_text), 40
    )
    wanted = frozen.z @ weights.numpy().T + bias.numpy() + alpha.numpy() * (frozen.z @ frozen.unit_text.T)
    np.testing.assert_allclose(frozen.logits(method), wanted, rtol=1e-7)


def test_the_start_is_the_sums_and_the_scaled_text(frozen):
    cosines = frozen.x @ frozen.unit_text.T
    labels = np.array(frozen.labels)
    alpha = 250 * np.mean([cosines[labels == k, k].mean() for k in range(3)])
    wanted = frozen.z @ (frozen.onehot.T @ frozen.x).T + alpha * (frozen.z @ frozen.unit_text.T)
    np.testing.assert_allclose(frozen.logits(frozen.fit(LPPlusPlus, iterations=0)), wanted, rtol=1e-7)
    assert LPPlusPlus.Config().iterations == 300
