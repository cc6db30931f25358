"""Records from before methods had revisions: their code was a hash of the method's file.

Which revision a hash stands for cannot be computed. The code of a method's latest record is taken for
revision 1, the code that revisions were introduced with; records of other hashes stay as they are, unless the
caller vouches for theirs.
"""

import contextlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError
from pbprompt.files import locked, read_records, write_bytes
from pbprompt.runs.protocol import run_id
from pbprompt.runs.record import Record
from pbprompt.runs.store import RunStore


@dataclass(frozen=True)
class Migration:
    """How many records take a revision in place of which hash, and how many stay, by method and hash."""

    renamed: Mapping[tuple[str, str], int]
    left: Mapping[tuple[str, str], int]


def migrate(store: RunStore, accept: Sequence[str] = (), *, write: bool = True) -> Migration:
    """Name records of a hash by revision 1 and their runs anew, so that a sweep finds them done.

    `accept`: further hashes whose results are those of revision 1. The former lines stay in `*.bak`; the
    arrays are named anew with their runs. Without `write`, only say what would change.
    """
    with locked(store.folder):
        lines = list(read_records(store.lines))
        old = [
            record for record in (Record.from_dict(line, str(store.lines)) for line in lines) if _hash(record)
        ]
        if unknown := set(accept) - {record.code for record in old}:
            raise InputError(
                f"{store.lines}: no record has the code {min(unknown)!r}: give a hash that is there"
            )
        latest = {record.config.method: record.code for record in old}
        chosen = [r for r in old if r.code in accept or latest[r.config.method] == r.code]
        taken = {line["id"] for line in lines}
        named = {_renamed(record): record for record in chosen}  # of equal runs the last
        new = {identity: record for identity, record in named.items() if identity not in taken}
        former = {record.id: identity for identity, record in new.items()}
        if write and former:
            for before, after in former.items():
                _link(store.arrays_file(before), store.arrays_file(after))
            _rewrite(store.lines, [_line(line, former) for line in lines])
            failures = list(read_records(store.failed_lines))
            if failures:
                _rewrite(store.failed_lines, [{**f, "id": former.get(f["id"], f["id"])} for f in failures])
            for before in former:
                store.arrays_file(before).unlink(missing_ok=True)
    counted = Counter((record.config.method, record.code) for record in old)
    renamed = Counter((record.config.method, record.code) for record in new.values())
    return Migration(renamed, counted - renamed)


def _hash(record: Record) -> bool:
    return re.fullmatch("[0-9a-f]{12}", record.code) is not None


def _code(method: str) -> str:
    return f"{method} 1, loop 1"


def _renamed(record: Record) -> str:
    code, config = _code(record.config.method), record.config
    return run_id(config, record.settings, record.data.draw, record.backbone.fingerprint, code)


def _line(line: dict[str, Any], former: Mapping[str, str]) -> dict[str, Any]:
    if line["id"] not in former:
        return line
    code = {"code": _code(line["config"]["method"]), "code_hash": line["code"]}
    return {**line, "id": former[line["id"]], **code}


def _link(before: Path, after: Path) -> None:
    """Both names hold the arrays until the lines are rewritten: a kill in between loses nothing."""
    if before.exists() and not after.exists():
        try:
            os.link(before, after)
        except OSError:  # a file system without hard links
            shutil.copyfile(before, after)


def _rewrite(path: Path, lines: Sequence[Any]) -> None:
    """The lines anew, with the former file beside it."""
    backup = path.with_name(path.name + ".bak")
    with contextlib.suppress(FileNotFoundError):
        write_bytes(backup, path.read_bytes())
    content = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    write_bytes(path, content.encode())
