"""Defects against good parts: `defect` is a scratch, a hole or a dent, `good` is none of them.

A class of many unlike things is what defects are. The parts are drawn here; with photographs of yours it is
`PromptClassifier().fit("parts/")` on the folders `parts/good` and `parts/defect`.
"""

import random

import numpy as np
from PIL import Image, ImageDraw

from pbprompt import PromptClassifier


def part(kind: str, chance: random.Random) -> Image.Image:
    """A grey disc on a belt, in changing light, with or without a defect."""
    light = chance.randint(140, 200)
    image = Image.new("RGB", (160, 160), (60, 62, 66))
    draw = ImageDraw.Draw(image)
    x, y = chance.randint(-8, 8), chance.randint(-8, 8)
    draw.ellipse((30 + x, 30 + y, 130 + x, 130 + y), fill=(light,) * 3)
    at = 80 + x + chance.randint(-20, 20), 80 + y + chance.randint(-20, 20)
    if kind == "scratch":
        draw.line((at[0] - 25, at[1] - 10, at[0] + 25, at[1] + 12), fill=(50, 45, 45), width=3)
    elif kind == "hole":
        draw.ellipse((at[0] - 8, at[1] - 8, at[0] + 8, at[1] + 8), fill=(20, 20, 20))
    elif kind == "dent":
        draw.pieslice((30 + x, 30 + y, 130 + x, 130 + y), 200, 235, fill=(60, 62, 66))
    return image


def parts(images: int, seed: int) -> tuple[list[Image.Image], np.ndarray]:
    chance = random.Random(seed)
    kinds = [chance.choice(("good", "good", "good", "scratch", "hole", "dent")) for _ in range(images)]
    return [part(kind, chance) for kind in kinds], np.array(
        ["good" if k == "good" else "defect" for k in kinds]
    )


def main(images: int = 120) -> float:
    x, y = parts(images, seed=1)
    classifier = PromptClassifier().fit(x, y)
    new, truth = parts(images, seed=2)
    predicted = classifier.predict_uncertainty(new, reject_at=0.9)
    assert predicted.unsure is not None and classifier.calibration_ is not None
    right = classifier.classes_[predicted.probabilities.argmax(1)] == truth
    print(f"{right.mean():.1%} of {len(truth)} parts are right")
    share, threshold = classifier.calibration_.promised(0.9)
    print(f"promised by {classifier.calibration_.rests_on}: {share:.0%} from {threshold:.2f} on")
    if (~predicted.unsure).any():
        print(f"of the {(~predicted.unsure).sum()} that are sure, {right[~predicted.unsure].mean():.1%} are")
    return float(right.mean())


if __name__ == "__main__":
    main()
