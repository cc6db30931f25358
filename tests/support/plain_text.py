"""The plain computation that the text engine is held to."""

import torch
from torch import Tensor

from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.prompts import Prompt


def plain(backbone: Backbone, prompts: list[Prompt], context: Tensor) -> Tensor:
    """All positions of every prompt, one sample at a time. context: [s, C or 1, b, w]."""
    full = backbone.context_length
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    samples = []
    for sample in context:
        rows = []
        for at, prompt in enumerate(prompts):
            own = sample[at if len(sample) > 1 else 0]
            padded = torch.tensor(prompt + [0] * (full - len(prompt)))
            learned = own[(-padded - 1).clamp(min=0)]
            rows.append(
                torch.where((padded < 0).unsqueeze(1), learned, backbone.token_embedding(padded.clamp(min=0)))
            )
        samples.append(backbone.text(torch.stack(rows), lengths))
    return torch.stack(samples)


def named_prompt(backbone: Backbone, context: Tensor, name: str) -> Tensor:
    """The feature of [SOS] context name [.] [EOT], all positions; context: [b, w]."""
    tokenizer = backbone.tokenizer
    ids = [*tokenizer.encode(name.replace("_", " ")), *tokenizer.encode("."), tokenizer.eot]
    sos, rest = (backbone.token_embedding(torch.tensor(part)) for part in ([tokenizer.sos], ids))
    prompt = torch.cat([sos, context, rest])
    padding = rest.new_zeros(backbone.context_length - len(prompt), rest.shape[1])
    return backbone.text(torch.cat([prompt, padding])[None], torch.tensor([len(prompt)]))[0]


def with_gradient(features: Tensor, context: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    (gradient,) = torch.autograd.grad((features * weights).sum(), context)
    return features.detach(), gradient


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).abs().max() / wanted.abs().max()).item()
