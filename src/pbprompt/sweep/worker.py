"""What a worker does. It writes nothing but the feature cache: records go back to the sweep to keep."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pbprompt.clip.backbone import Backbone
from pbprompt.clip.loading.load import load_backbone
from pbprompt.data.fewshot import draw
from pbprompt.data.processors import available_cpus
from pbprompt.data.sources import open_dataset
from pbprompt.features.bank import FeatureBank
from pbprompt.runs.tasks import Arrays, RunConfig, prepare_run, run_task
from pbprompt.train.tune import epoch_features


def execute(
    config: RunConfig, backbone: str, root: Path | None, device: str
) -> tuple[dict[str, Any], Arrays]:
    """One run: its record and its per-image arrays."""
    loaded = _backbone(backbone, device)
    return run_task(prepare_run(config, loaded, root), _bank(loaded), root)


def encode(configs: Sequence[RunConfig], backbone: str, root: Path | None, device: str) -> None:
    """Store the features that these runs of one dataset will read: their draws, and what they test on."""
    bank = _bank(_backbone(backbone, device))
    dataset = open_dataset(configs[0].dataset, root)
    for shots, seed, views in dict.fromkeys((run.shots, run.seed, run.views) for run in configs):
        epoch_features(bank, draw(dataset, shots, seed).apply(dataset), seed, views, epochs=0)
    bank.encode(dataset.root, dataset.test)
    for target in dict.fromkeys(name for run in configs for name in run.targets):
        other = open_dataset(target, root)
        bank.encode(other.root, other.test or other.items)


@cache
def _backbone(name: str, device: str) -> Backbone:
    """Loaded once a process, however many runs it does."""
    return load_backbone(name, device=device)


def _bank(backbone: Backbone) -> FeatureBank:
    # threads: with decoding processes of its own, every worker would start as many as there are processors
    return FeatureBank(backbone, workers=available_cpus(), progress=False)
