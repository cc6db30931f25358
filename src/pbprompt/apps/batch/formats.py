"""Answers as files: CSV, JSON lines or Parquet, by the suffix; the columns are those of `--json`."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pbprompt.config import from_dict
from pbprompt.errors import InputError, first_line, install_command
from pbprompt.files import as_csv, cell_text, read_text
from pbprompt.vision.images.build_dataset import SEPARATOR

Records = Sequence[Mapping[str, Any]]
FEATURES = "features"  # the column of an image's features, where they were asked for


def check_suffix(name: str, suffix: str) -> None:
    """Refuse, before anything is predicted, what could not be written."""
    if suffix not in WRITERS:
        raise InputError(f"{name}: give a name that ends in {', '.join(WRITERS)}")
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(f"{name}: Parquet needs pyarrow: {install_command('parquet')}")


def encode(records: Records, suffix: str) -> bytes:
    """A whole file of them; nothing of none."""
    return WRITERS[suffix](records) if records else b""


def join(parts: Iterable[bytes], suffix: str) -> Iterator[bytes]:
    """The content of one file from those of several, piece by piece."""
    yield from JOINERS[suffix](part for part in parts if part)


def _csv(records: Records) -> bytes:
    """A cell of several values is JSON, but labels stand as `fit` reads them."""
    rows = ([_cell(name, value) for name, value in record.items()] for record in records)
    return as_csv([list(records[0]), *rows]).encode()


def _cell(name: str, value: Any) -> Any:
    if name == "labels":
        return SEPARATOR.join(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else value


def _join_csv(parts: Iterable[bytes]) -> Iterator[bytes]:
    """With the header of the first."""
    for number, part in enumerate(parts):
        yield part if number == 0 else part[part.index(b"\n") + 1 :]


def _jsonl(records: Records) -> bytes:
    lines = (json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records)
    return "".join(f"{line}\n" for line in lines).encode()


def _parquet(records: Records) -> bytes:
    """Types are stated: a column that is empty here may not be so in the next file."""
    import pyarrow as pa
    from pyarrow import parquet

    first = records[0]
    by_class = pa.struct([(name, pa.float64()) for name in first.get("scores", ())])
    kinds = {
        "image": pa.string(),
        "reason": pa.string(),
        "label": pa.string(),
        "labels": pa.list_(pa.string()),
        "scores": by_class,
        "spreads": by_class,
        "unsure": pa.bool_(),
        "prediction_set": pa.list_(pa.string()),
        "unknown": pa.bool_(),
        "nothing": pa.bool_(),
        "approximate": pa.string(),
        FEATURES: pa.list_(pa.float32(), len(first.get(FEATURES, ()))),
    }
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in first])
    stream = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist([dict(record) for record in records], schema=schema), stream)
    return stream.getvalue()


def _join_parquet(parts: Iterable[bytes]) -> Iterator[bytes]:
    """A row group each; the writer itself counts what was taken away already."""
    from pyarrow import parquet

    pieces, writer = io.BytesIO(), None
    for part in parts:
        table = parquet.read_table(io.BytesIO(part))
        writer = writer or parquet.ParquetWriter(pieces, table.schema)
        writer.write_table(table)
        yield pieces.getvalue()
        pieces.seek(0)
        pieces.truncate()
    if writer is not None:
        writer.close()
        yield pieces.getvalue()


WRITERS: dict[str, Callable[[Records], bytes]] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
JOINERS: dict[str, Callable[[Iterable[bytes]], Iterator[bytes]]] = {
    ".csv": _join_csv,
    ".jsonl": iter,
    ".parquet": _join_parquet,
}


@dataclass(frozen=True)
class Written:
    """An answer as it is read back; a multi-label model's has `labels`, perhaps none."""

    image: str
    label: str = ""
    score: float = 0.0
    labels: tuple[str, ...] | None = None
    scores: dict[str, float] = field(default_factory=dict)
    familiarity: float | None = None

    def __post_init__(self) -> None:
        if not (self.label or self.labels is not None):
            raise InputError("there is no label")
        if not all(0 <= share <= 1 for share in (self.score, self.familiarity or 0, *self.scores.values())):
            raise InputError("a probability is not between 0 and 1")
        if not {*(self.labels or ())} <= self.scores.keys():
            raise InputError("a label has no probability")


ALL = tuple(part.name for part in fields(Written))


def read(path: Path, columns: Sequence[str] = ALL) -> Iterator[Written]:
    """The answers in a file or a folder of parts; `columns`: which fields of them."""
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise InputError(
            f"{path}: no answers: give what `pbprompt predict --out` wrote: {', '.join(READERS)}"
        )
    check_suffix(str(path), suffix)
    for part in sorted(path.glob(f"part-*{suffix}")) if path.is_dir() else [path]:
        where = str(part)
        try:
            for number, row in enumerate(READERS[suffix](part, columns), 1):
                where = f"{part} answer {number}"
                yield from_dict(Written, row, "field")
        except OSError as error:
            raise InputError(f"{part}: {first_line(error)}: give a file that can be read") from None
        except (ValueError, csv.Error, RecursionError) as error:
            why = f"{where}: {first_line(error).removeprefix(f'{part}: ')}"
            raise InputError(f"{why}: give what `pbprompt predict --out` wrote, as it was") from None


def _rows_of_csv(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    for row in csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True):
        cells = {name: cell_text(row[name] or "") for name in columns if name in row}
        values: dict[str, Any] = {name: cell for name, cell in cells.items() if cell}
        if "scores" in values:
            values["scores"] = json.loads(values["scores"])
        if "labels" in cells:
            values["labels"] = [one for one in cells["labels"].split(SEPARATOR) if one]
        yield values


def _rows_of_jsonl(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in filter(None, read_text(path).split("\n")):
        if not isinstance(row := json.loads(line), dict):
            raise ValueError("a line is no object")
        yield {name: row[name] for name in columns if name in row}


def _rows_of_parquet(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        there = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(columns=there):
            yield from batch.to_pylist()


READERS = {".csv": _rows_of_csv, ".jsonl": _rows_of_jsonl, ".parquet": _rows_of_parquet}
