"""What nobody kills and is still wrong: odd names, files damaged after they were written, inputs that change
between two runs, files without permission, archives that unpack to gigabytes, very many classes and rows.

Each case is a `pbprompt` of its own, in a process of bounded memory, as a user runs it: exit code 0 or 1 with
the answers of the images that are there now, or one sentence and exit code 2.
"""

import csv
import ctypes
import gzip
import io
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet

from benchmarks.chaos.disk import Outcome
from benchmarks.chaos.kills import draw_photos
from benchmarks.serve_load import many_scans, png_bomb
from pbprompt.apps.cli import main
from pbprompt.files import as_text
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.loading.load import load_backbone

SECONDS = 300.0  # after which a command counts as hung
MOST_AT_ONCE = 3 << 30  # bytes: a program, and the 2 GiB in which all its threads decode
MEMORY = 6 << 30  # that a command and each of its processes may take
PR_CAPBSET_DROP, CAPABILITIES = 24, 0x20080522
DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2  # by which root opens what its mode forbids
CLASSES, ROWS = 10_000, 1_000_000
NAMES = (
    b"plain", b"\xff\xfe", b"caf\xe9", b"two words", b"tab\there", b"line\nbreak", b'quo"te', b"com,ma",
    b"=1+1", b"-rf", b"%d%s", b"#1", b"a:b", b"back\\slash", "日本".encode(), "\u202ertl".encode(),
    b"x" * 240, b"\x01\x7f",
)  # fmt: skip


class Ended(NamedTuple):
    """How a command ended; None: it hung."""

    code: int | None
    said: str
    most: int = 0  # bytes in memory at once

    @property
    def outcome(self) -> Outcome:
        """Without a look at what it made."""
        if self.code is None:
            return "hung"
        if self.code not in (0, 1, 2) or "Traceback" in self.said or (self.code == 2 and not self.said):
            return "lost"
        return "refused" if self.code == 2 else "survived"


def command(folder: Path, *arguments: object, as_other: bool = False) -> Ended:
    """`pbprompt` with these arguments, in a process of its own."""
    return ended(*begun(folder, *arguments, as_other=as_other))


def begun(
    folder: Path, *arguments: object, as_other: bool = False, name: str = "", memory: int = MEMORY
) -> tuple[int, Path]:
    """The process, and what it writes to."""
    log = folder / f".said{name}"
    child = os.fork()
    if not child:
        try:
            os.setsid()
            with log.open("wb") as said:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
            os.environ["PBPROMPT_CACHE"] = str(folder / ".cache")
            os.chdir(folder)
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
            if as_other:
                _give_up_rights()
            torch.set_num_threads(1)  # renews torch's pool, which threads of a forked child would race for
            sys.argv = ["pbprompt", *map(str, arguments)]
            main()
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(int(end.code or 0))
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(99)
    return child, log


def ended(child: int, log: Path) -> Ended:
    """Wait for it, so long."""
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            said = log.read_text(errors="replace")
            return Ended(os.waitstatus_to_exitcode(status), said, 1024 * used.ru_maxrss)
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Ended(None, "")


