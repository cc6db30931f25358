"""The mean cosine between sampled prompts, against a loop over the pairs."""

import numpy as np
import pytest
import torch

from pbprompt.core.diversity import sampled_cosine


def test_a_loop_over_pairs():
    prompts = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(0))
    found = sampled_cosine(prompts)
    for c in range(3):
        rows = prompts[:, c].double().numpy()
        pairs = [
            rows[s] @ rows[t] / np.linalg.norm(rows[s]) / np.linalg.norm(rows[t])
            for s in range(5)
            for t in range(s + 1, 5)
        ]
        assert found[c].item() == pytest.approx(np.mean(pairs), abs=1e-6)


def test_equal_draws_are_a_collapse_and_one_draw_has_no_pair():
    one = torch.randn(1, 2, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(sampled_cosine(one.expand(4, -1, -1)), torch.ones(2))
    assert sampled_cosine(one).isnan().all()
