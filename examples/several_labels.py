"""Images with several labels, or none: a table with a column `labels`, by the command line's own functions.

The same by hand: `pbprompt fit labels.csv --out model/`, then `pbprompt predict photos/ --model model/`.
"""

import csv
import random
import tempfile
from pathlib import Path

from PIL import Image

from pbprompt import TunedModel, load_backbone, open_dataset
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.model.evaluate import calibrate_and_evaluate
from pbprompt.vision.features.cache import FeatureCache

NAMES = ("fruit", "clock", "bird")


def photographs(folder: Path, images: int) -> Path:
    """Two drawings beside each other, or one, or an empty sky."""
    sample, chance = open_dataset("sample"), random.Random(0)
    drawn = {name: [i for i in sample.train if sample.classes[i.label] == name] for name in NAMES}
    table = folder / "labels.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "labels", "split"])
        for number in range(images):
            labels = sorted(chance.sample(NAMES, chance.choice((0, 1, 2, 2))))
            canvas = Image.new("RGB", (224, 112), (170, 200, 230))
            for place, name in enumerate(labels):
                with Image.open(sample.file(chance.choice(drawn[name]))) as one:
                    canvas.paste(one.convert("RGB").resize((112, 112)), (112 * place, 0))
            canvas.save(folder / f"{number}.png")
            rows.writerow([f"{number}.png", "|".join(labels), "test" if number % 4 == 0 else "train"])
    return table


def main(images: int = 80) -> float:
    with tempfile.TemporaryDirectory() as folder:
        dataset = open_dataset(photographs(Path(folder), images))
        bank = FeatureCache(load_backbone("lite"), progress=False)
        model = TunedModel.fit(dataset, bank, Conjugate, ConjugateConfig())
        model = calibrate_and_evaluate(model, dataset, bank)
        figures = model.info.metrics
        print(f"mAP {figures['map']:.1%} on {figures['images']} test images")
        return float(figures["map"])


if __name__ == "__main__":
    main()
