"""PBPrompt from top to bottom, as printed (Liu, Wang et al., UAI 2024): the library's preset `literal`.

    python examples/pbprompt_in_one_file.py [--shots 4] [--epochs 10] [--plan plan.png]

Only the frozen towers and the tokenizer are the library's. Names are the paper's symbols, the numbers in the
margin its equations. Tensors: C classes, M patches, b prefix tokens, d the width of the text tower.

What the paper leaves open is chosen here: the KL of Eq. 9 is added, as its text wants, not taken off, and
shared out over the N training images (the exact ELBO); e_c is the mean of a name's token embeddings. What
other readings do: docs/readings.md.
"""
# ruff: noqa: N803, N806

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import pbprompt

b, S, eta = 4, 20, 0.01  # prefix tokens, samples in prediction, weight of the transport


class PBPrompt(nn.Module):
    """All that is learned; the towers f and g are frozen."""

    def __init__(self, towers: Any, names: list[str]) -> None:
        super().__init__()
        d = towers.text_width
        self.g, self.tau = (towers,), 1 / towers.logit_scale  # a tuple: no part of what is learned
        self.mu, self.log_sigma2 = nn.Linear(d, d), nn.Linear(d, d)  # Σ is diagonal
        self.w = nn.Parameter(0.02 * torch.randn(b, d))  # N(0, 0.02)
        self.PE = nn.Parameter(0.02 * torch.randn(b + 1, d))
        self.attention = nn.MultiheadAttention(d, 8, batch_first=True)
        embed, tokens = towers.token_embedding, towers.tokenizer
        self.e = torch.stack([embed(torch.tensor(tokens.encode(f" {name}"))).mean(0) for name in names])
        self.first = embed(torch.tensor([tokens.sos]))
        self.last = embed(torch.tensor([*tokens.encode("."), tokens.eot]))

    def q(self) -> tuple[Tensor, Tensor]:  # q(r_c | c) = N(μ(e_c), Σ(e_c))                   text of Eq. 9
        return self.mu(self.e), (0.5 * self.log_sigma2(self.e)).exp()

    def t(self, r: Tensor) -> Tensor:
        """The prompts of latents r, [C, d] -> [C, length, d]."""
        s = torch.cat([r[:, None], self.w.expand(len(r), -1, -1)], 1) + self.PE  #                       Eq. 4
        v, _ = self.attention(s, s, s, need_weights=False)  # [r̂_c, v_c1, …, v_cb]                      Eq. 4
        first, last = (x.expand(len(r), -1, -1) for x in (self.first, self.last))
        return torch.cat([first, v, self.e[:, None], last], 1)  # [SOS] [v_c, e_c] . [EOT]               Eq. 3

    def prompts(self, epsilon: Tensor) -> Tensor:  # g_c of one draw r_c = μ + σ·ε for every class, [C, D]
        mu, sigma = self.q()
        t = self.t(mu + sigma * epsilon)
        return self.g[0].text(t, torch.full((len(t),), t.shape[1]))  # every prompt has the same length

    def p(self, f: Tensor, g: Tensor) -> Tensor:  # p(y | x), [B, C]
        return (F.normalize(f, dim=-1) @ F.normalize(g, dim=-1).T / self.tau).softmax(-1)  #             Eq. 1

    def kl(self) -> Tensor:  # Σ_c KL[q(r_c | c) ‖ N(e_c, I)], the contextual prior
        mu, sigma = self.q()
        return 0.5 * (sigma**2 + (mu - self.e) ** 2 - 1 - 2 * sigma.log()).sum()

    def loss(self, f: Tensor, u: Tensor, y: Tensor, epsilon: Tensor, N: int) -> Tensor:
        """Eq. 9 of images with features f [B, D], patches u [B, M, D] and labels y [B]."""
        p = self.p(f, g := self.prompts(epsilon))
        return (
            -p[range(len(y)), y].log().mean() + self.kl() / N + eta * transport(u, g, p)[0].mean()
        )  #                       Eq. 9


