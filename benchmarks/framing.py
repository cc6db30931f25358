"""What `fit --framing` is worth: accuracy on test images that are long, and on the others.

    python -m benchmarks.framing /data/caltech-101 /data/oxford_pets --shots 4 --seeds 3

The default method, fitted with each framing to the same few images of each class.
"""

import argparse
from dataclasses import replace
from typing import get_args

from PIL import Image

from pbprompt.evidence.conjugate import Conjugate
from pbprompt.learners.fit_options import FitOptions
from pbprompt.model.evaluate import evaluate
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.crops import Fit
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.loading.load import load_backbone

LONG = 1.5  # from this aspect on
OTHERS = 600  # test images besides, evenly over the list


def parts(dataset: Dataset) -> dict[str, tuple[Item, ...]]:
    """The test images that are long, and some of the others."""
    long: list[Item] = []
    others: list[Item] = []
    for item in dataset.test:
        with Image.open(dataset.file(item)) as image:
            sides = image.size
        (long if max(sides) >= LONG * min(sides) else others).append(item)
    return {"long": tuple(long), "others": tuple(others[:: max(1, len(others) // OTHERS)])}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", nargs="+")
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--backbone", default="lite")
    given = parser.parse_args()
    tower = load_backbone(given.backbone, device="auto")
    for source in given.data:
        dataset = open_dataset(source, held_out=(0.0, 0.5))
        tested = {name: items for name, items in parts(dataset).items() if items}
        for framing in get_args(Fit):
            bank = FeatureCache(tower.framed(framing), progress=False)
            right = dict.fromkeys(tested, 0.0)
            for seed in range(1, given.seeds + 1):
                few = draw(dataset, given.shots, seed).apply(dataset)
                options = FitOptions(seed=seed, progress=False)
                model = TunedModel.fit(few, bank, Conjugate, Conjugate.Config(), options)
                for name, items in tested.items():
                    judged = evaluate(model, replace(dataset, test=items), "test", bank)[0]
                    right[name] += judged["accuracy"] / given.seeds
            said = ", ".join(f"{name} {right[name]:.2%} of {len(tested[name]):,}" for name in tested)
            print(f"{dataset.name}: {framing}: {said}", flush=True)


if __name__ == "__main__":
    main()
