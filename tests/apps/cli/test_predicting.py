"""`pbprompt predict --out`, as a user runs it: sources of all kinds, an end in the middle, and bad input."""

import csv
import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

import pbprompt
from pbprompt.apps.batch import job as jobs
from pbprompt.apps.batch.output import Output
from pbprompt.apps.cli.predicting import sources
from pbprompt.errors import InputError
from pbprompt.files import as_name
from pbprompt.vision.images import records
from pbprompt.vision.images.stream import Record, Stream

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
ASK = ("--classes", "guitar,cat")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    shutil.copy(SAMPLE / "mammal" / "1f408.webp", folder / "felix.jpg")
    shutil.copy(SAMPLE / "musical-instrument" / "1f3b8.webp", folder / "strat.jpg")
    (folder / "list.csv").write_text("image,label\nstrat.jpg,x\nfelix.jpg,y\nnone.jpg,z\nstrat.jpg,x\n")
    with tarfile.open(folder / "shard.tar", "w") as archive:
        archive.add(folder / "felix.jpg", "0001.jpg")
    return folder


def test_sources_of_all_kinds_into_each_kind_of_file(run, images, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    given = (images / "list.csv", images / "shard.tar")
    code, out, err = run("predict", *given, *ASK, "--out", tmp_path / "a.parquet", "--features")
    assert (code, out) == (1, "") and "with 4 answers" in err and "1 of 5 images could not be read" in err
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    names = ["strat.jpg", "felix.jpg", "strat.jpg", f"{images}/shard.tar/0001.jpg"]
    assert [row["image"] for row in rows] == names
    assert [row["label"] for row in rows] == ["guitar", "cat", "guitar", "cat"]
    assert all(len(row["features"]) == 256 and row["entropy"] > 0 for row in rows)
    (failed,) = parquet.read_table(tmp_path / "a.failed.parquet").to_pylist()
    assert failed["image"] == "none.jpg" and "no such file" in failed["reason"]
    code, _, err = run("predict", *given, *ASK, "--out", f"{tmp_path}/b.csv/")
    assert code == 1 and "_failed-*.csv says why" in err
    found = [
        row for part in sorted((tmp_path / "b.csv").glob("part-*")) for row in csv.DictReader(part.open())
    ]
    assert [row["image"] for row in found] == names and "features" not in found[0]


def test_an_end_in_the_middle_and_the_same_again(run, images, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FILES_AT_ONCE", 2)
    monkeypatch.setattr(jobs, "RECORDS", 2)
    command = ("predict", images / "felix.jpg", images / "strat.jpg", images / "felix.jpg", *ASK, "--out")
    out, add = tmp_path / "a.jsonl", Output.add

    def interrupted(self, part):
        if self.rows:
            raise KeyboardInterrupt
        add(self, part)

    with monkeypatch.context() as patch:
        patch.setattr(Output, "add", interrupted)
        code, _, err = run(*command, out)
    assert code == 130 and "stopped after 2 images: the same command goes on from there" in err
    assert not out.exists()
    code, _, err = run("predict", images, "--classes", "guitar,dog", "--out", out)
    assert code == 2 and "was begun by another job (other images, model)" in err
    code, _, err = run(*command, out)
    assert code == 0 and "going on after the 2 images" in err and "with 3 answers" in err
    assert [json.loads(line)["label"] for line in out.read_text().splitlines()] == ["cat", "guitar", "cat"]
    code, _, err = run(*command, out)
    assert code == 2 and "a.jsonl: exists already: give another name, or remove it" in err
    assert not list(tmp_path.glob(".*")), "nothing hidden stays"
    (tmp_path / "mine.csv").write_text("mine")
    code, _, err = run(*command, tmp_path / "mine.csv")
    assert code == 2 and "exists already" in err and (tmp_path / "mine.csv").read_text() == "mine"


def test_a_folder_of_parts_is_checked_against_its_hashes_and_its_images(run, images, tmp_path):
    source = images / "some"
    source.mkdir()
    shutil.copy(images / "felix.jpg", source)
    command, out = ("predict", source, *ASK, "--out", f"{tmp_path}/a.csv/"), tmp_path / "a.csv"
    assert run(*command)[0] == 0
    code, _, err = run(*command)
    assert code == 0 and "is complete already" in err and "made again" not in err
    next(out.glob("part-*")).unlink()
    code, _, err = run(*command)
    assert code == 0 and "1 parts of" in err and "they are made again" in err and list(out.glob("part-*"))
    shutil.copy(images / "strat.jpg", source / "felix.jpg")
    code, _, err = run(*command)
    assert code == 2 and "the images are others than when this job began" in err
    shutil.copy(images / "strat.jpg", source / "strat.jpg")
    code, _, err = run(*command)
    assert code == 2 and "some were added, removed or changed" in err


def test_approximate_ways_are_told_with_every_answer_and_in_the_manifest(run, images, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    given, ways = (images / "shard.tar",), ("--fast-resize", "--precision", "bfloat16")
    able = {"avx512_bf16": True}
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: able, raising=False)
    answers = {}
    for name, options in (("exact", ()), ("resized", ways[:1]), ("both", ways)):
        code, _, err = run("predict", *given, *ASK, *options, "--out", f"{tmp_path}/{name}.jsonl/")
        assert code == 0, err
        (part,) = (tmp_path / f"{name}.jsonl").glob("part-*")
        answers[name] = json.loads(part.read_text())
    assert [one.pop("approximate", None) for one in answers.values()] == [
        None,
        "fast-resize",
        "fast-resize, bfloat16",
    ]
    assert "fast-resize, bfloat16" in (tmp_path / "both.jsonl" / "_manifest.jsonl").read_text()
    assert '"approximate"' not in (tmp_path / "exact.jsonl" / "_manifest.jsonl").read_text()
    for name in ("resized", "both"):
        assert answers[name]["label"] == answers["exact"]["label"] and answers[name] != answers["exact"]
        assert answers[name]["score"] == pytest.approx(answers["exact"]["score"], abs=0.05)
    code, _, err = run("predict", *given, *ASK, "--out", f"{tmp_path}/both.jsonl/")
    assert code == 2 and "another job" in err
    code, out, _ = run("predict", images / "felix.jpg", *ASK, "--fast-resize", "--json")
    assert code == 0 and json.loads(out)["approximate"] == "fast-resize"
    assert run("predict", *given, *ASK, *ways, "--out", tmp_path / "both.parquet")[0] == 0
    able.clear()
    code, _, err = run("predict", *given, *ASK, *ways, "--out", tmp_path / "c.csv")
    assert code == 2 and "precision bfloat16: this processor has no instructions for it" in err


def test_bad_input_is_one_sentence(run, images, tmp_path):
    out = ("--out", tmp_path / "a.csv")
    (images / "list.csv").write_text("name\nx\n")
    for arguments, says in (
        ((images / "list.csv", *ASK, *out), "no image column"),
        ((images, *ASK, "--features"), "--features: says how --out is written"),
        ((images, *ASK, "--executor", "ray"), "--executor: says how --out is written"),
        ((images, *ASK, *out, "--ray-address", "x:1"), "--ray-address: is for --executor ray"),
        (
            (images, *ASK, *out, "--executor", "ray", "--fast-resize"),
            "--fast-resize: is for --executor local",
        ),
        ((images, *ASK, *out, "--json"), "--json: prints answers and --out writes them"),
        ((images, *ASK, *out, "--executor", "ray", "--ray-address", "localhost:1"), "no cluster lets us in"),
        (("s3://bucket/a.tar", *ASK, *out), "add --allow-urls"),
        ((images, *ASK, "--out", images), "ends in .csv"),
    ):
        code, printed, err = run("predict", *arguments)
        assert (code, printed) == (2, "") and says in err and len(err.strip().splitlines()) == 1, err
    for flag, choice in (("--executor", "dask"), ("--precision", "int8")):
        code, _, err = run("predict", images, *ASK, *out, flag, choice)
        assert code == 2 and f"Invalid value for '{flag}'" in err
    assert not (tmp_path / "a.csv").exists()


def test_a_tar_that_is_cut_off(run, images, tmp_path):
    content = (images / "shard.tar").read_bytes()
    (images / "shard.tar").write_bytes(content[: len(content) // 2 - 4096])
    code, _, err = run(
        "predict", images / "shard.tar", images / "felix.jpg", *ASK, "--out", tmp_path / "a.csv"
    )
    assert code == 1 and "with 1 answer" in err
    with (tmp_path / "a.failed.csv").open() as file:
        (failed,) = csv.DictReader(io.StringIO(file.read()))
    assert "cut off after 0 images" in failed["reason"]


class Piped(io.TextIOWrapper):
    def __init__(self, content: bytes, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(content))
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_words_stay_what_they_are_and_standard_input_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Piped(b"bytes"))
    found = sources(["a.png", "-", "https://here/x"])
    assert found == ["a.png", Record("-", b"bytes"), "https://here/x"]


def test_addresses_are_refused_unless_allowed():
    with pytest.raises(InputError, match="add --allow-urls"):
        Stream(sources(["https://here/a.jpg"]))
    with pytest.raises(InputError, match="given twice"):
        sources(["-", "-"])


@pytest.mark.parametrize(
    ("content", "terminal", "says"),
    [(b"", False, "nothing came"), (b"x", True, "is a terminal"), (b"x" * 99, False, "more than")],
)
def test_standard_input_without_an_image(monkeypatch, content, terminal, says):
    monkeypatch.setattr(sys, "stdin", Piped(content, terminal))
    monkeypatch.setattr("pbprompt.apps.cli.predicting.MOST_WEB_BYTES", 50)
    (record,) = sources(["-"])
    with pytest.raises(InputError, match=says):
        record.read()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_not_utf_8_are_written_in_every_format(run, images, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    odd = images / "only" / "caf\udce9.jpg"
    odd.parent.mkdir()
    (images / "felix.jpg").rename(odd)
    (images / "list.jsonl").write_text('{"image": "only/caf\\udce9.jpg"}\n{"image": "\\ud800.jpg"}\n')
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        code, _, err = run("predict", odd.parent, *ASK, "--out", tmp_path / name)
        assert code == 0, err
    names = [
        next(csv.DictReader((tmp_path / "a.csv").open()))["image"],
        json.loads((tmp_path / "a.jsonl").read_text())["image"],
        parquet.read_table(tmp_path / "a.parquet").to_pylist()[0]["image"],
    ]
    assert set(map(as_name, names)) == {str(odd)} and names[0].endswith("/caf\\udce9.jpg")
    code, _, err = run("predict", images / "list.jsonl", *ASK, "--out", tmp_path / "b.csv")
    assert code == 1 and "with 1 answer" in err
    assert "no file name has" in (tmp_path / "b.failed.csv").read_text()
    code, _, err = run("predict", tmp_path / "a.csv", *ASK, "--out", tmp_path / "c.csv")
    assert code == 0, "read back as it was"


def test_files_without_images_are_told(run, tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"image": pa.array([], pa.binary())}), tmp_path / "e.parquet")
    with tarfile.open(tmp_path / "e.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    for source in ("e.parquet", "e.tar"):
        for out in ((), ("--out", tmp_path / "a.csv")):
            code, _, err = run("predict", tmp_path / source, *ASK, *out)
            assert code == 2 and f"{source}: no images in it" in err
    assert {path.name for path in tmp_path.iterdir()} == {"e.parquet", "e.tar"}