def _give_up_rights() -> None:
    """Become one to whom files can be forbidden: root without its rights over files, or whoever we are."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for right in (DAC_OVERRIDE, DAC_READ_SEARCH):
            libc.prctl(PR_CAPBSET_DROP, right, 0, 0, 0)
        head, rights = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
        if libc.capget(head, rights):
            raise OSError(ctypes.get_errno(), "capget")
        for place in range(3):  # effective, permitted, inheritable
            rights[place] &= ~(1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH)
        if libc.capset(head, rights):
            raise OSError(ctypes.get_errno(), "capset")


def attack(count: int, seed: int = 0, rare: bool = False) -> Iterator[tuple[str, Counter[Outcome]]]:
    """Each kind, `count` times; with `rare`, those that take long too, once."""
    torch.set_num_threads(1)  # a forked child has none of the others
    source = random.Random(f"{seed}/commands")
    with tempfile.TemporaryDirectory() as place:
        shared = Path(place)
        shared.chmod(0o755)
        draw_photos(shared / "photos")
        _save_model(shared / "model")
        for case, times in CASES:
            counts: Counter[Outcome] = Counter()
            for _ in range(round(count * times) or rare):
                with tempfile.TemporaryDirectory() as folder:
                    outcome, what = case(Path(folder), shared, source)
                counts[outcome] += 1
                if outcome not in ("survived", "refused"):
                    print(f"chaos: {case.__name__}: {outcome}: {what[-600:]}", file=sys.stderr)
            if counts:
                yield case.__name__.strip("_").replace("_", " "), counts


def _save_model(folder: Path) -> None:
    kind = find_method("coop")
    method = build_method(kind, make_config(kind), load_backbone("lite"), seed=1)
    method.prepare(("cat", "dog"), "a photo of a {}.")
    TunedModel(method, describe_model(method)).save(folder)


def _predict(
    folder: Path, shared: Path, *images: object, out: str = "a.csv", as_other: bool = False
) -> Ended:
    return command(folder, "predict", *images, "--model", shared / "model", "--out", out, as_other=as_other)


def _answers(out: Path) -> list[tuple[str, ...]]:
    """All rows but for the header, of a file or a folder of parts."""
    csv.field_size_limit(1 << 26)  # of ten thousand classes
    files = sorted(out.glob("part-*")) if out.is_dir() else [out]
    return [tuple(row) for file in files for row in list(csv.reader(file.open(newline="")))[1:]]


def _odd_names(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """Each image is answered once, under a name of its own."""
    images = folder / "images"
    images.mkdir()
    picture = next((shared / "photos").rglob("*.png")).read_bytes()
    for name in source.sample(NAMES, 6):
        (Path(os.fsdecode(os.fsencode(images) + b"/" + name + b".png"))).write_bytes(picture)
    names = {as_text(str(path)) for path in images.iterdir()}
    ended = _predict(folder, shared, images)
    if ended.outcome != "survived":
        return "lost" if ended.outcome == "refused" else ended.outcome, ended.said
    told = [row[0] for row in _answers(folder / "a.csv")]
    return ("survived" if sorted(told) == sorted(names) else "lost"), f"{sorted(told)} for {sorted(names)}"


def _damage_after_write(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """Of a folder of parts, one is changed, cut, removed or doubled; the same command makes it whole, or
    refuses it."""
    images = folder / "images"
    shutil.copytree(shared / "photos", images)
    ended = _predict(folder, shared, images, out="a.csv/")
    wanted = _answers(folder / "a.csv")
    victim = source.choice(sorted(path for path in (folder / "a.csv").iterdir() if path.is_file()))
    content = victim.read_bytes()
    at = source.randrange(len(content)) if content else 0
    how = source.randrange(4)
    if how == 0:
        victim.unlink()
    else:
        changes = (content[:at], content + content[at:], content[:at] + b"\x07" + content[at + 1 :])
        victim.write_bytes(changes[how - 1])
    ended = _predict(folder, shared, images, out="a.csv/")
    if ended.outcome != "survived":
        return ended.outcome, ended.said
    same = sorted(_answers(folder / "a.csv")) == sorted(wanted)
    return ("survived" if same else "stale"), f"{victim.name} {how}: {ended.said}"


def _changed_inputs(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """After a finished job, an image is added, changed or removed: no answers of before are told for new."""
    images, out = folder / "images", source.choice(("a.csv", "a.csv/"))
    shutil.copytree(shared / "photos", images)
    _predict(folder, shared, images, out=out)
    before = _answers(folder / "a.csv")
    first, second = source.sample(sorted(images.rglob("*.png")), 2)
    match source.randrange(3):
        case 0:
            shutil.copy(first, first.with_name("new.png"))
        case 1:
            shutil.copy(second, first)
        case _:
            first.unlink()
    ended = _predict(folder, shared, images, out=out)
    if ended.outcome != "survived":
        return ended.outcome, ended.said
    names = {as_text(str(path)) for path in images.rglob("*.png")}
    now = _answers(folder / "a.csv")
    fresh = {row[0] for row in now} == names and now != before
    return ("survived" if fresh else "stale"), ended.said


def _swapped_picture(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """After a finished job, two pictures of one size change places, and keep the times of the files."""
    images = folder / "images"
    shutil.copytree(shared / "photos", images)
    first, *_, second = sorted(images.rglob("*.png"))
    contents = [file.read_bytes() for file in (first, second)]
    longest = max(map(len, contents))
    for file, content in zip((first, second), contents, strict=True):
        file.write_bytes(content.ljust(longest, b"\0"))
    _predict(folder, shared, images, out="a.csv/")
    before, times = _answers(folder / "a.csv"), [file.stat().st_mtime_ns for file in (first, second)]
    if source.random() < 0.5:
        first.rename(folder / "x")
        second.rename(first)
        (folder / "x").rename(second)
    else:
        first.write_bytes(contents[1].ljust(longest, b"\0"))
        second.write_bytes(contents[0].ljust(longest, b"\0"))
    for file, when in zip((first, second), times, strict=True):
        os.utime(file, ns=(when, when))
    ended = _predict(folder, shared, images, out="a.csv/")
    if ended.outcome != "survived":
        return ended.outcome, ended.said
    return ("survived" if _answers(folder / "a.csv") != before else "stale"), ended.said


def _copies_of_a_bad_image(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """Copies of a file that is no image, or of half of one, are not images to label next."""
    images = folder / "images"
    shutil.copytree(shared / "photos", images)
    good = sorted(images.rglob("*.png"))
    half = good[0].read_bytes()[: source.randrange(60)]
    for number in range(source.randrange(2, 20)):
        (images / f"bad{number}.png").write_bytes(half)
    ended = command(folder, "next", images, "--model", shared / "model", "-n", len(good) + 1)
    return ("lost" if ended.code == 0 else ended.outcome), ended.said


def _foreign_model(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """A model whose config names files to write, and allows what nobody allowed, is fitted again."""
    shutil.copytree(shared / "model", folder / "model")
    victim = folder / "mine"
    victim.write_text("mine")
    config = json.loads((folder / "model" / "config.json").read_text())
    photos = str(shared / "photos")
    options = {
        "data": photos,
        "unlabelled": [photos + "/cat"],
        "pseudo_labels": str(victim),
        "allow_urls": True,
    }
    config["data"]["options"] = {**options, "out": str(folder / "other")}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    ended = command(folder, "model", "refit", folder / "model", *source.choice(([], ["--yes"])))
    whole = victim.read_text() == "mine" and not (folder / "other").exists()
    return (ended.outcome if whole else "lost"), ended.said


def _no_permission(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """Another user's image, folder or output: a sentence, or the other images answered."""
    images, where = folder / "images", folder / "out"
    shutil.copytree(shared / "photos", images)
    where.mkdir()
    folder.chmod(0o777)
    where.chmod(0o777)
    closed = source.choice((images / "cat" / "0.png", images / "cat", where, images))
    closed.chmod(0)
    ended = _predict(folder, shared, images, out="out/a.csv", as_other=True)
    closed.chmod(0o755)
    if ended.outcome != "survived":
        return ended.outcome, ended.said
    told = ended.code == 1 and (where / "a.failed.csv").exists()
    return ("survived" if told else "lost"), f"{closed}: {ended.said}"


