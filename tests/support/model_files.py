"""Files of a saved model that are changed behind its back, with hashes that agree."""

import hashlib
import json
from pathlib import Path


def put(folder: Path, name: str, content: bytes | str) -> None:
    """Write one of the files that the config names, and its hash into the config."""
    content = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(content)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"files": {}}
    config["files"][name] = hashlib.sha256(content).hexdigest()
    path.write_text(json.dumps(config), encoding="utf-8")
