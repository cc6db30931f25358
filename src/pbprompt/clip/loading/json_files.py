"""The JSON files that travel with weights: their names, and reading one."""

import json
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError
from pbprompt.files import read_text

OPEN_CLIP_CONFIG = "open_clip_config.json"
HF_CONFIG = "config.json"
HF_PREPROCESSOR = "preprocessor_config.json"
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
