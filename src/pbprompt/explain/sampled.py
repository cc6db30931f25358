"""The prompts of a model as points in the joint space: what captions, diversity and maps look at."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.data.names import name_key
from pbprompt.errors import InputError
from pbprompt.methods.base import Method
from pbprompt.seeding import generator


@torch.no_grad()
def sampled_prompts(method: Method, samples: int, seed: int) -> Float[Tensor, "s c d"]:
    """`samples` draws of every class's text feature (one where all are the same)."""
    prompts = as_prompts(method, method.class_features(samples, generator(seed)))
    if not prompts.any():
        raise InputError(f"{method.name} was fitted without class names and has no prompts: fit it with some")
    return prompts[:1] if torch.equal(prompts, prompts[:1].expand_as(prompts)) else prompts


def as_prompts(method: Method, bank: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
    """The text features behind a bank, refused where it holds something other than one per class."""
    prompts = method.prompts_of(bank)
    if method.image_conditioned or prompts.shape[-1] != method.backbone.embed_dim:
        why = "makes its prompts anew for every image" if method.image_conditioned else "votes by its images"
        raise InputError(
            f"{method.name} {why} and has no class features to look into: use a model of pbprompt or coop"
        )
    return prompts


def class_rows(classes: Sequence[str], names: Sequence[str]) -> list[int]:
    """Where the named classes are, all of a name; case and underscores do not matter."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(classes):
        rows.setdefault(name_key(name), []).append(row)
    for name in names:
        if name_key(name) not in rows:
            raise InputError(f"class {name!r} is none of the model's {len(classes)}: add it by name first")
    return [row for key in dict.fromkeys(map(name_key, names)) for row in rows[key]]


def missing_names(classes: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that are no class yet, each once."""
    known = {name_key(name) for name in classes}
    new = {name_key(name): name for name in reversed(names) if name_key(name) not in known}
    return list(reversed(new.values()))
