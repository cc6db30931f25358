"""How far an image is left to the names."""

import numpy as np
import pytest
import scipy.stats
import torch

from pbprompt.core.domain_gate import share_of_names, student_tail


@pytest.mark.parametrize("freedom", [3, 5, 20, 400])
def test_student_tail(freedom):
    t = torch.linspace(-40, 40, 2001, dtype=torch.float64)
    np.testing.assert_allclose(student_tail(t, freedom), scipy.stats.t.sf(t.numpy(), freedom), atol=1e-3)


def test_the_share_grows_with_the_distance():
    usual = torch.tensor([3.0, 4.0, 5.0, 4.5, 3.5, 4.2])
    share = share_of_names(torch.tensor([1.0, 4.0, 6.0, 8.0, 40.0]), usual, torch.tensor(0.25))
    assert share[:2].tolist() == [0, 0]
    assert (share.diff() >= 0).all() and 0 < share[2] < share[3]
    assert share[-1].item() == pytest.approx(0.5, abs=1e-3)  # √I
