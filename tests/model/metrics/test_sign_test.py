"""The sign test is the binomial's two tails."""

import pytest
from scipy.stats import binomtest

from pbprompt.model.metrics.sign_test import sign_test


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (5, 1), (12, 12), (40, 17), (3, 900)])
def test_it_is_the_two_tailed_binomial(better, worse):
    wanted = binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert sign_test(better, worse) == sign_test(worse, better) == pytest.approx(wanted)
