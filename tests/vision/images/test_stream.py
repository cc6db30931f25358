"""Images one after another, whatever they lie in."""

import io
import json
import pickle
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images import locations as places
from pbprompt.vision.images import records
from pbprompt.vision.images import stream as stream_package
from pbprompt.vision.images.stream import Files, Record, Stream

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
fsspec = pytest.importorskip("fsspec")


def png(value: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (2, 2), value % 256).save(stream, "PNG")
    return stream.getvalue()


def write_tar(path: Path, members: list[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return path


def shown(stream: Stream) -> list[tuple[str, str, bytes]]:
    return [(record.name, record.label, record.read()) for record in stream.records()]


@pytest.fixture
def photos(tmp_path) -> Path:
    for name, value in (("train/cat/1.png", 1), ("train/dog/2.png", 2), ("val/cat/3.png", 3)):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(png(value))
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


def test_few_units_are_listed_once_and_many_are_not_held(photos, monkeypatch):
    monkeypatch.setattr(records, "FILES_AT_ONCE", 2)
    listed = []
    found = stream_package.files_in
    monkeypatch.setattr(stream_package, "files_in", lambda root: listed.append(root) or found(root))
    stream = Stream([photos])
    wanted = [record.name for record in stream.records()]
    assert len(stream.few(2)) == 2 and len(listed) == 2
    assert [record.name for record in stream.records()] == wanted and stream.few(2) and len(listed) == 2
    many = Stream([photos])
    assert many.few(1) == () and [record.name for record in many.records()] == wanted
    with pytest.raises(InputError, match="does not exist"):
        Stream([photos / "none"]).few(2)


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def test_a_folder_with_its_labels_and_splits(photos):
    found = list(Stream([photos]).records())
    assert [record.name for record in found] == [
        str(photos / f"{name}.png") for name in ("train/cat/1", "train/dog/2", "val/cat/3")
    ]
    assert [(record.label, record.split) for record in found] == [
        ("cat", "train"),
        ("dog", "train"),
        ("cat", "val"),
    ]
    assert [record.label for record in Stream([str(photos / "train")]).records()] == ["cat", "dog"]
    assert [record.read() for record in found] == [png(1), png(2), png(3)]


def test_a_table_names_files_beside_it(photos):
    for name, text in (
        ("t.csv", 'Path;class\ntrain/cat/1.png;cat\n\n"val/cat/3.png";x\n'),
        (
            "t.jsonl",
            '{"image": "train/cat/1.png", "label": "cat"}\n{"image": "val/cat/3.png", "label": "x"}\n',
        ),
    ):
        (photos / name).write_text(text)
        assert shown(Stream([photos / name])) == [
            ("train/cat/1.png", "cat", png(1)),
            ("val/cat/3.png", "x", png(3)),
        ]
    (photos / "t.csv").write_text("image,label\n../secret.png,a\nhttps://x/y.png,b\na,b,c\n,d\ngone.png,e\n")
    reasons = []
    for record in Stream([photos / "t.csv"]).records():
        with pytest.raises(InputError) as error:
            record.read()
        reasons.append(str(error.value))
    for reason, says in zip(
        reasons,
        ("outside", "not allowed", "line 4: the row names no image", "line 5: the row names", "no such file"),
        strict=True,
    ):
        assert says in reason
    addresses = Stream([photos / "t.csv"], allow_urls=True).records()
    assert list(islice(addresses, 2))[1].content == "https://x/y.png"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.csv", b"name,label\na,b\n", "line 1: no image column in 'name,label"),
        ("t.csv", b'image\n"a', "correct the quotes"),
        ("t.csv", b"image\n\xff\n", "not UTF-8"),
        ("t.jsonl", b"{\n", "line 1: not JSON"),
        ("t.jsonl", b"[]\n", "not an object"),
        ("t.jsonl", b'{"x": 1}\n', "no image field"),
        ("t.parquet", b"PAR1 and no more", "not a whole Parquet file"),
        ("t.csv", b"image\n", "holds no images"),
        ("t.csv", b"image," + b"x" * 131_073, "line 1: a header of 131,079 characters"),
    ],
)
def test_what_is_wrong_with_a_table_is_one_sentence(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says):
        list(Stream([tmp_path / name]).records())


