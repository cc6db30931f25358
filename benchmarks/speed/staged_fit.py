"""One `pbprompt fit`, which says how much processor time each of its stages took: run by `stages.py`.

    python -m benchmarks.speed.staged_fit DATA --out MODEL

Nothing is imported before it is timed. A function's time is its own: less that of others in the list.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from typing import Any

STAGES = {
    "data opened": ("pbprompt.vision.images.sources", "open_dataset"),
    "tower loaded": ("pbprompt.vision.towers.loading.load", "load_backbone"),
    "features read": ("pbprompt.vision.features.cache", "FeatureCache.encode"),
    "names read": ("pbprompt.learners.zeroshot", "sentence_features"),
    "experts": ("pbprompt.evidence.posterior", "fit_posterior"),
    "weights of the experts": ("pbprompt.evidence.weights", "fit_weights"),
    "rest of the fit": ("pbprompt.model.tuned", "TunedModel.fit"),
    "answers": ("pbprompt.model.predictor", "predict_features"),
    "rest of the judging": ("pbprompt.model.evaluate", "calibrate_and_evaluate"),
    "copies in the test split": ("pbprompt.apps.audit.duplicates", "twins"),
    "model written": ("pbprompt.model.tuned", "TunedModel.save"),
}

spent: defaultdict[str, float] = defaultdict(float)
_within: list[float] = [0.0]  # time that inner stages took, by depth


def timed(stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose own time goes to the stage."""

    def run(*given: Any, **named: Any) -> Any:
        started = time.process_time()
        _within.append(0.0)
        try:
            return work(*given, **named)
        finally:
            took = time.process_time() - started
            spent[stage] += took - _within.pop()
            _within[-1] += took

    return run


def put(stage: str, module: str, name: str) -> None:
    """In place of the function wherever it was imported to."""
    owner, _, attribute = name.rpartition(".")
    if owner:
        kind = getattr(import_module(module), owner)
        work = kind.__dict__[attribute]
        made = timed(stage, getattr(work, "__func__", work))
        setattr(kind, attribute, classmethod(made) if isinstance(work, classmethod) else made)
        return
    work = getattr(import_module(module), attribute)
    made = timed(stage, work)
    for there in [one for key, one in sys.modules.items() if key.startswith("pbprompt.")]:
        if getattr(there, attribute, None) is work:
            setattr(there, attribute, made)


def main() -> None:
    """`pbprompt fit` with the words of this command, then the stages as a line of JSON."""
    from pbprompt.apps import cli
    from pbprompt.apps.cli.output import importing

    with importing():
        import_module("pbprompt.apps.cli.fitting")
        for method in ("conjugate", "rivals.nearest"):
            import_module(f"pbprompt.evidence.{method}")
    spent["imports"] = time.process_time()
    for stage, (module, name) in STAGES.items():
        put(stage, module, name)
    sys.argv[1:1] = ["fit"]
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            raise
    print(json.dumps(spent))


if __name__ == "__main__":
    main()
