"""The methods as they are usually written: what the benchmark compares with.

Every prompt is computed at all positions of the context length, each loss is spelt out in plain torch, and
nothing is kept from one step to the next but the token embeddings. The parameters are those of the library's
method, so that both ways can be asked for the loss and the gradients at one point.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.speed.text import PlainText
from pbprompt.learners.method import Batch
from pbprompt.learners.trained import Trained
from pbprompt.prompts.pbprompt.generator import PromptGenerator
from pbprompt.prompts.pbprompt.model import PBPrompt, PBPromptConfig
from pbprompt.prompts.rivals.cocoop import CoCoOp
from pbprompt.prompts.rivals.coop import CoOp
from pbprompt.prompts.rivals.plot import PLOT, PLOTConfig
from pbprompt.prompts.rivals.vpt import VPT
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.prompts import named_prompts

SINKHORN_LOOKS = 10  # iterations between two looks whether the plan is good, as the library's PLOT has it


class PlainLoss:
    """`loss(batch, generator)` of a method, written out."""

    def __init__(self, method: Trained, examples: int) -> None:
        self.method, self.examples = method, examples
        self.scale = method.backbone.logit_scale
        slots = slots_of(method)
        self.text = PlainText(
            method.backbone, named_prompts(method.backbone.tokenizer, method.classes, slots), slots
        )
        self.names = mean_name_embeddings(method)

    def __call__(self, batch: Batch, generator: torch.Generator) -> Tensor:
        return LOSSES[self.method.name](self, batch, generator)

    def logits(self, images: Tensor, features: Tensor) -> Tensor:
        """s·cos(f(x), g_c)."""
        return self.scale * normal(images) @ normal(features).mT

    def logits_of(self, images: Encoded) -> Tensor:
        """What a deterministic method says of images; its text tower is run anew."""
        return LOGITS[self.method.name](self, images)


def sets_of_features(text: PlainText, contexts: Tensor) -> Tensor:
    """Features [n, C, d] under n contexts [n, b, w], in one call of the tower."""
    n, classes = len(contexts), len(text.lengths)
    before, after = (part.repeat(n, 1, 1) for part in (text.before, text.after))
    own = contexts.repeat_interleave(classes, dim=0).to(before.dtype)
    features = text.backbone.text(torch.cat([before, own, after], dim=1), text.lengths.repeat(n))
    return features.unflatten(0, (n, classes))


def slots_of(method: Trained) -> int:
    """How many vectors stand before the class name."""
    if isinstance(method, PBPrompt):
        return method.generator.prefix_length
    assert isinstance(method, CoOp | CoCoOp | PLOT | VPT)
    return method.config.tokens


def plain_optimiser(method: Trained) -> torch.optim.Optimizer:
    """Torch's own, as it comes."""
    config, parameters = method.config, method.parameters()
    if config.optimiser == "sgd":
        return torch.optim.SGD(parameters, config.learning_rate, 0.9, weight_decay=config.weight_decay)
    return torch.optim.AdamW(parameters, config.learning_rate, weight_decay=config.weight_decay)


def normal(x: Tensor) -> Tensor:
    """x / ‖x‖ in float32 at least."""
    x = x if x.dtype == torch.float64 else x.float()
    return x / x.norm(dim=-1, keepdim=True)


def noise(generator: torch.Generator, like: Tensor, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device).to(like)


def coop_logits(plain: PlainLoss, images: Encoded) -> Tensor:
    method = plain.method
    assert isinstance(method, CoOp)
    return plain.logits(images.global_, plain.text(method.context))


def cocoop_logits(plain: PlainLoss, images: Encoded) -> Tensor:
    """One image after the other, each with prompts of its own."""
    method = plain.method
    assert isinstance(method, CoCoOp) and method.meta_net is not None
    shifts = method.meta_net(normal(images.global_).to(method.context.dtype))
    rows = [
        plain.logits(image[None], plain.text(method.context + shift))
        for image, shift in zip(images.global_, shifts, strict=True)
    ]
    return torch.cat(rows)


def plot_logits(plain: PlainLoss, images: Encoded) -> Tensor:
    """s·Σ_mn T_mn·cos(u_m, g_nc) under Sinkhorn's plan T of every image and class, a constant to autograd."""
    method = plain.method
    assert isinstance(method, PLOT)
    features = sets_of_features(plain.text, method.context)
    similarity = torch.einsum("bmd,ncd->bcmn", *map(normal, _alike(images.patches, features)))
    with torch.no_grad():
        plan = sinkhorn_plan(similarity, method.config)
    return plain.scale * (plan * similarity).sum((2, 3))


def sinkhorn_plan(similarity: Tensor, config: PLOTConfig) -> Tensor:
    """u and v scale the rows and columns of exp(−cost/ε) in turn until the rows sum to 1/M."""
    kernel = ((similarity - 1) / config.epsilon).exp()
    patches, prompts = kernel.shape[-2:]
    v = torch.ones_like(kernel[..., 0, :])
    for iteration in range(1, config.iterations + 1):
        u = (1 / patches) / torch.einsum("...mn,...n->...m", kernel, v)
        v = (1 / prompts) / torch.einsum("...mn,...m->...n", kernel, u)
        if iteration % SINKHORN_LOOKS == 0:
            rows = u * torch.einsum("...mn,...n->...m", kernel, v)
            if (rows - 1 / patches).abs().max() <= config.tolerance / patches:
                break
    return u[..., :, None] * kernel * v[..., None, :]