def test_parquet_bytes_paths_and_hugging_face_images(photos):
    names = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    images = [{"bytes": png(7), "path": "7.png"}, {"bytes": None, "path": "val/cat/3.png"}, None]
    table = pa.table({"other": ["a"] * 3, "image": images, "label": [1, 0, None]})
    table = table.replace_schema_metadata({"huggingface": json.dumps(names)})
    file = photos / "hf.parquet"
    parquet.write_table(table, file)
    first, second, third = Stream([file]).records()
    assert (first.name, first.label, first.read()) == (f"{file}#0", "dog", png(7))
    assert (second.name, second.label, second.read()) == ("val/cat/3.png", "cat", png(3))
    with pytest.raises(InputError, match="row 2: the row names no image"):
        third.read()
    parquet.write_table(pa.table({"jpg": [png(1)], "text": ["x"]}), file)
    assert shown(Stream([file])) == [(f"{file}#0", "", png(1))]
    paths = pa.array(["val/cat/3.png"]).dictionary_encode()
    parquet.write_table(pa.table({"file_name": paths, "class": ["x"]}), file)
    assert shown(Stream([file])) == [("val/cat/3.png", "x", png(3))]
    parquet.write_table(pa.table({"text": ["x"]}), file)
    with pytest.raises(InputError, match="no image column among text"):
        list(Stream([file]).units())


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 40), group=st.integers(1, 9), joined=st.integers(1, 20), skip=st.integers(0, 41))
def test_units_of_parquet_hold_every_row_once_from_wherever_one_goes_on(
    tmp_path_factory, rows, group, joined, skip
):
    file = tmp_path_factory.mktemp("rows") / "t.parquet"
    parquet.write_table(pa.table({"image": [b"%d" % row for row in range(rows)]}), file, row_group_size=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pbprompt.vision.images.parquet.FILES_AT_ONCE", joined)
        units = list(Stream([file]).units())
    assert sum(unit.count() for unit in units) == rows and len({unit.identity for unit in units}) == len(
        units
    )
    found = [record for unit in units for record in unit.records()]
    assert [(one.name, one.read()) for one in found] == [(f"{file}#{n}", b"%d" % n) for n in range(rows)]
    assert list(units[0].records(skip)) == found[: units[0].count()][skip:]


MEMBERS = [
    ("a/1.png", png(1)), ("a/1.cls", b"0\n"), ("a/2.json", b'{"label": "dog"}'), ("a/2.jpg", b"jpg"),
    ("b/x.y.png", png(3)), ("b/.hidden.png", b""), ("b/readme.md", b"text"), ("b/1.png", png(4)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mode"), [("s.tar", "w"), ("s.tar.gz", "w:gz")])
def test_tars_group_by_key_and_go_on_from_anywhere(tmp_path, name, mode):
    file = write_tar(tmp_path / name, MEMBERS, mode)
    (unit,) = Stream([file]).units()
    whole = list(unit.records())
    assert [(one.name.removeprefix(f"{file}/"), one.label, one.read()) for one in whole] == [
        ("a/1.png", "0", png(1)),
        ("a/2.jpg", "dog", b"jpg"),
        ("b/x.y.png", "", png(3)),
        ("b/1.png", "", png(4)),
    ]
    assert unit.count() == (4 if mode == "w" else None)
    for skip in range(6):
        assert list(pickle.loads(pickle.dumps(unit)).records(skip)) == whole[skip:]


@pytest.mark.parametrize(("name", "mode"), [("s.tar", "w"), ("s.tar.gz", "w:gz")])
def test_a_tar_that_is_cut_off_says_so_last(tmp_path, name, mode):
    contents = [Random(n).randbytes(700) for n in range(9)]
    file = write_tar(tmp_path / name, [(f"{n}.png", content) for n, content in enumerate(contents)], mode)
    whole, counts = file.read_bytes(), set()
    for size in (0, 100, 512, 1024, 3000, len(whole) // 3, len(whole) // 2):
        file.write_bytes(whole[:size])
        *good, last = Stream([file]).records()
        assert [record.read() for record in good] == contents[: len(good)]
        with pytest.raises(InputError, match=rf"{name}: (cut off|damaged \(.*\)) after {len(good)} images"):
            last.read()
        counts.add(len(good))
    assert len(counts) > 2


def test_files_of_all_kinds_in_one_folder_and_one_after_another(photos, monkeypatch):
    write_tar(photos / "s.tar", MEMBERS[:2])
    monkeypatch.setattr(records, "FILES_AT_ONCE", 2)
    stream = Stream([photos / "val" / "cat" / "3.png", photos, str(photos / "*.tar"), Record("-", b"bytes")])
    units = list(stream.units())
    assert [unit.count() for unit in units] == [1, 1, 2, 1, 1, 1]
    assert [record.name for unit in units for record in unit.records()][-1] == "-"


def test_a_source_is_read_no_further_than_asked(photos, monkeypatch):
    (photos / "t.csv").write_text("image\n" + "".join(f"{n}.png\n" for n in range(10_000)))
    taken = []
    original = records.Record.__init__
    monkeypatch.setattr(
        records.Record, "__init__", lambda self, *a, **k: (taken.append(1), original(self, *a, **k))[1]
    )
    assert next(Stream([photos / "t.csv"]).units()).count() == records.FILES_AT_ONCE
    assert len(taken) == records.FILES_AT_ONCE


def test_units_are_known_by_what_they_name():
    one, other = (Files((Record("a", b"1"), Record(name, b"2"))) for name in "bc")
    assert one.identity != other.identity != Files((Record("a", b"1"), Record("c", b"3"))).identity
    assert list(one.records(1)) == [Record("b", b"2")] and one.count() == 2


def test_addresses_of_any_scheme(memory, photos, tmp_path, monkeypatch):
    ls = type(memory).ls  # which gives names alone unless asked for more, as that of s3 does
    monkeypatch.setattr(type(memory), "ls", lambda *given, detail=False, **more: ls(*given, detail, **more))
    write_tar(tmp_path / "s.tar", MEMBERS)
    parquet.write_table(pa.table({"image": [png(5)]}), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("image,label\nphotos/val/cat/3.png,x\nphotos/none.png,y\n")
    memory.put(str(photos), "/bucket/photos", recursive=True)
    for name in ("s.tar", "t.parquet", "t.csv"):
        memory.put(str(tmp_path / name), f"/bucket/{name}")
    stream = partial(Stream, allow_urls=True)
    assert [(label, content) for _, label, content in shown(stream(["memory://bucket/photos"]))] == [
        ("cat", png(1)),
        ("dog", png(2)),
        ("cat", png(3)),
    ]
    assert len(shown(stream(["memory://bucket/s.tar"]))) == 4 == len(shown(stream(["memory://bucket/*.tar"])))
    assert shown(stream(["memory://bucket/t.parquet"])) == [("memory://bucket/t.parquet#0", "", png(5))]
    good, bad = stream(["memory://bucket/t.csv"]).records()
    assert good.read() == png(3)
    with pytest.raises(InputError, match=r"cannot read image .*none\.png: not there"):
        bad.read()
    assert len(shown(stream(["memory://bucket"]))) == 3 + 4 + 1
    assert len(shown(Stream([f"file://{photos}"]))) == 3
    with pytest.raises(InputError, match="an address: add --allow-urls"):
        Stream(["memory://bucket"])
    for name in ("none.tar", "none/", "none"):
        with pytest.raises(InputError, match=f"memory://bucket/{name}: not there"):
            list(stream([f"memory://bucket/{name}"]).units())
    with pytest.raises(InputError, match="nosuch"):
        list(stream(["nosuch://bucket/a"]).units())


def test_a_web_server(photos, tmp_path):
    pytest.importorskip("aiohttp")
    write_tar(tmp_path / "s.tar", MEMBERS)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if "secret" in self.path:
                self.send_error(403)
            else:
                super().do_GET()

        do_HEAD = do_GET  # noqa: N815

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            home = f"http://127.0.0.1:{server.server_port}"
            assert len(shown(Stream([f"{home}/s.tar"], allow_urls=True))) == 4
            assert shown(Stream([f"{home}/photos/val/cat/3.png"], allow_urls=True))[0][2] == png(3)
            with pytest.raises(InputError, match="no access without credentials"):
                list(Stream([f"{home}/secret.tar"], allow_urls=True).records())
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("error", [OSError("reset by peer"), RuntimeError("payload is not completed")])
def test_a_connection_that_is_lost_is_no_damaged_tar(memory, tmp_path, monkeypatch, error):
    """Or the rest of it would count as one image that cannot be read."""

    class Lost(io.BytesIO):
        def read(self, size=-1):
            if self.tell() >= 10240:
                raise error
            return super().read(size)

    content = write_tar(tmp_path / "s.tar", [(f"{n}.png", png(n).ljust(4000)) for n in range(5)]).read_bytes()
    memory.pipe("/s.tar", content)
    monkeypatch.setattr(type(memory), "open", lambda *_, **__: Lost(content))
    found = Stream(["memory://s.tar"], allow_urls=True).records()
    assert len(list(islice(found, 2))) == 2
    with pytest.raises(InputError, match=f"memory://s.tar: cannot be read: {error}"):
        list(found)


def test_an_address_that_wants_credentials_is_told_which(monkeypatch):
    class NoCredentialsError(Exception):
        pass

    with (
        pytest.raises(InputError, match=r"s3://a/b: no access .*\(Unable to locate\): set AWS_ACCESS_KEY_ID"),
        places.explained("s3://a/b"),
    ):
        raise NoCredentialsError("Unable to locate\ncredentials")
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(InputError, match=r"addresses need fsspec: pip install .*\[remote\]"):
        list(Stream(["s3://a/b.tar"], allow_urls=True).units())


@pytest.mark.parametrize(
    "address",
    [
        "local://{}",
        "file://{}",
        "simplecache::file://{}",
        "blockcache::file://{}",
        "reference://{}",
        "FILE://{}",
        "dir::local://{}",
        "memory://x::file://{}",
        "zip://a.png::file://{}",
    ],
)
def test_a_row_reads_no_file_outside_its_folder_by_whatever_address(tmp_path, address):
    pytest.importorskip("fsspec")
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"secret")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "t.csv").write_text(f"image\n{address.format(secret)}\n")
    (record,) = Stream([tmp_path / "in" / "t.csv"], allow_urls=True).records()
    with pytest.raises(InputError, match=r"not an address that is read|an address, and these were not"):
        record.read()
    if not address.startswith("file:"):
        with pytest.raises(InputError, match="its scheme may be http, https, s3"):
            list(Stream([address.format(secret.with_suffix(""))], allow_urls=True).records())
