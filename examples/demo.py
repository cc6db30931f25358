"""Zero-shot predictions of the embedded backbone on a few of the bundled images."""

import subprocess
import sys
from pathlib import Path

import pbprompt

IMAGES = Path(pbprompt.__file__).parent / "data" / "sample" / "images"
PICKED = [
    "openmoji/bird/1f989.webp",
    "openmoji/fruit/1f34c.webp",
    "fluent/mammal/1f408.webp",
    "fluent/musical-instrument/1f3b8.webp",
]

if __name__ == "__main__":
    images = [str(IMAGES / picked) for picked in PICKED]
    names = "bird,fruit,cat,guitar,clock"
    command = ["predict", *images, "--classes", names, "--template", "a drawing of a {}."]
    sys.exit(subprocess.call([sys.executable, "-m", "pbprompt", *command]))
