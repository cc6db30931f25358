"""The JSON files that travel with weights: their names, the shards they list, how images are prepared."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pbprompt import files
from pbprompt.errors import InputError
from pbprompt.vision.images.crops import Fit, Interpolation
from pbprompt.vision.images.transforms import Triple
from pbprompt.vision.towers.backbone import CLIP_MEAN, CLIP_STD, Images

OPEN_CLIP_CONFIG = "open_clip_config.json"
HF_CONFIG = "config.json"
HF_PREPROCESSOR = "preprocessor_config.json"
HF_PROCESSOR = "processor_config.json"  # newer: what was there before is its section `image_processor`
HF_TOKENIZER = "tokenizer.json"
HF_TOKENIZER_CONFIG = "tokenizer_config.json"
INDEX = ".index.json"
FILE = re.compile(r"[\w-][\w.-]*\.(safetensors|bin)")  # a name and no path

HALF: Triple = (0.5, 0.5, 0.5)
PILLOW: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
RESIZE_MODES: dict[str, Fit] = {"shortest": "crop", "squash": "squash"}  # open_clip's words
IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)


def read_json(path: Path) -> dict[str, Any]:
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds no JSON object; fetch it again")
    return content


def read_image_processor(folder: Path) -> tuple[Path, dict[str, Any] | None]:
    """What a Hugging Face folder says of images, and in which file; None where it says nothing."""
    path, newer = folder / HF_PREPROCESSOR, folder / HF_PROCESSOR
    if path.is_file():
        return path, read_json(path)
    declared = read_json(newer).get("image_processor") if newer.is_file() else None
    return (newer, declared) if isinstance(declared, dict) else (path, None)


def shard_files(index: Path) -> list[str]:
    """The files that an index lists, which lie beside it."""
    where = read_json(index).get("weight_map")
    files = sorted({str(file) for file in where.values()}) if isinstance(where, dict) else []
    if not files or not all(FILE.fullmatch(file) for file in files):
        raise InputError(f"{index}: lists no files of weights beside it; fetch it again")
    return files


def read_preprocessor(folder: Path, side: Any, usual: Images) -> Images:
    """What a Hugging Face folder says, for images of `side` pixels; the rest is as `usual`."""
    path, declared = read_image_processor(folder)
    if declared is None:
        return usual
    interpolation = PILLOW.get(declared["resample"]) if "resample" in declared else usual.interpolation
    if interpolation is None:
        raise InputError(
            f"{path}: resample is {declared['resample']!r}; 2 (bilinear) and 3 (bicubic) are supported"
        )
    fit, resize = _fit(path, declared, side, usual)
    mean, std = (
        triple(path, declared, "image_mean", usual.mean),
        triple(path, declared, "image_std", usual.std),
    )
    return Images(mean, std, fit, interpolation, resize)


def _fit(path: Path, declared: Mapping[str, Any], side: Any, usual: Images) -> tuple[Fit, int | None]:
    """Squashed where both sides are given, cropped where the shorter one is; that one, if it is longer."""
    size = declared.get("size")
    if size is None:
        return usual.fit, usual.resize
    square = {"height": side, "width": side}
    if size == square or (size == side and usual.fit == "squash"):
        return "squash", None
    short = size.get("shortest_edge") if isinstance(size, dict) else size
    crop = declared.get("crop_size", short)
    if type(short) is not int or type(side) is not int or short < side or crop not in (side, square):
        raise InputError(
            f"{path}: size is {size}, but images of {side} pixels are expected (by {HF_CONFIG} or crop_size)"
        )
    if not declared.get("do_center_crop", True):
        raise InputError(f"{path}: size is {size} without a crop; a model of square images is needed")
    return "crop", short if short > side else None


def read_open_clip_images(path: Path, declared: Mapping[str, Any], side: Any) -> Images:
    """The section `preprocess_cfg` of open_clip's config."""
    interpolation, mode = declared.get("interpolation", "bicubic"), declared.get("resize_mode", "shortest")
    if interpolation not in (known := tuple(PILLOW.values())):
        raise InputError(
            f"{path}: preprocess_cfg.interpolation is {interpolation!r}; known are {', '.join(known)}"
        )
    if mode not in (modes := tuple(RESIZE_MODES)):
        raise InputError(f"{path}: preprocess_cfg.resize_mode is {mode!r}; known are {', '.join(modes)}")
    if declared.get("size", side) not in (side, [side, side]):
        raise InputError(f"{path}: preprocess_cfg.size is {declared['size']}, but image_size is {side}")
    mean, std = triple(path, declared, "mean", CLIP_MEAN), triple(path, declared, "std", CLIP_STD)
    return Images(mean, std, RESIZE_MODES[mode], interpolation)


def triple(path: Path, images: Mapping[str, Any], name: str, default: Triple) -> Triple:
    values = images.get(name, default)
    try:
        first, second, third = (float(value) for value in values)
    except (TypeError, ValueError):
        raise InputError(f"{path}: {name} is {values!r}; three numbers are needed") from None
    return first, second, third
