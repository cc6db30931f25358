"""Both towers from their weights alone, position by position: what taps are compared with.

`updates`: by (block, one of q, k, v, o), a matrix added to that weight. `tokens`: by block, rows that replace
the prompt's first positions after [SOS] (text), or stand behind the image's own (image). `inserted`: those of
the lowest block come in after [SOS], without taking a place. `read`: a projection of the mean of the image's
tokens, which is then behind the class token's.
"""

import math

import torch
from torch import Tensor

from pbprompt.vision.towers.backbone import Backbone


def plain_image(
    backbone: Backbone,
    pixels: Tensor,
    updates: dict | None = None,
    tokens: dict | None = None,
    read: Tensor | None = None,
) -> Tensor:
    """CLIP's vision transformer: the projected class token of each image, [b, d]."""
    w = {key.removeprefix("visual."): value for key, value in backbone.base.state_dict().items()}
    updates, tokens = updates or {}, tokens or {}
    size, width = backbone.config.vision.patch_size, backbone.config.vision.width
    kernel, rows = w["conv1.weight"].reshape(width, -1), []
    for image in pixels:
        patches = [
            kernel @ image[:, at : at + size, across : across + size].reshape(-1)
            for at in range(0, image.shape[1], size)
            for across in range(0, image.shape[2], size)
        ]
        x = torch.stack([w["class_embedding"], *patches]) + w["positional_embedding"]
        own = len(x)
        for block in range(backbone.config.vision.layers):
            if block == 0:
                x = _norm(torch.cat([x, tokens[0]]) if 0 in tokens else x, w, "ln_pre")
            elif block in tokens:
                x = torch.cat([x[:own], tokens[block]])
            heads = backbone.config.vision.heads
            x = _block(x, w, block, heads, updates, causal=False)
        row = _norm(x[:1], w, "ln_post")[0] @ w["proj"]
        rows.append(row if read is None else torch.cat([row, _norm(x[own:], w, "ln_post").mean(0) @ read]))
    return torch.stack(rows)


def plain_text(
    backbone: Backbone,
    prompts: list[Tensor],
    updates: dict | None = None,
    tokens: dict | None = None,
    inserted: bool = False,
) -> Tensor:
    """CLIP's text tower, of prompts given as embeddings from [SOS] to [EOT]: [c, d]."""
    w = {key.removeprefix("textual."): value for key, value in backbone.base.state_dict().items()}
    updates, tokens, rows = updates or {}, tokens or {}, []
    padding = w["token_embedding.weight"][0]
    for prompt in prompts:
        padded = torch.cat([prompt, padding.expand(backbone.context_length - len(prompt), -1)])
        x = padded + w["positional_embedding"]
        for block in range(backbone.config.text.layers):
            if block in tokens:
                taken = 0 if inserted and block == min(tokens) else len(tokens[block])
                x = torch.cat([x[:1], tokens[block], x[1 + taken :]])
            x = _block(x, w, block, backbone.config.text.heads, updates, causal=True)
        eot = len(prompt) - 1 + len(x) - len(padded)
        rows.append(_norm(x[eot : eot + 1], w, "ln_final")[0] @ w["text_projection"])
    return torch.stack(rows)


def embedded(backbone: Backbone, words: str) -> Tensor:
    """Token embeddings of words, without [SOS] and [EOT]."""
    return backbone.token_embedding(torch.tensor(backbone.tokenizer.encode(words)))


def enclosed(backbone: Backbone, *parts: Tensor) -> Tensor:
    """[SOS] parts [EOT]."""
    tokenizer = backbone.tokenizer
    ends = [backbone.token_embedding(torch.tensor([end])) for end in (tokenizer.sos, tokenizer.eot)]
    return torch.cat([ends[0], *parts, ends[1]])


def cosine_logits(images: Tensor, texts: Tensor, scale: float = 100.0) -> Tensor:
    rows = [[scale * (x @ g) / (x.norm() * g.norm()) for g in texts] for x in images]
    return torch.stack([torch.stack(row) for row in rows])


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    chosen = [row[label] - row.exp().sum().log() for row, label in zip(logits, labels.tolist(), strict=True)]
    return -torch.stack(chosen).mean()


def _norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def _block(x: Tensor, w: dict[str, Tensor], number: int, heads: int, updates: dict, causal: bool) -> Tensor:
    name, width = f"transformer.resblocks.{number}", x.shape[-1]
    weights = dict(zip("qkv", w[f"{name}.attn.in_proj_weight"].split(width), strict=True))
    biases = dict(zip("qkv", w[f"{name}.attn.in_proj_bias"].split(width), strict=True))
    weights["o"], biases["o"] = w[f"{name}.attn.out_proj.weight"], w[f"{name}.attn.out_proj.bias"]
    weights = {part: weight + updates.get((number, part), 0) for part, weight in weights.items()}
    normed = _norm(x, w, f"{name}.ln_1")
    q, k, v = (normed @ weights[part].T + biases[part] for part in "qkv")
    per_head, out = width // heads, []
    for head in range(heads):
        some = slice(head * per_head, (head + 1) * per_head)
        scores = q[:, some] @ k[:, some].T / math.sqrt(per_head)
        if causal:
            later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        out.append(scores.softmax(-1) @ v[:, some])
    x = x + torch.cat(out, dim=-1) @ weights["o"].T + biases["o"]
    hidden = _norm(x, w, f"{name}.ln_2") @ w[f"{name}.mlp.c_fc.weight"].T + w[f"{name}.mlp.c_fc.bias"]
    active = hidden * torch.sigmoid(1.702 * hidden)
    return x + active @ w[f"{name}.mlp.c_proj.weight"].T + w[f"{name}.mlp.c_proj.bias"]
