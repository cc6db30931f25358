"""The proximal kernel regression against numpy loops and its own optimality."""

import numpy as np
import torch

from pbprompt.evidence.rivals.kernel_ridge import proximal_coefficients, rbf_kernel


def test_kernel_and_coefficients():
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(6, 4, dtype=torch.float64, generator=generator), dim=1)
    residuals = torch.randn(6, 3, dtype=torch.float64, generator=generator)
    kernel = rbf_kernel(x, x, 1.7)
    # exp(−β(1 − cos)) = exp(−β‖x − y‖²/2) of unit vectors
    wanted = np.array([[np.exp(-1.7 * ((a - b) ** 2).sum() / 2) for b in x.numpy()] for a in x.numpy()])
    np.testing.assert_allclose(kernel, wanted, rtol=1e-12)
    found = proximal_coefficients(kernel, residuals, 0.07)
    np.testing.assert_allclose(found, np.linalg.inv(wanted / 0.07 + np.eye(6)) @ residuals.numpy(), rtol=1e-8)
    ridge = np.linalg.solve(wanted + 0.07 * np.eye(6), residuals.numpy())
    np.testing.assert_allclose(found, 0.07 * ridge, rtol=1e-8)
    np.testing.assert_allclose(kernel, wanted, rtol=1e-12)  # not changed in place
