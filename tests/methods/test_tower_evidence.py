"""A tower tuned by its evidence, against left-out densities computed one photograph at a time."""

import pytest
import torch
from torch import Tensor

from pbprompt.clip.backbone import Encoded
from pbprompt.core.expert_weights import fit_weights
from pbprompt.core.gaussian import KAPPA, diagonalise
from pbprompt.core.likelihood import unit
from pbprompt.core.statistics import Statistics
from pbprompt.core.text_map import learn_text_map
from pbprompt.errors import InputError
from pbprompt.methods.base import Batch, build_method
from pbprompt.methods.conjugate import Conjugate, ConjugateConfig
from pbprompt.methods.tower_evidence import (
    MOST,
    TowerEvidence,
    TowerEvidenceConfig,
    folds_of,
    left_out_terms,
)
from pbprompt.model.predictor import predictive
from pbprompt.testing.fits import NAMES, as_tuned, fitted, random_images, tiny_vit, to_train_on

SCALE = 30.0


def photographs(count: int = 11, width: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    labels = torch.arange(count) % 3
    centres = torch.randn(4, width, dtype=torch.float64)
    images = centres[labels] + 0.7 * torch.randn(count, width, dtype=torch.float64)
    texts = unit(centres + torch.randn(4, width, dtype=torch.float64))
    return images, labels, texts


def plain_densities(images: Tensor, labels: Tensor, texts: Tensor) -> Tensor:
    """L_c of each photograph under the posterior without it; what the shape is made of stays."""
    x = images / images.norm(dim=1, keepdim=True)
    fixed, classes, d = x.detach(), len(texts), x.shape[1]
    counts = torch.bincount(labels)
    means = torch.stack([fixed[labels == c].mean(0) for c in range(classes)])
    frame = diagonalise(
        Statistics.of(fixed, labels, classes), learn_text_map(means, counts.double(), texts)[1]
    )
    basis, centre = frame.basis, frame.basis @ frame.centre
    # (S + a I)/M as a matrix, S itself, and each name's place
    whole = basis @ frame.sigma.diag() @ basis.T * frame.size
    names = frame.priors @ basis.T
    rows = []
    for i in range(len(x)):
        row = []
        for c in range(classes):
            own = int(labels[i]) == c
            some = [j for j in range(len(x)) if labels[j] == c and not (own and j == i)]
            mean = sum(x[j] for j in some) / len(some) - centre
            middle = (KAPPA * names[c] + len(some) * mean) / (KAPPA + len(some))
            r = x[i] - sum(x[j] for j in range(len(x)) if labels[j] == labels[i]) / counts[labels[i]]
            n = float(counts[labels[i]])
            shape = (whole - n / (n - 1) * torch.outer(r, r)) / (frame.size - 1)
            iota = 1 + 1 / (KAPPA + len(some))
            apart = x[i] - centre - middle
            distance = apart @ torch.linalg.solve(shape, apart) / iota
            row.append(-0.5 * distance - 0.5 * d * torch.log(torch.tensor(iota, dtype=torch.float64)))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def test_the_evidence_and_its_gradient():
    images, labels, texts = photographs()
    plain = images.clone().requires_grad_()
    names = texts[:3] - texts[:3].mean(0)
    by_name = SCALE * plain / plain.norm(dim=1, keepdim=True) @ names.T
    experts = torch.stack([plain_densities(plain, labels, texts[:3]), by_name])
    with torch.no_grad():
        spread = [experts[at].var(1).mean().sqrt() for at in (0, 1)]
        usual = torch.stack([0.5 * spread[1] / spread[0], torch.tensor(0.5, dtype=torch.float64)])
        weights = fit_weights(experts, labels, usual).best
    logits = weights[0] * experts[0] + weights[1] * experts[1]
    wanted = -(logits - logits.exp().sum(1, keepdim=True).log())[torch.arange(11), labels].mean()
    (gradient,) = torch.autograd.grad(wanted, plain)

    given = images.clone().requires_grad_()
    terms = left_out_terms(given, labels, texts, SCALE)  # the fourth class has no photograph
    (found,) = torch.autograd.grad(terms["total"], given)
    torch.testing.assert_close(terms["total"], wanted, rtol=1e-8, atol=0)
    torch.testing.assert_close(found, gradient, rtol=1e-6, atol=1e-9)
    assert terms["accuracy"] == (logits.argmax(1) == labels).float().mean()


def test_folds_are_dealt_within_classes_whatever_the_order():
    images, labels, _ = photographs(24)
    folds = folds_of(images, labels, 4)
    for label in range(3):
        assert torch.bincount(folds[labels == label], minlength=4).tolist() == [2, 2, 2, 2]
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    assert torch.equal(folds_of(images[order], labels[order], 4), folds[order])
    single = folds_of(images[:3], labels[:3], 2)  # with one photograph a class no adapter is without any
    assert set(single.tolist()) == {0, 1}


def test_an_adapter_never_sees_its_fold():
    method = build_method(TowerEvidence, TowerEvidenceConfig(adapters=2, last=1), tiny_vit(), seed=1)
    method.prepare(NAMES, "a {}.")
    for name, value in method.named_parameters():
        if name.endswith("up"):
            torch.nn.init.normal_(value)
    images = to_train_on(method, random_images(tiny_vit()))
    folds = folds_of(images.global_, images.labels, 2)

    def gradients(states: Tensor) -> list[Tensor]:
        batch = method.encoded(Batch(Encoded(images.global_, states), images.labels))
        total = method.loss(batch, torch.Generator(), len(images))["total"]
        return torch.autograd.grad(total, [taps.at(1).up for taps in method.image_taps[:2]])

    states = images.patches.float()
    before = gradients(states)
    other = states.clone()
    other[folds == 0] += 1
    after = gradients(other)
    assert torch.equal(before[0], after[0]) and not torch.equal(before[1], after[1])


def test_the_answer_is_the_mean_over_towers():
    method = fitted(TowerEvidence, {"adapters": 2, "learning_rate": 0.05}, tiny_vit())
    images = random_images(tiny_vit())
    seen = as_tuned(method, to_train_on(method, images))
    encoded = Encoded(seen.global_, seen.patches)
    with torch.no_grad():
        said = predictive(method, 4)(encoded).probabilities
        parts = seen.global_.split(32, dim=1)
        wanted = []
        for at, part in enumerate(parts):
            reader = Conjugate(ConjugateConfig(), tiny_vit())
            reader.prepare(NAMES, "a {}.")
            reader.begin(Encoded(part, seen.patches), images.labels, 0)
            reader.finish()
            own = reader.sample_logits(
                Encoded(part, seen.patches), reader.class_features(4, torch.Generator())
            )
            heat = 1.0 if at == 2 else float(method.temperature)
            wanted.append((own.log_softmax(-1) / heat).softmax(-1).mean(0))
    torch.testing.assert_close(said, torch.stack(wanted).mean(0), rtol=1e-4, atol=1e-6)
    assert torch.equal(parts[2], to_train_on(method, images).global_)  # the last tower is the frozen one
    probabilities, labels = method.left_out()
    assert torch.equal(labels, images.labels)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(12))
    assert not method.has_enough_to_tell()  # as conjugate of so few


def test_too_many_photographs_are_refused():
    method = build_method(TowerEvidence, TowerEvidenceConfig(), tiny_vit(), seed=1)
    with pytest.raises(InputError, match=r"takes up to 4,096 photographs, and there are 4,097: draw fewer"):
        method.images_a_step(MOST + 1)
    with pytest.raises(InputError, match="'batch_size' is 8: it takes 0"):
        TowerEvidenceConfig(batch_size=8)