def _archive_bomb(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """A few kilobytes that stand for gigabytes or hours."""
    name, content = source.choice(BOMBS)()
    (folder / name).write_bytes(content)
    ended = _predict(folder, shared, folder / name)
    outcome = "refused" if ended.code == 1 and ended.outcome == "survived" else ended.outcome
    return ("lost" if ended.code == 0 else outcome), f"{name}: {ended.said}"


@cache
def _tar_bomb() -> tuple[str, bytes]:
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.XHDTYPE, 1 << 28
    buffer = io.BytesIO()
    with gzip.open(buffer, "wb", 1) as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        for _ in range(1 << 4):
            file.write(bytes(1 << 24))
    return "bomb.tar.gz", buffer.getvalue()


@cache
def _parquet_bomb() -> tuple[str, bytes]:
    buffer = io.BytesIO()
    table = pa.table({"image": pa.array([bytes(120 << 20)] * 9, pa.large_binary())})
    parquet.write_table(table, buffer, compression="zstd", dictionary_pagesize_limit=1 << 30)
    return "bomb.parquet", buffer.getvalue()


@cache
def _jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32)).save(buffer, "JPEG")
    return buffer.getvalue()


def _png_of_profiles() -> bytes:
    """Each of a thousand bytes, and a megabyte once it is unpacked."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    data, profile = buffer.getvalue(), chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1 << 20)))
    return data[:33] + profile * 20_000 + data[33:]


BOMBS: tuple[Callable[[], tuple[str, bytes]], ...] = (
    _tar_bomb,
    _parquet_bomb,
    lambda: ("bomb.csv", b"image\n" + b"x" * (64 << 20)),
    lambda: ("bomb.jpg", many_scans(60_000)),
    lambda: ("bomb.png", png_bomb(40_000, 40_000, whole=False)),
    lambda: ("filled-before.jpg", _jpeg()[:2] + b"\xff" * 60_000_000 + _jpeg()[2:]),
    lambda: ("filled-behind.jpg", _jpeg()[:-2] + b"\xff" * 60_000_000 + _jpeg()[-2:]),
    lambda: ("tables.jpg", _jpeg()[:2] + (b"\xff\xdb\xfd\xea" + bytes(65_000)) * 900 + _jpeg()[2:]),
    lambda: ("profiles.png", _png_of_profiles()),
)


def _files_that_unpack(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """Weights of few numbers that are shown as gigabytes, and YAML that is that once it is written out."""
    if source.random() < 0.5:
        torch.save({"visual.proj": torch.zeros(1).expand(50_000, 50_000)}, folder / "few.pt")
        options: tuple[object, ...] = ("--backbone", folder / "few.pt", "--activation", "gelu")
    else:
        levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 10)}]" for n in range(10)]
        (folder / "few.yaml").write_text("\n".join(levels))
        options = ("--descriptions", folder / "few.yaml")
    ended = command(folder, "fit", shared / "photos", "--out", folder / "new", *options)
    return ("lost" if ended.code == 0 else ended.outcome), f"{options}: {ended.said}"


def _two_that_change_a_model(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """Both classes are there, or what was refused is not."""
    shutil.copytree(shared / "model", folder / "model")
    names = ("red panda", "zebra")
    both = [begun(folder, "model", "add", folder / "model", "--name", name, name=name) for name in names]
    found = [ended(*one) for one in both]
    there = json.loads((folder / "model" / "config.json").read_text())["classes"]
    right = all((name in there) == (one.code == 0) for name, one in zip(names, found, strict=True))
    worst = next((one.outcome for one in found if one.outcome != "survived"), "survived")
    return (worst if right else "lost"), " / ".join(one.said for one in found)


def _two_that_label(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """While `next` chooses, a person fills in its table: what was filled in is there afterwards."""
    table = folder / "next.csv"
    ask = ("next", shared / "photos", "--model", shared / "model", "--out", table)
    first = command(folder, *ask, "-n", 3)
    if first.outcome != "survived":
        return "lost", first.said
    again = begun(folder, *ask, "-n", 3)
    time.sleep(source.random() * 3)
    rows = list(csv.reader(table.open(newline="")))
    rows[1][1] = "cat"
    with (folder / "edited").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (folder / "edited").replace(table)
    second = ended(*again)
    kept = {row[0]: row[1] for row in csv.reader(table.open(newline=""))}
    return (second.outcome if kept.get(rows[1][0]) == "cat" else "lost"), second.said


def _memory_of_all_threads(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """Progressive JPEGs of 2 MB whose pixels and coefficients take 1.6 GiB each, one at a time."""
    (folder / "images").mkdir()
    for colour in ("red", "blue"):
        file = folder / "images" / f"{colour}.jpg"
        Image.new("RGB", (13_000, 13_000), colour).save(file, progressive=True, subsampling=0)
    ask = ("next", folder / "images", "--model", shared / "model", "-n", 1)
    pages = int(
        Path("/proc/self/statm").read_text().split()[1]
    )  # what this program holds counts in its child
    found = ended(*begun(folder, *ask, memory=2 * MEMORY))
    most = found.most - pages * resource.getpagesize()
    return (found.outcome if most < MOST_AT_ONCE else "lost"), f"{most:,} bytes: {found.said}"


def _many_classes(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """Ten thousand names; each image is answered."""
    (folder / "names.txt").write_text("\n".join(f"thing {n}" for n in range(CLASSES)))
    ended = command(
        folder, "predict", shared / "photos", "--classes-file", folder / "names.txt", "--out", "a.csv"
    )
    whole = ended.outcome == "survived" and len(_answers(folder / "a.csv")) == 12
    return ("survived" if whole else "lost"), ended.said


def _many_rows(folder: Path, shared: Path, source: random.Random) -> tuple[Outcome, str]:
    """A million rows of a Parquet file, gone on with from a row in their midst; each comes once."""
    names, file = [f"{n}.png" for n in range(ROWS)], folder / "rows.parquet"
    parquet.write_table(pa.table({"image": names}), file, row_group_size=50_000)
    at, seen = source.randrange(ROWS), 0
    for unit in Stream([file]).units():
        skip = max(0, min(unit.count() or 0, at - seen))
        seen += skip
        for record in unit.records(skip):
            if record.name != names[seen]:
                return "lost", f"{record.name} is no. {seen}"
            seen += 1
    return ("survived" if seen == ROWS else "lost"), f"{seen} rows from {at} on"


Case = Callable[[Path, Path, random.Random], tuple[Outcome, str]]
# With how often each is tried, by the count; the last ones take long.
CASES: Sequence[tuple[Case, float]] = (
    (_odd_names, 1),
    (_damage_after_write, 2),
    (_changed_inputs, 2),
    (_swapped_picture, 1),
    (_copies_of_a_bad_image, 1),
    (_foreign_model, 0.5),
    (_no_permission, 1),
    (_archive_bomb, 1),
    (_files_that_unpack, 1),
    (_two_that_change_a_model, 0.5),
    (_two_that_label, 0.5),
    (_memory_of_all_threads, 0),
    (_many_classes, 0),
    (_many_rows, 0),
)
