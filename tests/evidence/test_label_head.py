"""The fitted head: affine, calibrated, and the same of many images as of the few that stand for them."""

import torch
import torch.nn.functional as F

from pbprompt.evidence import label_head
from pbprompt.evidence.label_head import LabelChoice, affine, fit_label_head, label_statistics, products


def problem(images: int = 60, width: int = 8, labels: int = 3, noise: float = 0.3):
    generator = torch.Generator().manual_seed(2)
    texts = torch.randn(labels, width, generator=generator)
    has = (torch.rand(images, labels, generator=generator) < 0.4).float()
    x = has @ F.normalize(texts) + noise * torch.randn(images, width, generator=generator)
    return F.normalize(x), has, F.normalize(texts)


def test_log_odds_are_affine():
    x, has, texts = problem()
    known, choice = label_statistics(x, has, texts), LabelChoice(2.0, 0.3, 0.1)
    weight, bias = affine(known, choice)
    said = choice.log_odds(products(known, x.double() @ known.basis))
    torch.testing.assert_close(x.double() @ weight.T + bias, said)


def test_labels_are_told():
    x, has, texts = problem(noise=0.1)
    head = fit_label_head(x[:40], has[:40], texts)
    said = head.probabilities(x[40:])
    assert ((said >= head.threshold) == has[40:].bool()).float().mean() > 0.9
    assert head.positives.tolist() == has[:40].sum(0).tolist()
    assert {part.dtype for part in head} == {torch.float32}


def test_some_of_very_many_images_stand_for_all(monkeypatch):
    x, has, texts = problem()
    whole = fit_label_head(x, has, texts)
    monkeypatch.setattr(label_head, "CELLS", 8 * 30)
    part = fit_label_head(x, has, texts)
    assert torch.equal(part.positives, whole.positives)  # all are fitted to, half are left out
    assert (part.probabilities(x) - whole.probabilities(x)).abs().max() < 0.2
    assert not torch.equal(part.bias, whole.bias)