def transport(u: Tensor, g: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L_CT [B] and its plans π(g|u), π(u|g) [B, M, C], between P and Q of Eq. 5."""
    C = 1 - F.normalize(u, dim=-1) @ F.normalize(g, dim=-1).T  # cost: 1 − cosine
    to_g = (p.log()[:, None] + u @ g.T).softmax(2)  # π(g_c | u_m) ∝ p_c exp(u_mᵀ g_c)                   Eq. 7
    to_u = (u @ g.T).softmax(1)  # π(u_m | g_c) ∝ exp(g_cᵀ u_m)                                          Eq. 8
    there = (C * to_g).sum(2).mean(1)  #                                                                 Eq. 7
    back = (p * (C * to_u).sum(1)).sum(1)  #                                                             Eq. 8
    return there + back, to_g, to_u  #                                                                   Eq. 6


@torch.no_grad()
def predict(model: PBPrompt, f: Tensor) -> Tensor:
    """p(y | x), averaged over S sampled sets of prompts."""
    return torch.stack([model.p(f, model.prompts(torch.randn_like(model.e))) for _ in range(S)]).mean(0)


def sample_set(split: str, shots: int = 0) -> tuple[list[str], list[Path], Tensor]:
    """The pictures that come with the package: class names, files, labels; `shots` of each class."""
    index = next(Path(pbprompt.__file__).parent.rglob("sample/index.json"))
    about = json.loads(index.read_text(encoding="utf-8"))
    items = [item for item in about["items"] if item["split"] == split]
    if shots:
        by_label = [[i for i in items if i["label"] == c] for c in range(len(about["classes"]))]
        items = [item for some in by_label for item in random.sample(some, min(shots, len(some)))]
    files = [index.parent / "images" / item["file"] for item in items]
    return about["classes"], files, torch.tensor([item["label"] for item in items])


def main(shots: int = 4, epochs: int = 10, plan: str = "plan.png") -> tuple[float, float]:
    """Train on the sample; returns the accuracy on its test images, before and after."""
    torch.manual_seed(1), random.seed(1)
    towers = pbprompt.load_backbone("lite")
    (names, files, y), (_, test_files, test_y) = sample_set("train", shots), sample_set("test")

    @torch.no_grad()
    def encode(some: list[Path]) -> tuple[Tensor, Tensor]:  # frozen: once is enough
        pixels = (towers.preprocess(Image.open(file).convert("RGB"))[None] for file in some)
        images, patches = zip(*map(towers.image, pixels), strict=True)
        return torch.cat(images), torch.cat(patches)

    (f, u), (test_f, test_u) = encode(files), encode(test_files)
    model, N = PBPrompt(towers, names), len(y)
    accuracy = [(predict(model, test_f).argmax(1) == test_y).float().mean().item()]
    sgd = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9, weight_decay=5e-4)
    for epoch in range(epochs):  # Algorithm 1, and the table of hyperparameters: batches of 1
        cosine = 1e-3 * (1 + math.cos(math.pi * (epoch - 1) / epochs))
        sgd.param_groups[0]["lr"] = cosine if epoch else 1e-5
        for n in torch.randperm(N).split(1):
            sgd.zero_grad()
            (loss := model.loss(f[n], u[n], y[n], torch.randn_like(model.e), N)).backward()
            sgd.step()
        print(f"epoch {epoch + 1:2}: loss {loss.item():.3f}", flush=True)
    p = predict(model, test_f)
    accuracy.append((p.argmax(1) == test_y).float().mean().item())
    print(f"accuracy on {len(test_y)} test images: {accuracy[0]:.1%} at the start, {accuracy[1]:.1%} trained")
    n = int(p[range(len(test_y)), test_y].argmax())  # the image whose class is told most surely
    with torch.no_grad():
        to_u = transport(test_u[n : n + 1], model.prompts(torch.zeros_like(model.e)), p[n : n + 1])[2][0]
    heat = to_u[:, test_y[n]].view(towers.grid) / to_u[:, test_y[n]].max()
    print(f"π(u | g) of {names[int(test_y[n])]!r}, 9 where the prompt sends most:")
    print("\n".join(" ".join(str(int(9 * x)) for x in row) for row in heat))
    mask = Image.fromarray((255 * heat).byte().numpy()).resize((224, 224), Image.Resampling.BICUBIC)
    photo = Image.open(test_files[n]).convert("RGB").resize((224, 224))
    Image.composite(photo, Image.new("RGB", photo.size, "navy"), mask).save(plan)
    return accuracy[0], accuracy[1]


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--shots", type=int, default=4)
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--plan", default="plan.png", help="where to draw one transport plan")
    main(**vars(options.parse_args()))
