"""Each name by itself: the sigmoid reading."""

import numpy as np
import torch

from pbprompt.core.independent import independent


def test_probabilities_and_entropy_are_those_of_separate_questions():
    logits = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(0)) * 4
    said = independent(logits, bias=-2.0)
    p = 1 / (1 + np.exp(-(logits[0].double().numpy() - 2)))
    np.testing.assert_allclose(said.probabilities.numpy(), p, rtol=1e-5)
    doubt = -(p * np.log(p) + (1 - p) * np.log1p(-p)).sum(1)
    np.testing.assert_allclose(said.entropy.numpy(), doubt, rtol=1e-4)
    assert not said.mutual_information.any() and not said.spreads.any()


def test_a_name_keeps_its_probability_whatever_the_others_are():
    logits = torch.randn(1, 4, 6)
    alone = independent(logits[..., :1], bias=0.5).probabilities
    assert torch.equal(alone, independent(logits, bias=0.5).probabilities[:, :1])


def test_certainty_is_no_doubt():
    said = independent(torch.tensor([[[200.0, -200.0]]]), bias=0.0)
    assert said.probabilities.tolist() == [[1.0, 0.0]] and said.entropy.tolist() == [0.0]
