"""Where the transport looks: plans of tuned models over the test images, averaged.

For each dataset and setting PBPrompt is tuned once, and the plans of Eq. 7 and 8 are computed for every test
image under the sampled prompts: π(patch | prompt of the true class), whose mean over images is a heat map;
and π(prompt | patch). exp(entropy) of a plan is the number of patches, or of classes, that it spreads over:
all of them where it is uniform. Photographs themselves are not shown: they are not ours to pass on.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pbprompt import markdown
from pbprompt.apps.pages import plots
from pbprompt.files import write_text
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import Method, make_config
from pbprompt.model.learn import tune
from pbprompt.model.predictor import predictive
from pbprompt.prompts.pbprompt.transport import patch_cosines, transport_plans
from pbprompt.registry import find_method
from pbprompt.research.provenance import commit, machine
from pbprompt.vision.features.cache import FeatureCache, Features
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.loading.load import load_backbone

DATASETS = ("oxford_pets", "grocery:photo")
SETTINGS: Mapping[str, tuple[str, list[str], int | None]] = {  # variant, settings, steps
    "before tuning": ("", [], 0),
    "PBPrompt": ("", [], None),
    "B-Prompt": ("b-prompt", [], None),
    "T = 0.1": ("", ["ct_temperature=0.1"], None),
    "T = 0.02": ("", ["ct_temperature=0.02"], None),
}
SHOTS, SEED = 4, 1
IMAGES_AT_ONCE = 32
FILE = Path(__file__).parents[1] / "results" / "study-maps.json"
FIGURE = "study-maps.svg"


def measure_maps(root: Path | None, say: Callable[[str], None]) -> None:
    """Tune, look, and write the file of results."""
    bank = FeatureCache(load_backbone("lite"))
    kind = find_method("pbprompt")
    about = {"shots": SHOTS, "seed": SEED, "backbone": bank.backbone.fingerprint, "commit": commit()}
    found: dict[str, Any] = {}
    for name in DATASETS:
        dataset = open_dataset(name, root)
        drawn = draw(dataset, SHOTS, SEED)
        test = bank.encode(dataset.root, dataset.test)
        found[name] = {"draw": drawn.hash, "images": len(test), "classes": len(dataset.classes), "rows": {}}
        for label, (variant, words, steps) in SETTINGS.items():
            config = make_config(kind, variant=variant, overrides=words)
            few = drawn.apply(dataset)
            method, _ = tune(few, bank, kind, config, FitOptions(shots=SHOTS, seed=SEED, max_steps=steps))
            found[name]["rows"][label] = look(method, test)
            say(f"{name}, {label}: {found[name]['rows'][label]['patches']:.1f} patches per prompt")
    results = about | {"machine": machine(bank.backbone.device), "datasets": found}
    write_text(FILE, json.dumps(results, indent=1, ensure_ascii=False) + "\n")


@torch.no_grad()
def look(method: Method, test: Features) -> dict[str, Any]:
    """Means over the test images."""
    prompts, temperature = predictive(method).bank, method.plan_temperature
    maps, patches, classes = [], [], []
    for images in torch.arange(len(test)).split(IMAGES_AT_ONCE):
        some = test.subset(images)
        encoded = Encoded(some.global_, some.patches)
        log_weights = method.sample_logits(encoded, prompts).log_softmax(-1)
        plans = transport_plans(patch_cosines(encoded.patches, prompts), log_weights, temperature)
        of_true = plans.patch_given_prompt[:, torch.arange(len(some)), :, some.labels]  # [b, s, m]
        maps.append(of_true.mean(1))
        patches.append(spread(of_true).mean(1))
        classes.append(spread(plans.prompt_given_patch).mean((0, 2)))
    return {
        "patches": torch.cat(patches).mean().item(),
        "classes": torch.cat(classes).mean().item(),
        "map": torch.cat(maps).mean(0).unflatten(0, method.backbone.grid).tolist(),
    }


def spread(plan: Tensor) -> Tensor:
    """exp(entropy) over the last dimension: how many places share the mass."""
    return torch.special.entr(plan).sum(-1).exp()


def draw_maps(folder: Path) -> str:
    """Draw the mean maps; returns the figure and a table as Markdown."""
    results = json.loads(FILE.read_text(encoding="utf-8"))
    plots.save(_figure(results["datasets"]), folder / FIGURE)
    rows = []
    for name, found in results["datasets"].items():
        for label, row in found["rows"].items():
            cells = np.array(row["map"])
            rows.append(
                [
                    name,
                    label,
                    f"{row['patches']:.1f} of {cells.size}",
                    f"{cells.size * cells.max():.2f}",
                    f"{row['classes']:.1f} of {found['classes']}",
                ]
            )
    headings = [
        "dataset",
        "setting",
        "patches per prompt spreads over",
        "highest cell × patches",
        "classes a patch spreads over",
    ]
    about = (
        f"{results['shots']} shots, draw {results['seed']}, all test images, 20 sampled prompts per class; "
        f"commit {results['commit']}, on {results['machine']['device']}."
    )
    picture = f"![Mean plan over the test images, by dataset and setting]({folder.name}/{FIGURE})"
    return "\n\n".join([picture, markdown.table(headings, rows), about])


@plots.styled
def _figure(datasets: Mapping[str, Any]) -> Any:
    """A row of maps per dataset; 1 is the uniform plan, and one scale serves all."""
    from matplotlib.figure import Figure

    labels = list(next(iter(datasets.values()))["rows"])
    figure = Figure(figsize=(1.7 * len(labels) + 1, 1.9 * len(datasets)), layout="constrained")
    axes = figure.subplots(len(datasets), len(labels), squeeze=False)
    maps = {
        (i, j): np.array(found["rows"][label]["map"])
        for i, found in enumerate(datasets.values())
        for j, label in enumerate(labels)
    }
    highest = max(cells.size * cells.max() for cells in maps.values())
    for (i, j), cells in maps.items():
        image = axes[i][j].imshow(cells.size * cells, cmap="cividis", vmin=0, vmax=highest)
        axes[i][j].set_xticks([])
        axes[i][j].set_yticks([])
        axes[i][j].grid(False)
        if i == 0:
            axes[i][j].set_title(labels[j], fontsize=9)
    for i, name in enumerate(datasets):
        axes[i][0].set_ylabel(name, fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.7, label="mass × patches")
    return figure