def vpt_loss(plain: PlainLoss, batch: Batch, generator: torch.Generator) -> Tensor:
    """−log of the mean likelihood over L draws of a shift, and its divergence from N(0, I)."""
    method = plain.method
    assert isinstance(method, VPT) and not method.config.conditional
    mean, log_variance = method.mean[0], method.log_variance[0]
    drawn = noise(generator, mean, method.config.train_samples, 1, len(mean))[:, 0]
    shifts = mean + (log_variance / 2).exp() * drawn
    features = sets_of_features(plain.text, method.context + shifts[:, None])
    probabilities = plain.logits(batch.images.global_, features).softmax(-1)  # [L, B, C]
    right = probabilities[:, range(len(batch.labels)), batch.labels]
    likelihood = right.mean(0).log().mean()
    kl = ((log_variance.exp() + mean**2 - 1 - log_variance) / 2).mean()
    return -likelihood + method.config.kl_weight * kl


def pbprompt_loss(plain: PlainLoss, batch: Batch, generator: torch.Generator) -> Tensor:
    """Cross-entropy, divergence from the contextual prior, and conditional transport, for one draw."""
    method = plain.method
    assert isinstance(method, PBPrompt)
    config, made = method.config, method.generator
    assert config.prompts == "generated" and config.sampling and config.train_samples == 1
    assert config.transport == "ct" and config.ending == "stop"
    names = plain.names.to(made.words.dtype)
    mean = F.linear(names, method.posterior.mean.weight, method.posterior.mean.bias)
    mean = mean + names if config.mean_residual else mean
    log_variance = F.linear(names, method.posterior.log_variance.weight, method.posterior.log_variance.bias)
    latent = mean + (log_variance / 2).exp() * noise(generator, mean, 1, *mean.shape)[0]

    words = made.words.expand(len(names), -1, -1)
    sequence = torch.cat([latent[:, None], words], dim=1) + made.positions
    prefix = self_attention(sequence, made)
    prefix = prefix + sequence if config.residual else prefix
    features = plain.text(prefix if config.keep_latent else prefix[:, 1:])

    logits = plain.logits(batch.images.global_, features)
    ratio = log_variance.exp() / method.prior_std**2
    kl = ((ratio + ((mean - names) / method.prior_std) ** 2 - 1 - ratio.log()) / 2).sum()
    share = {"elbo": 1 / plain.examples, "mean": 1 / mean.numel(), "sum": 1.0}[config.kl_reduction]
    transport = plain_transport(config, plain.scale, batch.images.patches, features, logits)
    total = F.cross_entropy(logits, batch.labels) + config.kl_weight * share * kl
    return total + config.ct_weight * transport.mean()


def self_attention(x: Tensor, made: PromptGenerator) -> Tensor:
    """One layer over sequences [C, t, w], by torch's own function."""
    first = x.transpose(0, 1)
    mixed, _ = F.multi_head_attention_forward(
        first,
        first,
        first,
        x.shape[-1],
        made.heads,
        made.in_proj.weight,
        made.in_proj.bias,
        None,
        None,
        False,
        0.0,
        made.out_proj.weight,
        made.out_proj.bias,
        training=False,
        need_weights=False,
    )
    return mixed.transpose(0, 1)


def plain_transport(
    config: PBPromptConfig, scale: float, patches: Tensor, features: Tensor, logits: Tensor
) -> Tensor:
    """Both directions between an image's patches and the prompts, with both plans and the costs in full."""
    weights = logits.softmax(-1) if config.ct_gradient else logits.detach().softmax(-1)
    similarity = torch.einsum("bmd,cd->bmc", *map(normal, _alike(patches, features)))
    cost = 1 - similarity
    closeness = (similarity / (config.ct_temperature or 1 / scale)).exp()
    weighted = weights[:, None] * closeness
    to_prompts = weighted / weighted.sum(2, keepdim=True)
    to_patches = closeness / closeness.sum(1, keepdim=True)
    patch_to_prompt = (cost * to_prompts).sum(2).mean(1)
    prompt_to_patch = (weights * (cost * to_patches).sum(1)).sum(1)
    return config.ct_balance * patch_to_prompt + (1 - config.ct_balance) * prompt_to_patch


def mean_name_embeddings(method: Trained) -> Tensor:
    """e_c: the mean of the token embeddings of each name."""
    backbone = method.backbone
    rows = []
    for name in method.classes:
        ids = torch.tensor(backbone.tokenizer.encode(name), device=backbone.device)
        embeddings = backbone.token_embedding(ids)
        rows.append(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)).mean(0))
    return torch.stack(rows)


def _alike(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(first.dtype, second.dtype)
    return first.to(dtype), second.to(dtype)


def _cross_entropy(plain: PlainLoss, batch: Batch, generator: torch.Generator) -> Tensor:
    return F.cross_entropy(plain.logits_of(batch.images), batch.labels)


LOGITS: dict[str, Callable[[PlainLoss, Encoded], Tensor]] = {
    "coop": coop_logits,
    "cocoop": cocoop_logits,
    "plot": plot_logits,
}
LOSSES: dict[str, Callable[[PlainLoss, Batch, torch.Generator], Tensor]] = {
    **dict.fromkeys(LOGITS, _cross_entropy),
    "vpt": vpt_loss,
    "pbprompt": pbprompt_loss,
}
