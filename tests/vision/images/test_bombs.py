"""Small files that stand for gigabytes, and sources without an end: one sentence, in little memory."""

import gzip
import io
import tarfile
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pbprompt.errors import InputError
from pbprompt.vision.images import parquet, tables, tars
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.images.workers import Workers

MIB = 1 << 20


@contextmanager
def in_memory(most: int) -> Iterator[None]:
    """What Python allocates meanwhile stays below so many bytes at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def block(name: str, kind: bytes, content: bytes, **facts: int) -> bytes:
    """A member of a tar, its header and its content."""
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, len(content)
    head = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    if facts.get("extended"):  # a sparse map that goes on in the next block
        head[482] = 1
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + content + bytes(-len(content) % 512)


IMAGE = block("a.png", tarfile.REGTYPE, b"x")


def pax(key: bytes, value: bytes) -> bytes:
    size = len(key) + len(value) + 3
    while len(str(size)) + len(key) + len(value) + 3 != size:
        size = len(str(size)) + len(key) + len(value) + 3
    return b"%d %s=%s\n" % (size, key, value)


TARS = {
    "pax": (block("p", tarfile.XHDTYPE, pax(b"comment", b"x" * 32 * MIB)) + IMAGE, "a header of over 1 MiB"),
    "global": (
        b"".join(
            block("g", tarfile.XGLTYPE, pax(b"k%d" % n, b"x" * (MIB // 2)))
            + block(f"{n}.png", tarfile.REGTYPE, b"x")
            for n in range(60)
        ),
        "a header of over 1 MiB",
    ),
    "long name": (
        block("././@LongLink", tarfile.GNUTYPE_LONGNAME, b"x" * 32 * MIB) + IMAGE,
        "a header of over 1 MiB",
    ),
    "chain": (block("p", tarfile.XHDTYPE, pax(b"a", b"b")) * 2000 + IMAGE, "damaged|header of over"),
    "sparse": (
        block("s.png", tarfile.GNUTYPE_SPARSE, b"", extended=1) + (bytes(504) + b"\1" + bytes(7)) * 40_000,
        "sparse",
    ),
    "sparse, pax": (
        block("p", tarfile.XHDTYPE, pax(b"GNU.sparse.major", b"1") + pax(b"GNU.sparse.minor", b"0"))
        + block("s.png", tarfile.REGTYPE, b"9999999\n" + b"1\n" * 16 * MIB),
        "sparse",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TARS)
def test_a_tar_that_unpacks_to_much_is_refused_in_little_memory(tmp_path, kind):
    content, says = TARS[kind]
    (tmp_path / "t.tar.gz").write_bytes(gzip.compress(content, 1))
    with in_memory(8 * MIB):
        *_, last = Stream([tmp_path / "t.tar.gz"]).records()
        with pytest.raises(InputError, match=says):
            last.read()


def test_files_of_one_name_are_held_together_only_so_far(tmp_path, monkeypatch):
    monkeypatch.setattr(tars, "MOST_BYTES", MIB)
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        for n in range(6):
            member = tarfile.TarInfo(f"same.{n}.png")
            member.size = MIB // 4
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    (last,) = Stream([tmp_path / "t.tar"]).records()
    with pytest.raises(InputError, match="files called 'same'"):
        last.read()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("line.csv", b"image\n" + b"x" * 8 * MIB),
        ("line.jsonl", b'{"image": "' + b"x" * 8 * MIB),
        ("row.csv", b"image,label\n" + b'"a\n"' + b',"a\n"' * MIB),
    ],
)
def test_a_row_without_end_is_refused_in_little_memory(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with in_memory(40 * MIB), pytest.raises(InputError, match="a row of over 1,048,576 characters"):
        list(Stream([tmp_path / name]).records())


class Endless(BaseHTTPRequestHandler):
    """A table of one row again and again, or of one line, to whoever goes on reading."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        with suppress(OSError):
            self.wfile.write(b"image\n")
            while True:
                self.wfile.write((b"a" * 200 + (b"\n" if "rows" in self.path else b",")) * 100)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("path", "says"), [("rows.csv", "over 2 MiB: fetch it"), ("line.csv", "a row of over")]
)
def test_a_table_without_end_comes_to_one(monkeypatch, path, says):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(tables, "MOST_WEB", 2 * MIB)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        rows = Stream([f"http://127.0.0.1:{server.server_port}/{path}"], allow_urls=True).records()
        with pytest.raises(InputError, match=says):
            for _ in rows:
                pass
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_parquet_file_that_unpacks_to_much_is_refused_in_little_memory(tmp_path, monkeypatch):
    """One value that many rows share, in a page that packs to nothing."""
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    rows, file = pa.array([bytes(40 * MIB)] * 4, pa.binary()), tmp_path / "t.parquet"
    pq.write_table(
        pa.table({"image": rows}),
        file,
        compression="zstd",
        dictionary_pagesize_limit=1 << 30,
    )
    assert file.stat().st_size < 20_000
    workers = Workers(1, memory=128 * MIB, prepare=parquet.__name__)
    monkeypatch.setattr(parquet, "_reader", lambda: workers)
    try:
        with in_memory(8 * MIB), pytest.raises(InputError, match=r"t\.parquet: cannot be read: "):
            list(Stream([file]).records())
    finally:
        workers.close()


def test_a_parquet_file_with_fewer_rows_than_it_says_is_told(tmp_path, monkeypatch):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    pq.write_table(pa.table({"image": [b"1", b"2"]}), tmp_path / "t.parquet")
    (unit,) = Stream([tmp_path / "t.parquet"]).units()
    object.__setattr__(unit, "rows", 3)
    with pytest.raises(InputError, match="ends before the rows that it says it has"):
        list(unit.records())


def test_an_image_struct_without_a_path_may_be_null(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    kind = pa.struct([("bytes", pa.binary())])
    pq.write_table(
        pa.table({"image": pa.array([{"bytes": b"1"}, None, {"bytes": None}], kind)}), tmp_path / "t.parquet"
    )
    good, *bad = Stream([tmp_path / "t.parquet"]).records()
    assert good.read() == b"1"
    for record in bad:
        with pytest.raises(InputError, match="names no image"):
            record.read()
