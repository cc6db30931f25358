"""Hostile inputs: files of every kind that is read, with bytes changed, cut, doubled and filled with junk.

Each is read in a process of its own kind, with a limit of memory and time; what may come is a value or an
`InputError`.
"""

import io
import json
import random
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import ExifTags, Image
from pyarrow import parquet
from safetensors.torch import save

from pbprompt.apps.audit.corrections import corrected
from pbprompt.apps.classifier.evidence_classifier import EvidenceClassifier
from pbprompt.apps.labelling.next_images import read_table
from pbprompt.errors import InputError
from pbprompt.model.folder import CLASSES_HASH, names_hash, read_info
from pbprompt.research.recipes import load_recipe
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.names import read_classes_file, read_descriptions
from pbprompt.vision.images.series import moment_of
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.images.workers import Workers
from pbprompt.vision.towers.loading.files import read_tensors

MEMORY, SECONDS = 4 * 2**30, 60.0
RECIPE = """title: Own
task: few-shot
backbone: lite
datasets: [sample]
rows:
  - {method: coop, overrides: {epochs: 2}}
"""
CONFIG = {
    "format": "pbprompt-model", "version": 2, "method": "coop", "config": {"epochs": 1},
    "classes": ["a", "b"], "template": "a {}.", "seed": 1, "shots": 2, "data": {}, "metrics": {},
    "backbone": {"name": "lite", "activation": "gelu", "fingerprint": "f"}, "library": "1",
    "files": {"model.safetensors": "0"}, CLASSES_HASH: names_hash(("a", "b")),
}  # fmt: skip


def read(kind: str, path: str) -> None:
    """Read a file as the library would."""
    file = Path(path)
    readers: dict[str, Callable[[], object]] = {
        "image": lambda: (moment_of(file), open_image(file)),
        "table": lambda: open_dataset(file),
        "split": lambda: open_dataset(file),
        "names": lambda: read_classes_file(file),
        "descriptions": lambda: read_descriptions(file),
        "corrections": lambda: corrected(open_dataset(file.parent), file),
        "labels": lambda: read_table(file),
        "recipe": lambda: load_recipe(str(file)),
        "config": lambda: read_info(file.parent),
        "weights": lambda: read_tensors(file),
        "classifier": lambda: EvidenceClassifier.load(file),
        "archive": lambda: [record.read() for record in Stream([file]).records()],
    }
    readers[kind]()


def seeds() -> Iterator[tuple[str, str, bytes]]:
    """(kind, file name, good content)."""
    picture, exif = Image.effect_noise((40, 30), 60), Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2026:01:31 12:59:59"
    for name in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        buffer = io.BytesIO()
        picture.convert("RGB").save(buffer, name, exif=exif)
        yield "image", f"x.{name.lower()}", buffer.getvalue()
    yield "table", "x.csv", b"image,label,split\na/1.png,cat,train\nb/2.png,dog,test\n"
    yield "table", "x.jsonl", b'{"image": "a/1.png", "label": "cat"}\n{"image": "b/2.png", "label": "dog"}\n'
    yield "split", "x.json", json.dumps({"train": [["a/1.png", 0, "cat"], ["b/2.png", 1, "dog"]]}).encode()
    yield "names", "x.txt", b"a: cat\nb: dog\n"
    yield "names", "x.json", b'{"a": "cat", "b": "dog"}'
    yield "descriptions", "y.yaml", b"cat: small, with whiskers\ndog:\n- barks\n- 3 legs\n"
    yield "corrections", "y.csv", b"image,decision,label,was,why\na/1.png,relabel,b,a,\nb/2.png,keep,,,x\n"
    yield "labels", "z.csv", b"image,label,suggested,probability,score\na/1.png,,cat,0.5,0.4\n"
    yield "recipe", "x.yaml", RECIPE.encode()
    yield "config", "config.json", json.dumps(CONFIG).encode()
    with tempfile.TemporaryDirectory() as folder:
        EvidenceClassifier().fit(np.eye(4, 3), [0, 0, 1, 1]).save(Path(folder) / "c.safetensors")
        yield "classifier", "c.safetensors", (Path(folder) / "c.safetensors").read_bytes()
    yield "weights", "x.safetensors", save({"a": torch.ones(3), "b": torch.ones(2, 2)})
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(3)}, buffer)
    yield "weights", "x.pt", buffer.getvalue()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("a.png", "a.cls", f"{'é' * 90}.png"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
    yield "archive", "x.tar", buffer.getvalue()
    buffer = io.BytesIO()
    parquet.write_table(pa.table({"image": [b"a", b"bc"], "label": ["x", "y"]}), buffer)
    yield "archive", "x.parquet", buffer.getvalue()


def mutated(content: bytes, source: random.Random) -> bytes:
    """A few changes at random places."""
    made = bytearray(content)
    for _ in range(source.randint(1, 3)):
        at, size = source.randrange(len(made) + 1), source.choice((1, 1, 1, 2, 4, 16))
        match source.randrange(5):
            case 0:
                made[at : at + size] = source.randbytes(size)
            case 1:
                del made[at : at + size]
            case 2:
                made[at:at] = made[:size] * source.choice((1, 50))
            case 3:
                made[at : at + 4] = source.choice((b"\xff" * 4, b"\0" * 4, b"[[[[", b"{{{{", b"NaN "))
            case _:
                del made[at:]
    return bytes(made)


def attack(count: int, seed: int = 0) -> Iterator[tuple[str, Counter[str]]]:
    """Each kind of input, and how `count` mutations of each of its files fared."""
    workers = Workers(1, memory=MEMORY, seconds=SECONDS, prepare="benchmarks.chaos.inputs")
    results: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for place in ("a/1.png", "b/2.png"):
            (Path(folder) / place).parent.mkdir()
            Image.new("RGB", (4, 4)).save(Path(folder) / place)
        for kind, name, content in seeds():
            source = random.Random(f"{seed}/{name}")
            for _ in range(count):
                (Path(folder) / name).write_bytes(mutated(content, source))
                results.setdefault(kind, Counter())[_outcome(workers, kind, str(Path(folder) / name))] += 1
    workers.close()
    yield from results.items()


def _outcome(workers: Workers, kind: str, path: str) -> str:
    try:
        workers.ask(read, kind, path)
    except InputError:
        return "refused"
    except TimeoutError:
        return "hung"
    except Exception:  # a traceback, or a process that died
        return "lost"
    return "survived"
