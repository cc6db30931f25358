"""Answers as a file, in one piece: CSV, JSON lines or Parquet, by its suffix; the columns are `--json`'s."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pbprompt.errors import InputError, install_command
from pbprompt.files import write_bytes

Records = Sequence[Mapping[str, Any]]


def check_answers(path: Path) -> None:
    """Refuse, before anything is predicted, what could not be written."""
    if path.suffix.lower() not in WRITERS:
        raise InputError(f"--out {path}: give a name that ends in {', '.join(WRITERS)}")
    if path.is_dir():
        raise InputError(f"--out {path}: is a folder: give a file")
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(f"--out {path}: Parquet needs pyarrow: {install_command('parquet')}")


def write_answers(path: Path, records: Records) -> None:
    """Write the file, whole."""
    write_bytes(path, WRITERS[path.suffix.lower()](records))


def _csv(records: Records) -> bytes:
    """A cell of several values is JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: _cell(value) for name, value in record.items()})
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else value


def _jsonl(records: Records) -> bytes:
    lines = (json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records)
    return "".join(f"{line}\n" for line in lines).encode()


def _parquet(records: Records) -> bytes:
    """Types are stated: a column that is empty here may not be so in the next file."""
    import pyarrow as pa
    from pyarrow import parquet

    by_class = pa.struct([(name, pa.float64()) for name in records[0]["scores"]])
    kinds = {
        "image": pa.string(),
        "label": pa.string(),
        "labels": pa.list_(pa.string()),
        "scores": by_class,
        "spreads": by_class,
        "unsure": pa.bool_(),
        "prediction_set": pa.list_(pa.string()),
        "unknown": pa.bool_(),
    }
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in records[0]])
    stream = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist([dict(record) for record in records], schema=schema), stream)
    return stream.getvalue()


WRITERS: dict[str, Callable[[Records], bytes]] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
