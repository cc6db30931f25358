"""Eq. 4 against loops over heads and tokens, and against torch's own attention layer."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from pbprompt.errors import InputError
from pbprompt.prompts.pbprompt.generator import PromptGenerator
from pbprompt.prompts.pbprompt.variational import GaussianPosterior

S, C, W, B, HEADS = 2, 3, 8, 4, 2


def generator(seed=0, **options):
    torch.manual_seed(seed)
    module = PromptGenerator(W, B, HEADS, **options).double()
    with torch.no_grad():  # words, an output and biases that matter
        module.words.normal_()
        module.positions.normal_()
        nn.init.xavier_uniform_(module.out_proj.weight)
        module.in_proj.bias.normal_()
        module.out_proj.bias.normal_()
    return module


def latents(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, W, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def attention_by_loops(module, latent):
    """Self-Attn([r + PE_1, w_1 + PE_2, …]) of one latent vector, head by head and token by token."""
    words, positions, w_in, b_in, w_out, b_out = (
        p.detach().numpy()
        for p in (
            module.words,
            module.positions,
            module.in_proj.weight,
            module.in_proj.bias,
            module.out_proj.weight,
            module.out_proj.bias,
        )
    )
    s = [latent.numpy() + positions[0]] + [words[i] + positions[i + 1] for i in range(B)]
    q, k, v = ([w_in[j * W : (j + 1) * W] @ x + b_in[j * W : (j + 1) * W] for x in s] for j in range(3))
    size = W // HEADS
    out = []
    for i in range(B + 1):
        mixed = np.zeros(W)
        for h in range(HEADS):
            part = slice(h * size, (h + 1) * size)
            scores = [math.exp(q[i][part] @ k[j][part] / math.sqrt(size)) for j in range(B + 1)]
            for j in range(B + 1):
                mixed[part] += scores[j] / sum(scores) * v[j][part]
        out.append(w_out @ mixed + b_out)
    return np.array(s), np.array(out)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("keep_latent", [False, True])
def test_prefix_is_equation_4(residual, keep_latent):
    module = generator(residual=residual, keep_latent=keep_latent)
    latent = latents(S, C)
    prefix = module(latent).detach()
    assert prefix.shape == (S, C, module.prefix_length, W)
    for s in range(S):
        for c in range(C):
            sequence, out = attention_by_loops(module, latent[s, c])
            expected = out + sequence if residual else out
            np.testing.assert_allclose(prefix[s, c], expected if keep_latent else expected[1:], rtol=1e-10)


def test_same_as_torch_attention_layer():
    module = generator()
    peer = nn.MultiheadAttention(W, HEADS, batch_first=True, dtype=torch.float64)
    peer.load_state_dict(
        {
            "in_proj_weight": module.in_proj.weight,
            "in_proj_bias": module.in_proj.bias,
            "out_proj.weight": module.out_proj.weight,
            "out_proj.bias": module.out_proj.bias,
        }
    )
    latent = latents(C)
    sequence = torch.cat([latent[:, None], module.words.expand(C, -1, -1)], 1) + module.positions
    torch.testing.assert_close(module(latent), peer(sequence, sequence, sequence, need_weights=False)[0])


def test_any_leading_dimensions():
    module, latent = generator(), latents(2, S, C)
    assert module(latent).shape == (2, S, C, B + 1, W)
    torch.testing.assert_close(module(latent)[1, 0], module(latent[1, 0]))


def test_a_class_does_not_see_the_others():
    module, latent = generator(), latents(C)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(module(latent)[order], module(latent[order]))
    torch.testing.assert_close(module(latent)[:1], module(latent[:1]))


def test_a_word_start_is_exact():
    words = latents(B, dtype=torch.float32)
    module = PromptGenerator(W, B, HEADS, residual=True, init=words)
    latent = latents(S, C, dtype=torch.float32)
    prefix = module(latent)
    assert torch.equal(prefix[..., 0, :], latent)
    assert torch.equal(prefix[..., 1:, :], words.expand(S, C, -1, -1))
    assert module.words.data_ptr() != words.data_ptr()
    prefix.square().sum().backward()  # and it can leave that start
    assert module.out_proj.weight.grad.abs().max() > 0


def test_the_plain_start_is_drawn():
    torch.manual_seed(0)
    module = PromptGenerator(512, 16, 8)
    for drawn in (module.words, module.positions):
        assert drawn.std().item() == pytest.approx(0.02, rel=0.05)
        assert abs(drawn.mean().item()) < 0.002


def test_parameter_count_of_the_paper():
    """ViT-B/16, b = 4: 1,577,984 without the position embeddings, 1,580,544 with them."""
    named = dict(PromptGenerator(512, 4).named_parameters()) | dict(GaussianPosterior(512).named_parameters())
    full = sum(p.numel() for p in named.values())
    assert full - named["positions"].numel() == 1_577_984
    assert full == 1_580_544


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "does not divide"),
        ({"init": torch.zeros(3, W)}, "should be"),
    ],
)
def test_what_cannot_work_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        PromptGenerator(W, B, **({"heads": HEADS} | options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    module = PromptGenerator(64, B)
    latent = torch.randn(S, C, 64).to(dtype)
    assert torch.equal(module(latent), module(latent.float()))  # float32 parameters decide
    reference = module(latent.float()).detach()
    torch.testing.assert_close(module.to(dtype)(latent).float().detach(), reference, rtol=0.05, atol=0.02)


def test_gradients():
    module, latent = generator(residual=True), latents(C).requires_grad_()
    parameters = list(module.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: module(x), (latent, *parameters))
