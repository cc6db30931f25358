"""Weights in several files: an index beside them says in which file each tensor is."""

import re
from pathlib import Path

from pbprompt.clip.loading.json_files import read_json
from pbprompt.errors import InputError

INDEX = ".index.json"
FILE = re.compile(r"[\w-][\w.-]*\.(safetensors|bin)")  # a name and no path


def shard_files(index: Path) -> list[str]:
    """The files that an index lists, which lie beside it."""
    where = read_json(index).get("weight_map")
    files = sorted({str(file) for file in where.values()}) if isinstance(where, dict) else []
    if not files or not all(FILE.fullmatch(file) for file in files):
        raise InputError(f"{index}: lists no files of weights beside it; fetch it again")
    return files
