"""Are the prefix tokens copies of each other, and does the transport look anywhere? Every reading of round 12
at its start, on the sample's classes and images.

    python -m benchmarks.readings.tokens --out benchmarks/results/readings-tokens.json

`attention` is the share of a query's attention that does not depend on which token asks: 1 − the mean total
variation between two queries' attention. Tokens whose attention is the same are the same, where nothing is
added to it.
"""

import argparse
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from pbprompt.files import write_text
from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.prompts.pbprompt.transport import plan_entropy
from pbprompt.research.provenance import commit
from pbprompt.research.recipes import load_recipe
from pbprompt.seeding import generator
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.loading.load import load_backbone

RECIPE = Path(__file__).with_name("round-12.yaml")
IMAGES = 24


def look(method: PBPrompt, batch: Batch) -> dict[str, float]:
    """What the method logs while it trains, before any step, and what the tokens attend to."""
    method.loss(batch, generator(1), len(batch.labels))
    found = method.diagnostics(generator(2))
    found["plan_entropy"] = plan_entropy(
        batch.images.patches,
        method.class_features(1, generator(3)),
        method.plan_temperature,
        method.config.ct_plan,
    ).item()
    mean, log_variance = method.posterior(method._names)
    latent = mean + (0.5 * log_variance).exp() * torch.randn(mean.shape, generator=generator(4))
    found["latent_rms"] = latent.square().mean().sqrt().item()
    found["words_rms"] = method.generator.words.square().mean().sqrt().item()
    if method.generator.layer is None:
        found["attention"] = shared_attention(method, latent)
    return {key: round(value, 4) for key, value in found.items()}


def shared_attention(method: PBPrompt, latent: torch.Tensor) -> float:
    own = method.generator
    rest = own.words.expand(len(latent), -1, -1)
    tokens = torch.cat([latent[:, None], rest], dim=1) + own.positions
    query, key, _ = own.in_proj(tokens).unflatten(-1, (3, own.heads, -1)).unbind(2)
    scores = torch.einsum("cihd,cjhd->chij", query, key) * query.shape[-1] ** -0.5
    weights = scores.softmax(-1)
    gaps = [(weights[..., i, :] - weights[..., j, :]).abs().sum(-1) / 2 for i, j in combinations(range(5), 2)]
    return 1 - torch.stack(gaps).mean().item()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    backbone, data = load_backbone("lite"), open_dataset("sample")
    few = draw(data, 1, 1).apply(data)
    features = FeatureCache(backbone).encode(few.root, few.train[:IMAGES])
    batch = Batch(features.images, features.labels)
    rows: dict[str, Any] = {}
    for row in load_recipe(str(RECIPE)).rows:
        config = make_config(PBPrompt, row.preset, row.variant, row.overrides)
        method = build_method(PBPrompt, config, backbone, seed=1)
        method.prepare(data.classes, data.template)
        rows[row.label] = look(method, batch)
        print(f"{row.label}: {rows[row.label]}", flush=True)
    about = {
        "backbone": backbone.fingerprint,
        "images": IMAGES,
        "classes": len(data.classes),
        "commit": commit(),
    }
    write_text(options.out, json.dumps(about | {"rows": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
