"""The whole loss as one function: compiled without a graph break, and on a GPU as on the CPU."""

import inspect

import pytest
import torch
from torch import nn

from pbprompt.learners.predictive import Predictive
from pbprompt.prompts.pbprompt.elbo import combined_elbo
from pbprompt.prompts.pbprompt.generator import PromptGenerator
from pbprompt.prompts.pbprompt.transport import conditional_transport, entropic_transport
from pbprompt.prompts.pbprompt.variational import (
    GaussianPosterior,
    draw_noise,
    gaussian_kl,
    reduce_kl,
    reparameterise,
)
from pbprompt.vision.similarity import class_logits, log_likelihood, mean_probabilities

S, B, M, C, W = 2, 4, 9, 5, 16


class Step(nn.Module):
    """A training step of every equation; the mean of the prefix stands in for the frozen text tower."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.posterior = GaussianPosterior(W, initial_std=0.3)
        self.generator = PromptGenerator(W, 3, 4)

    def forward(self, embedding, noise, features, patches, labels):
        mean, log_variance = self.posterior(embedding)
        prompts = self.generator(reparameterise(mean, log_variance, noise)).mean(-2)
        logits = class_logits(features, prompts, 10.0)
        log_weights = logits.log_softmax(-1)
        transport = conditional_transport(patches, prompts, log_weights, temperature=0.1).total
        transport = transport + entropic_transport(patches, prompts, log_weights, 0.1, 5)
        kl = reduce_kl(gaussian_kl(mean, log_variance, embedding), "elbo", B)
        terms = combined_elbo(log_likelihood(logits, labels), kl, transport)
        return terms, mean_probabilities(logits), Predictive.of_logits(logits).entropy


def inputs(dtype=torch.float32):
    g = torch.Generator().manual_seed(1)
    tensors = [torch.randn(*shape, generator=g).to(dtype) for shape in ((C, W), (B, W), (B, M, W))]
    return tensors[0], draw_noise((S, C, W), g), *tensors[1:], torch.tensor([0, 3, 4, 1])


def gradients(module, outputs):
    module.zero_grad()
    outputs[0].total.backward()
    return {name: p.grad.cpu().clone() for name, p in module.named_parameters()}


@pytest.mark.skipif(
    inspect.unwrap(class_logits) is not class_logits,
    reason="run-time shape checks wrap every function, and a compiler cannot look through them",
)
def test_one_graph():
    module = Step()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    expected, result = module(*inputs()), compiled(*inputs())
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(gradients(module, result), gradients(module, module(*inputs())))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gpu_agrees_with_cpu(dtype):
    module = Step()
    expected = module(*inputs(dtype))
    slopes = gradients(module, expected)
    module.cuda()
    result = module(*(x.cuda() for x in inputs(dtype)))
    for there, here in zip(result, expected, strict=True):
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5, check_device=False)
    torch.testing.assert_close(gradients(module, result), slopes, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_many_sequences_on_a_gpu():
    """Forty samples of a thousand classes and more: past the grid limits of some attention kernels."""
    module = PromptGenerator(64, 4).cuda()
    latent = torch.randn(70, 1000, 64, device="cuda", requires_grad=True)
    prefix = module(latent)
    torch.testing.assert_close(prefix[-1, -3:], module(latent[-1, -3:]), rtol=1e-4, atol=1e-5)
    prefix.sum().backward()
    assert torch.isfinite(latent.grad).all()
