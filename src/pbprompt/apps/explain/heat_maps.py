"""Where in an image do the sampled prompts of a class look?

    patch-to-prompt  π(g_c | u_m) ∝ p_c exp(cos(u_m, g_c) / T)        to which class a patch goes   (Eq. 7)
    prompt-to-patch  π(u_m | g_c) ∝ exp(cos(u_m, g_c) / T)            where a class finds itself    (Eq. 8)
    contribution     e_mc = s · u_m·(ĝ_c − mean_c' ĝ_c') / ‖f(x)‖     what a patch says for a class

| symbol | meaning                                             |
|--------|-----------------------------------------------------|
| u_m    | patch features                                      |
| g_c, ĝ | text features of a sampled prompt, and at length 1  |
| f(x)   | the image's own feature                             |
| p_c    | p(y = c | x) under that sample                      |
| T      | temperature of the plans                            |
| s      | logit scale, over the prediction's own temperature  |

The plans are the paper's. They compare directions alone: a patch of plain sky counts as much as one full of
the object, and what all classes share is heat for each. The contribution keeps the length of a patch feature
and takes off what speaks for every class alike. Where the image's feature is the mean of its patches, as in
the embedded backbone, the mean of e_mc over the patches is exactly the logit of class c minus the mean logit.
The plans tell best which of several objects is of the class, the contribution what the decision rests on.

All classes of the model take part in the softmax and the mean; the maps are of those asked for.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pbprompt.errors import InputError
from pbprompt.files import write_bytes
from pbprompt.learners.fitted import Explains
from pbprompt.model.predictor import Predictor
from pbprompt.prompts.pbprompt.transport import plan_similarity, transport_plans
from pbprompt.vision.images.crops import Fit
from pbprompt.vision.images.names import class_rows
from pbprompt.vision.towers.backbone import Encoded

Reading = Literal["patch-to-prompt", "prompt-to-patch", "contribution"]
READINGS: tuple[Reading, ...] = get_args(Reading)
TOP = 3  # classes shown where none is named

Maps = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class HeatMaps:
    """Maps over the patch grid of the square that the model saw: [s, c, h, w]."""

    patch_to_prompt: Maps
    """of each patch, the share that goes to the class; at most 1 over all classes of the model"""
    prompt_to_patch: Maps
    """of each prompt, the share that goes to the patch: sums to 1 over the patches"""
    contribution: Maps
    """logits for the class above the mean of all classes"""
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]
    """[c], as `predict` gives them"""
    temperature: float
    """T of the plans"""
    sources: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """[c] each: logits above the mean of all classes by where they come from; empty for a single source"""
    fit: Fit = "crop"
    """how the model saw the image: its centre, or the whole squashed to a square"""
    cropped: float = 1.0
    """the share of the short side that its centre has"""

    def of(self, reading: Reading) -> Maps:
        """The maps of one reading."""
        if reading not in READINGS:
            raise InputError(f"reading {reading!r} is unknown: use {', '.join(READINGS)}")
        return getattr(self, reading.replace("-", "_"))

    def save(self, path: Path) -> None:
        """Write all arrays as .npz."""
        arrays: dict[str, Any] = {reading.replace("-", "_"): self.of(reading) for reading in READINGS}
        arrays |= {"classes": np.array(self.classes), "probabilities": self.probabilities}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays, temperature=np.float32(self.temperature))
        write_bytes(path, buffer.getvalue())


@torch.no_grad()
def heat_maps(
    predictor: Predictor,
    image: Image.Image,
    names: Sequence[str] | None = None,
    samples: int = 4,
    *,
    temperature: float | None = None,
) -> HeatMaps:
    """Maps of the named classes (default: the three likeliest) for `samples` of their prompts at most; of
    several backbones, where the first one looks.

    `temperature`: T of the plans; the default is the one the model was trained with.
    """
    method, bank = predictor.method, predictor.bank[:samples]
    backbone, prompts = method.backbone, method.prompts_of(bank)
    first = backbone.towers[0]
    encoded = looking = backbone.image(backbone.preprocess(image)[None].to(backbone.device))
    if first is not backbone:
        looking = first.image(first.preprocess(image)[None].to(first.device))
        prompts = prompts[..., : first.embed_dim]
    probabilities = predictor(encoded).probabilities[0]
    likeliest = probabilities.argsort(descending=True, stable=True)[:TOP].tolist()
    rows = likeliest if names is None else class_rows(method.classes, names)
    heat = method.plan_temperature if temperature is None else temperature
    log_weights = method.sample_logits(encoded, bank).log_softmax(-1)
    log_weights = log_weights.expand(len(prompts), -1, -1)  # prompts that make one classifier share its p_c
    similarity = plan_similarity(looking.patches, prompts, getattr(method.config, "ct_plan", "cosine"))
    plans = transport_plans(similarity, log_weights, heat)

    def maps(values: Float[Tensor, "s 1 m c"]) -> Maps:
        chosen = values[:, 0, :, rows].transpose(1, 2).unflatten(-1, first.grid)
        return chosen.float().cpu().numpy()

    sources = method.fitted.sources(encoded) if isinstance(method.fitted, Explains) else {}
    see = first.preprocess
    return HeatMaps(
        patch_to_prompt=maps(plans.prompt_given_patch),
        prompt_to_patch=maps(plans.patch_given_prompt),
        contribution=maps(_contribution(looking, method.directions(bank)[..., : prompts.shape[-1]])),
        classes=tuple(method.classes[row] for row in rows),
        probabilities=probabilities[rows].float().cpu().numpy(),
        temperature=heat,
        sources={
            source: (logits - logits.mean(1, keepdim=True))[0, rows].float().cpu().numpy()
            for source, logits in sources.items()
        },
        fit=see.fit,
        cropped=see.kept,
    )


def _contribution(encoded: Encoded, directions: Float[Tensor, "s c d"]) -> Float[Tensor, "s b m c"]:
    """e_mc of every sample and image."""
    directions = directions - directions.mean(1, keepdim=True)
    images = encoded.global_[:, : directions.shape[-1]]  # a tuned tower may have more than one vector of each
    lengths = images.to(directions.dtype).norm(dim=-1)[:, None, None]
    patches = encoded.patches.to(directions.dtype) / lengths
    return torch.einsum("bmd,scd->sbmc", patches, directions)
