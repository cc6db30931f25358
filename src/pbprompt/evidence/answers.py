"""The posterior, asked for some classes: known ones, and others of which there is only a name.

A class known by name alone joins the others at its odds against all of them together (`novelty.py`):

    logit_n(x) = ln Σ_c exp logit_c(x) + ln o_n(x)
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pbprompt.evidence.expert import Seen
from pbprompt.evidence.novelty import HUGE, reluctance
from pbprompt.evidence.posterior import Posterior, kinds_of
from pbprompt.evidence.text_map import move
from pbprompt.evidence.weights import combined, name_rows


class NewNames:
    """Names without photographs beside the known classes of a posterior."""

    def __init__(self, posterior: Posterior, texts: Sequence[Float[Tensor, "m _"]], scales: Sequence[float]):
        """`texts`: of length 1, one table for each backbone; `scales`: their exp(logit scale)."""
        self.posterior = posterior
        self.directions = [
            scale * (move(view.text_map, text.to(view.text_map.centre)) - view.moved_centre)
            for view, text, scale in zip(posterior.views, texts, scales, strict=True)
        ]
        self.alone = [
            psi * scale * (text.to(view.text_map.centre) - view.text_map.centre)
            for view, text, scale, psi in zip(
                posterior.views, texts, scales, posterior.name_scale, strict=True
            )
        ]
        told = posterior.open > -HUGE
        shown = [Seen(view.photographs[: len(told)][told]) for view in posterior.views]
        fit = self.fit(shown, posterior.names_alone(*shown))
        self.reluctance = reluctance(posterior.novelty, posterior.open[told], fit)

    def fit(self, images: Sequence[Seen], known: Float[Tensor, "b k"]) -> Float[Tensor, "b m"]:
        """How well a name fits: ψ (x − b)·(t̂_n − t̄), the mean over the backbones, and
        ρ (s_n − ln Σ_c exp s_c). `known`: s_c; of none, names are among themselves."""
        views = zip(self.posterior.views, images, self.directions, strict=True)
        cosines = [
            (seen.global_ - view.centre.to(seen.global_)) @ way.to(seen.global_).T
            for view, seen, way in views
        ]
        said = [seen.global_ @ way.to(seen.global_).T for seen, way in zip(images, self.alone, strict=True)]
        ahead = torch.stack(said).sum(0)
        if known.shape[1]:
            ahead = ahead - known.to(ahead).logsumexp(1, keepdim=True)
        psi, rho = self.posterior.novelty.odds[2:].to(ahead)
        return psi * torch.stack(cosines).mean(0) + rho * ahead

    def slopes(self, known: Int[Tensor, " k"]) -> Float[Tensor, "m d"]:
        """∇ of `fit` at b, by the first backbone's global feature; `known`: columns that are asked for."""
        views, (psi, rho) = self.posterior.views, self.posterior.novelty.odds[2:]
        means = self.alone[0].new_zeros(1, self.alone[0].shape[1])
        if len(known):
            said = self.posterior.names_alone(*(Seen(view.centre.unsqueeze(0)) for view in views))[:, known]
            ways = self.posterior.experts[name_rows(kinds_of(views))[0]].slopes(views[0].centre)
            means = self.posterior.name_scale[0] * said.softmax(1) @ ways[known]
        return psi * self.directions[0] / len(views) + rho * (self.alone[0] - means)

    def log_odds(
        self, images: Sequence[Seen], looks: Float[Tensor, " b"], known: Float[Tensor, "b k"]
    ) -> Float[Tensor, "b m"]:
        """ln o_n against all known classes together; `looks`: F, `known`: what their names alone say."""
        fit = self.fit(images, known)
        away = self.posterior.novelty.odds[1].to(fit) * looks.to(fit).unsqueeze(1)
        return fit - away - self.reluctance.to(fit)


class Answers:
    """What is said of the classes that are asked for."""

    def __init__(
        self,
        posterior: Posterior,
        columns: Int[Tensor, " c"],
        texts: Sequence[Float[Tensor, "m _"]],
        scales: Sequence[float],
    ) -> None:
        """`columns`: of each class its column among the known ones, or −1; `texts`: of those, in order."""
        self.posterior = posterior
        known, new = ((columns >= 0) == has for has in (True, False))
        self.columns, self.new = columns[known], int(new.sum())
        self.order = (
            torch.cat([known.nonzero(), new.nonzero()]).squeeze(1).argsort()
        )  # back to the order asked
        self.names = NewNames(posterior, texts, scales)

    def logits(
        self,
        images: Sequence[Seen],
        scores: Float[Tensor, "e b k"],
        looks: Float[Tensor, " b"],
        draws: Float[Tensor, "s e"],
    ) -> Float[Tensor, "s b c"]:
        """Of each draw of the weights; `looks`: F of the images."""
        mine = scores[:, :, self.columns]
        known = combined(mine, draws)
        by_name = self.posterior.by_name(mine)
        if not self.new:
            return self.posterior.mixed_with_names(known, by_name, looks)[..., self.order]
        if not len(self.columns):  # names among themselves
            return self.names.fit(images, by_name).expand(len(draws), -1, -1)
        odds = known.logsumexp(-1, keepdim=True) + self.names.log_odds(images, looks, by_name)
        return torch.cat([known, odds], dim=-1)[..., self.order]

    def sources(self, images: Sequence[Seen], named: Sequence[str]) -> dict[str, Float[Tensor, "b c"]]:
        """What adds up to a class's logit, by the best weights; of a name without photographs, what all
        photographs say against it. `named`: the backbones; of several each speaks for itself."""
        posterior = self.posterior
        scores = posterior.scores(*images)
        looks = posterior.strangeness(scores)
        mine = scores[:, :, self.columns]
        spoken = zip(named, kinds_of(posterior.views), strict=True)
        says = [f"{kind.says} ({of})" if named[1:] else kind.says for of, kinds in spoken for kind in kinds]
        known = posterior.weights.best[:, None, None] * mine
        total = known.sum(0)
        if len(self.columns):  # against all of them together, as new names are
            known[0] -= total.logsumexp(1, keepdim=True)
        names = posterior.by_name(mine)
        by_name, odds = self.names.fit(images, names), self.names.log_odds(images, looks, names)
        of_new = {"name": by_name, "photographs": odds - by_name if len(self.columns) else 0 * odds}
        of_known: dict[str, Tensor] = {}
        for source, table in zip(says, known, strict=True):
            of_known[source] = of_known.get(source, 0) + table
        parts, none = {}, (torch.zeros_like(total), torch.zeros_like(odds))
        for source in of_known | (of_new if self.new else {}):  # what is new is told by all backbones
            tables = of_known.get(source, none[0]), of_new.get(source, none[1])
            parts[source] = torch.cat(tables, dim=1)[:, self.order]
        if not self.new:  # what an image unlike the photographs leaves to the names
            left = posterior.mixed_with_names(total[None], names, looks)[0] - total
            parts["unlike the photographs"] = (left - left.mean(1, keepdim=True))[:, self.order]
        return parts

    def slopes(self, draws: Float[Tensor, "s e"]) -> Float[Tensor, "s c d"]:
        """∇ of the logits at b, by the first backbone's global feature."""
        view = self.posterior.views[0]
        each = torch.stack([one.slopes(view.centre) for one in view.experts.values()])
        known = torch.einsum("se,ekd->skd", draws[:, : len(each)].to(each), each[:, self.columns])
        new = self.names.slopes(self.columns).to(known)
        return torch.cat([known, new.expand(len(draws), -1, -1)], dim=1)[:, self.order]
