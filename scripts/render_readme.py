"""Draw the README's three pictures from photographs: the pages of `look`, `evaluate` and `serve`.

    pip install --target ELSEWHERE scikit-image
    PHOTOGRAPHS=ELSEWHERE python scripts/render_readme.py

The folder that they show is made of crops of freely licensed photographs, which come with scikit-image and
with scikit-learn (THIRD_PARTY_NOTICES.md says whose they are). They become docs/images/readme-* and
serve.webp. Needs the extra `serve`, scikit-learn, selenium, chromium and chromedriver
(scripts/install_chromium.sh).
"""

import contextlib
import os
import random
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageOps
from render_example import DOCS, run_commands
from render_loop import chromium, photograph
from screenshot import draw_page

SKIMAGE, SKLEARN = "skimage/data", "sklearn/datasets/images"
PHOTOGRAPHS = {
    "brick wall": f"{SKIMAGE}/brick.png",
    "cat": f"{SKIMAGE}/chelsea.png",
    "coffee": f"{SKIMAGE}/coffee.png",
    "flower": f"{SKLEARN}/flower.jpg",
    "galaxies": f"{SKIMAGE}/hubble_deep_field.jpg",
    "grass": f"{SKIMAGE}/grass.png",
    "gravel": f"{SKIMAGE}/gravel.png",
    "rocket": f"{SKIMAGE}/rocket.jpg",
    "temple": f"{SKLEARN}/china.jpg",
}
SPLITS = {"train": 3, "val": 4, "test": 12}
SHARES = (0.2, 0.55)  # of a photograph's shorter side, which crops have: so little that some are hard
SEED, SIDE = 1, 256
COMMANDS = """
pbprompt look photos/ --html look.html
rm photos/train/*/astray.jpg photos/train/*/copy.jpg
pbprompt fit photos/ --out model/
pbprompt evaluate model/ photos/ --html report.html
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        lay_out()
        print(run_commands(COMMANDS))
        with chromium() as browser:
            for page, heading in (("look", "Likely label errors"), ("report", "Most confused pairs")):
                browser.get(Path(f"{page}.html").resolve().as_uri())
                photograph(browser, f"readme-{page}", heading)
        opened("cat").save("cat.png")
        draw_page(Path("model"), Path("cat.png"), "cat", DOCS / "images" / "serve.webp")


def lay_out() -> None:
    """photos/ with a folder of crops for each class in each split.

    For `look` to find, three training images lie in the folder of another class, and one is a test image too.
    """
    chance = random.Random(SEED)
    for name in PHOTOGRAPHS:
        photo = opened(name)
        for split, count in SPLITS.items():
            folder = Path("photos") / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                crop(photo, chance).save(folder / f"{number + 1}.jpg", quality=90)
    train = Path("photos/train")
    for wrong, other in (("cat", "coffee"), ("flower", "temple"), ("rocket", "flower")):
        crop(opened(wrong), chance).save(train / other / "astray.jpg", quality=90)
    shutil.copy("photos/test/temple/1.jpg", train / "temple" / "copy.jpg")


def opened(name: str) -> Image.Image:
    package, _, path = PHOTOGRAPHS[name].partition("/")
    elsewhere = Path(os.environ.get("PHOTOGRAPHS", "")) / package
    if not elsewhere.is_dir():
        found = find_spec(package)
        assert found and found.origin, f"{package} is not there: see this script's first lines"
        elsewhere = Path(found.origin).parent
    return Image.open(elsewhere / path).convert("RGB")


def crop(photo: Image.Image, chance: random.Random) -> Image.Image:
    """A square of it, perhaps mirrored."""
    side = round(min(photo.size) * chance.uniform(*SHARES))
    left, top = (chance.randrange(length - side) for length in photo.size)
    part = photo.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
    return ImageOps.mirror(part) if chance.random() < 0.5 else part


if __name__ == "__main__":
    main()
