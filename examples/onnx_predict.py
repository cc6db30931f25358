"""Classify images with a file that `pbprompt export` wrote: numpy, pillow and onnxruntime are all it needs.

    python examples/onnx_predict.py model.onnx photo.jpg other.jpg

Prints a JSON object per image: label, score, scores of all classes, entropy and epistemic part in nats, and
`unsure` where the model was fitted with validation images.
"""

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

BATCH = 16
ACCURACY = "0.9"  # wanted of the images that are not unsure


def open_rgb(path: str) -> Image.Image:
    """The first frame, upright, transparency laid on white, as 8-bit RGB."""
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file)
    if image.mode == "F" or image.mode.startswith("I"):
        raise ValueError(f"{path}: has more than 8 bits a channel: convert it to 8 bits first")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("RGB")


def preprocess(image: Image.Image, facts: dict[str, Any]) -> np.ndarray:
    """As the metadata says: short side resized and centre cropped, or all squashed: uint8 [size, size, 3]."""
    size, how = facts["size"], Image.Resampling.BICUBIC
    if "BILINEAR" in facts["resize"]:
        how = Image.Resampling.BILINEAR
    if "crop" not in facts:
        return np.asarray(image.resize((size, size), how))
    width, height = image.size
    short = facts.get("short_side", size)  # files of version 0.1.0 do not say: it was `size`
    long = int(short * max(width, height) / min(width, height))
    width, height = (short, long) if width <= height else (long, short)
    left, top = round((width - size) / 2), round((height - size) / 2)
    resized = image.resize((width, height), how)
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def main(model: str, *paths: str) -> None:
    session = onnxruntime.InferenceSession(model)
    facts = json.loads(session.get_modelmeta().custom_metadata_map["pbprompt"])
    classes, see = facts["classes"], facts["preprocessing"]
    for start in range(0, len(paths), BATCH):
        some = paths[start : start + BATCH]
        pixels = np.stack([preprocess(open_rgb(path), see) for path in some])
        outputs = session.run(["probabilities", "entropy", "epistemic"], {"image": pixels})
        for path, probabilities, entropy, epistemic in zip(some, *outputs, strict=True):
            scores = {name: round(float(p), 6) for name, p in zip(classes, probabilities, strict=True)}
            label = classes[int(probabilities.argmax())]
            record = {"image": path, "label": label, "score": scores[label], "scores": scores}
            record |= {"entropy": round(float(entropy), 6), "epistemic": round(float(epistemic), 6)}
            if "calibration" in facts:
                threshold = facts["calibration"]["unsure_below"][ACCURACY]
                record["unsure"] = None if threshold is None else scores[label] < threshold
            print(json.dumps(record, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python onnx_predict.py MODEL.onnx IMAGE…")
    main(*sys.argv[1:])
