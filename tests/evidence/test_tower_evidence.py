"""A tower tuned by its evidence, against class means computed one photograph at a time."""

import pytest
import torch
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.evidence.temperature import fit_temperature
from pbprompt.evidence.tower_evidence import KAPPA, TowerEvidence, TowerEvidenceConfig, left_out_terms
from pbprompt.learners.fitted import LeavesOut
from pbprompt.learners.method import Batch, build_method
from pbprompt.model.predictor import predictive
from pbprompt.testing.fits import NAMES, as_tuned, fitted, random_images, tiny_vit, to_train_on
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Encoded


def photographs(labels: Tensor, width: int = 6) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    centres = torch.randn(4, width, dtype=torch.float64)
    images = centres[labels] + 0.7 * torch.randn(len(labels), width, dtype=torch.float64)
    return images, unit(centres + torch.randn(4, width, dtype=torch.float64))


def plain_scores(images: Tensor, labels: Tensor, texts: Tensor) -> Tensor:
    """Minus half the squared distance to each class without the photograph, its own length apart."""
    x = images / images.norm(dim=1, keepdim=True)
    classes = range(len(texts))
    fixed = torch.stack([x.detach()[labels == c].mean(0) for c in classes])
    apart, names = fixed - fixed.mean(0), texts - texts.mean(0)
    slope = max(0.0, float((apart * names).sum() / (names * names).sum()))
    rows = []
    for i in range(len(x)):
        row = []
        for c in classes:
            others = [x[j] for j in range(len(x)) if labels[j] == c and j != i]
            place = fixed.mean(0) + slope * names[c]
            middle = (KAPPA * place + sum(others)) / (KAPPA + len(others))
            row.append((x[i] @ x[i] - (x[i] - middle) @ (x[i] - middle)) / 2)
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.mark.parametrize("counts", [(4, 4, 3), (1, 1, 1), (5, 1, 2)])
def test_the_loss_and_its_gradient(counts: tuple[int, ...]):
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    images, texts = photographs(labels)
    plain = images.clone().requires_grad_()
    scores = plain_scores(plain, labels, texts[:3])
    logits = scores / fit_temperature(scores, labels, 1 / (len(labels) + 2))
    wanted = -(logits - logits.exp().sum(1, keepdim=True).log())[torch.arange(len(labels)), labels].mean()
    (gradient,) = torch.autograd.grad(wanted, plain)

    given = images.clone().requires_grad_()
    terms = left_out_terms(given, labels, texts)  # the fourth class has no photograph
    (found,) = torch.autograd.grad(terms["total"], given)
    torch.testing.assert_close(terms["total"], wanted, rtol=1e-8, atol=0)
    torch.testing.assert_close(found, gradient, rtol=1e-6, atol=1e-9)
    assert terms["accuracy"] == (logits.argmax(1) == labels).float().mean()


def test_names_that_say_nothing_leave_the_photographs():
    labels = torch.arange(9) % 3
    images, texts = photographs(labels)
    nothing = left_out_terms(images, labels, torch.zeros_like(texts))
    assert (
        torch.isfinite(nothing["total"])
        and nothing["total"] != left_out_terms(images, labels, texts)["total"]
    )


def test_each_adapter_learns_by_itself():
    method = build_method(TowerEvidence, TowerEvidenceConfig(adapters=2, last=1), tiny_vit(), seed=1)
    method.prepare(NAMES, "a {}.")
    images = to_train_on(method, random_images(tiny_vit()))

    def gradients() -> list[Tensor]:
        batch = method.encoded(Batch(Encoded(images.global_, images.patches.float()), images.labels))
        total = method.loss(batch, torch.Generator(), len(images))["total"]
        return torch.autograd.grad(total, [taps.at(1).up for taps in method.image_taps[:2]])

    before = gradients()
    torch.nn.init.normal_(method.image_taps[0].at(1).up)
    after = gradients()
    assert torch.equal(before[1], after[1]) and not torch.equal(before[0], after[0])


def test_the_answer_is_the_mean_over_towers():
    method = fitted(TowerEvidence, {"adapters": 2, "learning_rate": 0.05}, tiny_vit())
    images = random_images(tiny_vit())
    seen = as_tuned(method, to_train_on(method, images))
    encoded = Encoded(seen.global_, seen.patches)
    with torch.no_grad():
        said = predictive(method, 4)(encoded).probabilities
        parts = seen.global_.split(32, dim=1)
        wanted = []
        for part in parts:
            reader = Conjugate(ConjugateConfig(), tiny_vit())
            reader.prepare(NAMES, "a {}.")
            reader.begin(Encoded(part, seen.patches), images.labels)
            bank = reader.class_features(4, torch.Generator())
            wanted.append(reader.sample_logits(Encoded(part, seen.patches), bank).softmax(-1).mean(0))
    torch.testing.assert_close(said, torch.stack(wanted).mean(0), rtol=1e-4, atol=1e-6)
    assert torch.equal(parts[2], to_train_on(method, images).global_)  # the last tower is the frozen one
    assert not torch.equal(parts[0], parts[1])
    # photographs that a tower was tuned on say nothing of how it does
    assert not isinstance(method, LeavesOut)
    assert method.familiarity(seen.images) is None  # as of conjugate of so few


def test_images_without_a_label_are_seen_by_every_tower():
    method = fitted(TowerEvidence, {"learning_rate": 0.05}, tiny_vit())
    seen = as_tuned(method, to_train_on(method, random_images(tiny_vit(), torch.arange(30) % 3)))
    method.add_unlabelled(seen.global_, to_classify=True)
    alone = [Conjugate(ConjugateConfig(), tiny_vit()) for _ in range(2)]
    for reader, own, part in zip(alone, method.readers, seen.global_.split(32, dim=1), strict=True):
        reader.prepare(NAMES, "a {}.")
        reader.begin_with(own.fitted.shown.evidence)
        reader.add_unlabelled(part, to_classify=True)
        for name, value in reader.state_dict().items():
            torch.testing.assert_close(own.state_dict()[name], value)
    assert torch.equal(method.absorbed.familiar, alone[1].absorbed.familiar)
    with pytest.raises(InputError, match="takes unlabelled images once its tower is tuned"):
        method.add_unlabelled(seen.global_[:, :32])
    with pytest.raises(InputError, match="without any, use conjugate"):
        method.begin_by_names(seen.global_)


def test_one_photograph_per_class_tunes_nothing():
    method = build_method(TowerEvidence, TowerEvidenceConfig(), tiny_vit(), seed=1)
    method.prepare(NAMES, "a {}.")
    images = to_train_on(method, random_images(tiny_vit(), torch.tensor([0, 1, 2, 2])))
    for count, tuned in ((3, False), (4, True)):
        some = Encoded(images.global_[:count], images.patches[:count].float())
        batch = method.encoded(Batch(some, images.labels[:count]))
        total = method.loss(batch, torch.Generator(), count)["total"]
        gradients = torch.autograd.grad(total, method.trainable())
        assert any(bool(one.any()) for one in gradients) is tuned


def test_a_step_has_some_photographs_of_every_class():
    method = build_method(TowerEvidence, TowerEvidenceConfig(), tiny_vit(), seed=1)
    method.prepare([f"class {number}" for number in range(90)], "a {}.")
    assert [method.images_a_step(count) for count in (20, 120, 5000)] == [20, 120, 180]
    method.prepare(NAMES, "a {}.")
    assert method.images_a_step(5000) == 128
    with pytest.raises(InputError, match="'budget' is 0: it takes 1 or more"):
        TowerEvidenceConfig(budget=0)
