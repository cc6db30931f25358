"""What a worker does. It writes nothing but the feature cache: records go back to the sweep to keep."""

from collections.abc import Sequence
from functools import cache

from pbprompt.model.learn import epoch_features
from pbprompt.research.runs.protocol import Arrays, Prepared, run_task
from pbprompt.research.runs.record import Record
from pbprompt.vision.features.cache import FeatureBank
from pbprompt.vision.images.workers import available_cpus
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.rounding import PRECISIONS


def execute(run: Prepared, backbone: str, device: str) -> tuple[Record, Arrays]:
    """One run: its record and its per-image arrays."""
    return run_task(run, _bank(backbone, device, run.config.precision))


def encode(runs: Sequence[Prepared], backbone: str, device: str) -> None:
    """Store the features that these runs of one dataset will read: their draws, and what they test on."""
    for precision in {run.config.precision: None for run in runs}:
        bank = _bank(backbone, device, precision)
        own = [run for run in runs if run.config.precision == precision]
        draws = {(run.config.shots, run.config.seed, run.config.views): run.few for run in own}
        for (_, seed, views), few in draws.items():
            epoch_features(bank, few, seed, views, epochs=0)
        tested = {(name, run.config.split): one for run in own for name, one in run.tested.items()}
        for dataset in tested.values():
            bank.encode(dataset.root, dataset.test)


@cache
def _bank(backbone: str, device: str, precision: str) -> FeatureBank:
    """Of towers that are loaded once a process, however many runs it does."""
    # threads: with decoding processes of its own, every worker would start as many as there are processors
    towers = load_backbone(backbone, device=device, dtype=PRECISIONS[precision])
    return FeatureBank(towers, workers=available_cpus(), progress=False)
