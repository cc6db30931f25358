"""From a latent label vector to the prefix of its prompt (Eq. 3 and 4).

    t_c = [φ(v_c | r_c), e_c],  r_c ~ q(r_c | c)                                   (Eq. 3)
    s_c = [r_c + PE_1, w_1 + PE_2, …, w_b + PE_{b+1}]
    [r̂_c, v_{c,1}, …, v_{c,b}] = Self-Attn(s_c)                                    (Eq. 4)

| symbol   | name here     | meaning                                                          |
|----------|---------------|------------------------------------------------------------------|
| r_c      | `latent`      | sampled label vector, [*s, c, w]                                 |
| w_1..w_b | `words`       | learnable initial prefix, b = `tokens`                           |
| PE       | `positions`   | learnable position embeddings, b + 1 of them                     |
| φ        | the module    | one multi-head self-attention layer: biases, no norm, no MLP;    |
|          | `layer`       | or a whole transformer layer with residuals, norms and an MLP    |
| r̂_c      | `keep_latent` | the latent's own output: first token of the prefix, or left out  |
| v_c      | the result    | prefix token embeddings, [*s, c, n, w], n = b + 1 (or b)         |

The text engine puts the prefix between the start token and the class name (the rest of Eq. 3).
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.vision.towers import kernels
from pbprompt.vision.towers.prompts import INITIAL_STD

Layer = Literal["attention", "pre-norm", "post-norm"]


class PromptGenerator(nn.Module):
    """Learnable parameters: attention 4·(W² + W), `words` b·W, `positions` (b + 1)·W.

    The paper's count leaves the positions out.

    Args:
        width: W, the width of the text tower.
        tokens: b, the number of prefix words.
        heads: attention heads; must divide the width.
        residual: the output is s + Self-Attn(s) instead of Self-Attn(s). The output projection then starts
            at zero, and the prefix as s itself: the latent vector followed by exactly the words of `init`.
        keep_latent: r̂ is the first token of the prefix.
        layer: what "single-layer self-attention" is: bare attention, or a transformer layer, whose norms come
            before its parts (as in CLIP's towers) or behind (Vaswani et al., 2017).
        init: token embeddings [b, W] that the words start from, such as those of "a photo of a"; the
            positions then start at zero. Without it both are drawn from N(0, std²).
    """

    def __init__(
        self,
        width: int,
        tokens: int,
        heads: int = 8,
        *,
        residual: bool = False,
        keep_latent: bool = True,
        layer: Layer = "attention",
        init: Float[Tensor, "b w"] | None = None,
        std: float = INITIAL_STD,
    ) -> None:
        super().__init__()
        if width % heads:
            raise InputError(f"heads: {heads} does not divide the text width {width}; choose a divisor of it")
        if init is not None and init.shape != (tokens, width):
            raise InputError(f"init: shape {tuple(init.shape)} should be (tokens, width), {tokens, width}")
        self.heads, self.residual, self.keep_latent = heads, residual, keep_latent
        self.words = nn.Parameter(torch.empty(tokens, width))
        self.positions = nn.Parameter(torch.empty(tokens + 1, width))
        self.layer = None
        if layer == "attention":
            self.in_proj = nn.Linear(width, 3 * width)
            self.out_proj = nn.Linear(width, width)
        else:
            self.layer = nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0, batch_first=True, norm_first=layer == "pre-norm"
            )
        if init is None:
            nn.init.normal_(self.words, std=std)
            nn.init.normal_(self.positions, std=std)
        else:
            self.words.data.copy_(init)
            nn.init.zeros_(self.positions)
        if layer == "attention":
            nn.init.xavier_uniform_(self.in_proj.weight)
            nn.init.zeros_(self.in_proj.bias)
            (nn.init.zeros_ if residual else nn.init.xavier_uniform_)(self.out_proj.weight)
            nn.init.zeros_(self.out_proj.bias)

    @property
    def prefix_length(self) -> int:
        """n, the number of tokens the prefix takes in the prompt."""
        return len(self.words) + int(self.keep_latent)

    def forward(self, latent: Float[Tensor, "*s c w"]) -> Float[Tensor, "*s c n w"]:
        first = latent.reshape(-1, latent.shape[-1]).to(self.words.dtype) + self.positions[0]
        rest = self.words + self.positions[1:]
        if self.layer is not None:
            whole = self.layer(self._sequence(first, rest))
            return whole[:, 0 if self.keep_latent else 1 :].unflatten(0, latent.shape[:-1])
        prefix = self.out_proj(self._attended(first, rest))
        if self.residual:
            prefix = prefix + (self._sequence(first, rest) if self.keep_latent else rest)
        return prefix.unflatten(0, latent.shape[:-1])

    def _attended(self, first: Float[Tensor, "n w"], rest: Float[Tensor, "b w"]) -> Float[Tensor, "n t w"]:
        """What each token takes from its sequence; the words go through the input projection once for all."""
        if kernels.takes(first):
            from pbprompt.vision.towers.kernels import prefix

            if prefix.takes(1 + len(rest), first.shape[-1] // self.heads):
                projected = self.in_proj(torch.cat([first, rest]))
                skipped = 0 if self.keep_latent else 1
                return prefix.Attend.apply(projected, len(rest), self.heads, skipped)  # type: ignore[no-untyped-call]
        projected = self._sequence(self.in_proj(first), self.in_proj(rest))
        apart = (x.unflatten(-1, (self.heads, -1)) for x in projected.chunk(3, dim=-1))
        query, key, value = (x.transpose(1, 2) for x in apart)
        if not self.keep_latent:
            query = query[:, :, 1:]
        # Written out: for sequences of a few tokens this is several times faster than a kernel for long ones.
        scores = query @ key.mT * query.shape[-1] ** -0.5
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(-2)

    @staticmethod
    def _sequence(first: Float[Tensor, "n k"], rest: Float[Tensor, "b k"]) -> Float[Tensor, "n t k"]:
        """One sequence for each row of `first`: that row, then the shared rest."""
        return torch.cat([first.unsqueeze(1), rest.expand(len(first), -1, -1)], dim=1)
