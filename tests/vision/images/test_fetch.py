"""Benchmarks brought from a server in this process: resumed, checked, unpacked, or where else to get them."""

import hashlib
import io
import json
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image
from typer.testing import CliRunner

from pbprompt.apps.cli.datasets import app
from pbprompt.errors import InputError
from pbprompt.vision.images import catalog
from pbprompt.vision.images.catalog import SourceFile, benchmarks, fetch, find


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        content = self.server.files.get(self.path)
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.server.asked.append((self.path, start))
        if content is None:
            self.send_error(404)
            return
        start = start if self.server.resumes else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : self.server.cut])

    def log_message(self, *_): ...


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.asked, server.resumes, server.cut = {}, [], True, None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def put(server, path, content, **about):
    server.files[path] = content
    digest = hashlib.sha256(content).hexdigest()
    address = f"http://127.0.0.1:{server.server_port}{path}"
    return SourceFile(url=address, bytes=len(content), sha256=digest, **about)


def tarred(members, mode="w:gz"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in members.items():
            facts = tarfile.TarInfo(name)
            facts.size = len(content)
            archive.addfile(facts, io.BytesIO(content))
    return buffer.getvalue()


def picture():
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2)).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def dtd(server):
    """DTD as its makers have it, of one image for each split."""
    archive = tarred({f"dtd/images/dots/{n}.jpg": picture() for n in range(3)} | {"dtd/labels/x.txt": b"x"})
    rows = {split: [[f"dots/{n}.jpg", 0, "dots"]] for n, split in enumerate(("train", "val", "test"))}
    parts = (
        put(server, "/dtd.tar.gz", archive, makes="images", inside="dtd"),
        put(server, "/split.json", json.dumps(rows).encode(), makes="split_zhou_DescribableTextures.json"),
    )
    return replace(find("dtd"), parts=parts, classes=1, counts=(1, 1, 1))


def test_it_lies_as_the_field_lays_it_out_and_is_not_fetched_twice(dtd, server, tmp_path):
    folder = fetch(dtd, tmp_path)
    assert sorted(one.name for one in folder.iterdir()) == [
        "images",
        "labels",
        "split_zhou_DescribableTextures.json",
    ]
    assert len(dtd.open(tmp_path).items) == 3
    server.asked.clear()
    fetch(dtd, tmp_path)
    assert not server.asked


@pytest.mark.parametrize("resumes", [True, False])
def test_what_was_cut_off_goes_on_where_it_ended(dtd, server, tmp_path, resumes):
    server.cut, server.resumes = 100, resumes
    with pytest.raises(
        InputError, match=r"dtd.tar.gz: cut off after 100 of [\d,]+ bytes: run the command again"
    ):
        fetch(dtd, tmp_path)
    server.cut = None
    seen = []
    fetch(dtd, tmp_path, lambda file, done, size: seen.append((done, size)))
    assert server.asked[:2] == [("/dtd.tar.gz", 0), ("/dtd.tar.gz", 100)]
    assert seen[0] == (dtd.parts[0].bytes,) * 2
    assert len(dtd.open(tmp_path).items) == 3


@pytest.mark.parametrize("change", [lambda part: part[:-1] + b"!", lambda part: part + b"!"])
def test_another_file_is_not_used(dtd, server, tmp_path, change):
    server.files["/dtd.tar.gz"] = change(server.files["/dtd.tar.gz"])
    with pytest.raises(InputError, match="what came is not the published file"):
        fetch(dtd, tmp_path)
    assert not list((tmp_path / "dtd").iterdir())


def test_a_server_that_has_it_no_longer_is_told_with_what_to_do(dtd, server, tmp_path):
    del server.files["/split.json"]
    with pytest.raises(InputError, match=r"split.json: Not Found: run the command again.*or obtain the file"):
        fetch(dtd, tmp_path)
    assert (tmp_path / "dtd" / "images").is_dir()  # what came before stays


def test_an_archive_within_an_archive_is_unpacked(server, tmp_path):
    inner, outer = tarred({"101_ObjectCategories/owl/1.jpg": picture()}), io.BytesIO()
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("caltech-101/101_ObjectCategories.tar.gz", inner)
    about = find("caltech101").parts[0]
    wanted = {"makes": about.makes, "inside": about.inside, "nested": about.nested}
    part = put(server, "/caltech-101.zip", outer.getvalue(), **wanted)
    folder = fetch(replace(find("caltech101"), parts=(part,)), tmp_path)
    assert [str(one.relative_to(folder)) for one in folder.rglob("*.jpg")] == [
        "101_ObjectCategories/owl/1.jpg"
    ]
    assert [one.name for one in folder.iterdir()] == ["101_ObjectCategories"]


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"dtd/images/1.jpg": b"x", "../out.jpg": b"x"}, "cannot be unpacked .*outside"),
        ({"textures/1.jpg": b"x"}, "holds no dtd/images"),
    ],
)
def test_an_archive_of_another_form_leaves_nothing(dtd, server, tmp_path, members, says):
    part = put(server, "/dtd.tar.gz", tarred(members), makes="images", inside="dtd")
    with pytest.raises(InputError, match=says):
        fetch(replace(dtd, parts=(part,)), tmp_path)
    assert [one.name for one in (tmp_path / "dtd").iterdir()] == [".images.part"]
    assert not (tmp_path / "out.jpg").exists()


def test_every_benchmark_is_fetched_or_says_why_not():
    for entry in benchmarks().values():
        assert entry.parts or entry.by_hand, entry.name
        assert all(len(part.sha256) == 64 and part.bytes > 0 for part in entry.parts), entry.name
        named = {part.makes for part in entry.parts}
        assert not entry.parts or entry.marker in named or entry.by_hand, entry.name
    with pytest.raises(
        InputError, match=r"ImageNet cannot be fetched: its terms .*: obtain it from https://image-net"
    ):
        fetch(find("imagenet"), "data")


def test_the_command_fetches_and_checks(dtd, tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "find", lambda name: dtd)
    answer = CliRunner().invoke(app, ["fetch", "dtd", "--root", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    assert "DTD: research" in answer.output and "complete" in answer.output
    (tmp_path / "dtd" / "images" / "dots" / "1.jpg").unlink()
    assert CliRunner().invoke(app, ["fetch", "dtd", "--root", str(tmp_path)]).exit_code == 1
