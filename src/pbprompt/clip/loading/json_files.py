"""The JSON files that travel with weights: their names, and reading one."""

import json
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError
from pbprompt.files import read_text

OPEN_CLIP_CONFIG = "open_clip_config.json"
HF_CONFIG = "config.json"
HF_PREPROCESSOR = "preprocessor_config.json"
HF_PROCESSOR = "processor_config.json"  # newer: what was there before is its section `image_processor`
HF_TOKENIZER = "tokenizer.json"
HF_TOKENIZER_CONFIG = "tokenizer_config.json"


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: not readable as JSON ({str(error).splitlines()[0]}); fetch it again"
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds no JSON object; fetch it again")
    return content


def read_image_processor(folder: Path) -> tuple[Path, dict[str, Any] | None]:
    """What a Hugging Face folder says of images, and in which file; None where it says nothing."""
    path, newer = folder / HF_PREPROCESSOR, folder / HF_PROCESSOR
    if path.is_file():
        return path, read_json(path)
    told = read_json(newer).get("image_processor") if newer.is_file() else None
    return (newer, told) if isinstance(told, dict) else (path, None)
