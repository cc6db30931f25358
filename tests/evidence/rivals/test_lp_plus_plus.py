"""LP++ with a tower: how its parts make logits, and the search itself."""

import numpy as np
import torch
import torch.nn.functional as F

from pbprompt.evidence.rivals.linear import LPPlusPlus, fit_blend, step_sizes


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


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(1 + torch.randn(11, 6, dtype=torch.float64, generator=generator), dim=1)
    text = F.normalize(1 + torch.randn(3, 6, dtype=torch.float64, generator=generator), dim=1)
    return x, torch.tensor([0, 1, 2, 0, 1, 2, 2, 2, 0, 2, 2]), text


def expected(x, y, text, iterations):
    n = len(x)
    cos = [[float(row @ t) for t in text] for row in x]
    alpha0 = 250 * sum(
        sum(cos[i][k] for i in range(n) if y[i] == k) / int((y == k).sum()) for k in range(3)
    ) / 3  # fmt: skip
    weights = torch.stack([x[y == k].sum(0) for k in range(3)]).requires_grad_()
    bias = torch.zeros(3, dtype=x.dtype, requires_grad=True)
    alpha = torch.full((3,), alpha0, dtype=x.dtype, requires_grad=True)
    rate = 4 * n / float(torch.linalg.eigvalsh(x.T @ x)[-1])
    alpha_rate = n / (4 * max(sum(cos[i][k] ** 2 for i in range(n)) for k in range(3)))
    sgd = torch.optim.SGD([weights, bias], lr=rate, momentum=0.9)
    for iteration in range(iterations):
        sgd.zero_grad()
        alpha.grad = None
        F.cross_entropy(x @ weights.T + bias + alpha * (x @ text.T), y).backward()
        sgd.step()
        if (iteration + 1) % 10 == 0:
            alpha.data -= alpha_rate * alpha.grad
    return weights.detach(), bias.detach(), alpha.detach()


def test_every_iteration():
    x, y, text = data()
    for iterations in (0, 1, 10, 31):
        for found, wanted in zip(
            fit_blend(x, y, text, iterations), expected(x, y, text, iterations), strict=True
        ):
            torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)


def test_the_published_number_of_iterations_lowers_the_loss():
    x, y, text = data()

    def loss(iterations: int) -> float:
        weights, bias, alpha = fit_blend(x, y, text, iterations)
        return F.cross_entropy(x @ weights.T + bias + alpha * (x @ text.T), y).item()

    assert loss(300) < loss(0)
    assert all(size > 0 for size in step_sizes(x, x @ text.T))
