"""Results in a file: one JSON object per machine, to which each part of the benchmark is added by itself."""

import json
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError
from pbprompt.files import read_text, write_text

FORMAT = 1
Results = dict[str, Any]


def read_results(path: Path) -> Results:
    """The file's parts by name."""
    try:
        content = json.loads(read_text(path))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}): remove it and measure again") from None
    if not is_results(content):
        raise InputError(f"{path}: not a file of `benchmarks.speed` (format {FORMAT}): give one it wrote")
    return content


def is_results(content: Any) -> bool:
    return isinstance(content, dict) and content.get("format") == FORMAT and "parts" in content


def add_remark(path: Path, name: str, text: str) -> None:
    """Put a remark beside a part; its figures and where they come from stay as they were written."""
    results = read_results(path)
    if name not in results["parts"]:
        raise InputError(f"{path}: it has no part {name!r}: choose of {', '.join(results['parts'])}")
    results["parts"][name]["remark"] = text
    _write(path, results)


def add_part(path: Path, name: str, part: dict[str, Any]) -> None:
    """Put one part into the file, which keeps its other parts; the file is replaced whole."""
    results: Results = read_results(path) if path.exists() else {"format": FORMAT, "parts": {}}
    for other, there in results["parts"].items():
        if there["machine"] != part["machine"]:
            raise InputError(
                f"{path}: its part {other!r} is of {there['machine']['device']} with "
                f"{there['machine']['threads']} threads, another machine than this: choose another --out"
            )
    results["parts"][name] = part
    _write(path, results)


def _write(path: Path, results: Results) -> None:
    """Whole; of a command's files elsewhere on the machine, which are nobody's business, the names alone."""
    for part in results["parts"].values():
        words = part["command"].split(" ")
        part["command"] = " ".join(Path(word).name if word.startswith("/") else word for word in words)
    write_text(path, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
