"""What a notebook shows."""

import numpy as np
import pytest

from pbprompt import PromptClassifier


@pytest.fixture(scope="module")
def table(tiny_vit):
    x = np.random.default_rng(0).normal(size=(6, tiny_vit.embed_dim)).astype(np.float32)
    return x, np.array(["cat", "<dog>"] * 3)


def test_what_was_chosen_and_that_it_is_not_fitted():
    shown = PromptClassifier("coop", settings={"epochs": 2})._repr_html_()
    assert "coop" in shown and "{&#x27;epochs&#x27;: 2}" in shown and "not fitted" in shown
    assert "template" not in shown


def test_a_fitted_one(tiny_vit, table):
    classifier = PromptClassifier(backbone=tiny_vit).fit(*table, eval_set=table)
    shown = classifier._repr_html_()
    assert "2: &lt;dog&gt;, cat" in shown and "<dog>" not in shown
    assert "val images" in shown and classifier.calibration_.rests_on in shown
    bundle = classifier._repr_mimebundle_(include=None, exclude=None)
    assert bundle == {"text/plain": repr(classifier), "text/html": shown}
