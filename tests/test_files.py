"""Paths from files others wrote stay inside the root; files are written whole or not at all."""

import csv
import errno
import os
import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbprompt import files
from pbprompt.errors import InputError
from pbprompt.files import (
    append_records,
    as_name,
    as_text,
    inside,
    read_records,
    read_text,
    write_bytes,
    write_files,
    write_text,
)


@pytest.mark.parametrize(
    ("given_path", "normal"),
    [
        ("a/b.jpg", "a/b.jpg"),
        ("./a//b.jpg", "a/b.jpg"),
        ("a\\b.jpg", "a/b.jpg"),
        ("a/../b.jpg", "b.jpg"),
        ("日本/猫 1.jpg", "日本/猫 1.jpg"),
        ("..a/b..jpg", "..a/b..jpg"),
    ],
)
def test_normal_paths(given_path, normal):
    assert inside(given_path, "t.csv line 2") == normal


@pytest.mark.parametrize(
    "escaping",
    [
        "/etc/passwd",
        "../x.jpg",
        "a/../../x.jpg",
        "..",
        ".",
        "a/..",
        "",
        "  ",
        "C:\\x.jpg",
        "c:x.jpg",
        "\\\\host\\x",
        "..\\x.jpg",
        "a\\..\\..\\x",
        "x\0.jpg",
        "a\nb.jpg",
        f"a/{'b' * 300}.jpg",
    ],
)
def test_escapes_are_refused(escaping):
    with pytest.raises(InputError) as caught:
        inside(escaping, "t.csv line 2")
    assert str(caught.value).startswith("t.csv line 2: ") and "\n" not in str(caught.value)


@given(
    st.lists(st.sampled_from(["..", ".", "a", "b c", "", "ü", "/", "\\", "C:", "~"]), max_size=8).map(
        "/".join
    )
)
def test_whatever_is_accepted_stays_inside(text):
    try:
        path = inside(text, "t")
    except InputError:
        return
    assert not PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts
    joined = os.path.normpath(os.path.join("/root/set", path))  # noqa: PTH118
    assert joined.startswith("/root/set/")


def test_read_text(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes("\ufeffé\r\n".encode())
    assert read_text(path) == "é\r\n"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="UTF-8"):
        read_text(path)
    with pytest.raises(InputError, match="No such file"):
        read_text(tmp_path / "none")


def test_writing_replaces_the_file_and_leaves_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "new" / "t.txt"
    write_text(path, "one\n")
    write_text(path, "zwei é\n")
    assert path.read_bytes() == "zwei é\n".encode() and os.listdir(path.parent) == ["t.txt"]  # noqa: PTH208
    assert path.stat().st_mode & 0o777 == 0o644

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_bytes(path, b"three")
    assert path.read_bytes() == "zwei é\n".encode() and os.listdir(path.parent) == ["t.txt"]  # noqa: PTH208


def test_several_files_are_on_the_disk_before_the_first_gets_its_name(tmp_path, monkeypatch):
    write_files(tmp_path, {"a": b"1", "b": b"1"})
    synced, fsync = [], os.fsync

    def full(handle):
        synced.append(handle)
        if len(synced) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as error:
        write_files(tmp_path, {"a": b"2", "b": b"2"})
    assert error.value.filename == str(tmp_path / "b")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"1"}


def test_a_short_write_is_an_error_and_leaves_the_records_as_they_were(tmp_path, monkeypatch):
    log, write = tmp_path / "log.jsonl", os.write
    append_records(log, [{"n": 1}])
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as error:
        patch.setattr(os, "write", lambda handle, content: write(handle, content[:4]))
        append_records(log, [{"n": 2}])
    assert error.value.filename == str(log) and log.read_bytes() == b'{"n":1}\n'
    append_records(log, [{"n": 3}])
    assert [record["n"] for record in read_records(log)] == [1, 3]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match="give a regular file"):
        read_text(tmp_path / "pipe.csv")


@given(
    st.text(st.characters(), max_size=12) | st.sampled_from(["a\\udcff", "\\\\udcff", "\\", "C:\\d\\udc80x"])
)
def test_a_name_as_text_is_utf_8_and_leads_back(name):
    text = as_text(name)
    text.encode()
    assert as_name(text) == name
    assert text == name or "\\u" in text


def test_ordinary_names_stay_and_others_are_escaped():
    assert as_text("C:\\photos\\käse %41.jpg") == "C:\\photos\\käse %41.jpg"
    assert as_text("a\\b\udcff") == "a\\\\b\\udcff"
    assert inside("d/caf\\udce9.png", "t.csv line 2") == "d/caf\udce9.png"
    with pytest.raises(InputError, match=r"t\.csv line 2: .* a character that no file name has"):
        inside("\ud800.png", "t.csv line 2")


@pytest.mark.parametrize(
    "name",
    ["a\x1b[2Jb", "line\nbreak", "\x9b31m", "back\\u001b", "\x7f", "\udcff\x00", "gpj\u202e.x", "\u2028"],
)
def test_control_characters_of_a_name_are_written_out_and_lead_back(name):
    text = files.as_text(name)
    assert text.isprintable() and files.as_name(text) == name


@pytest.mark.parametrize(
    "cell", ["=1+1", "@SUM(A1)", "+cmd|'/c calc'!A0", "-x", "'=1", "-0.5", "plain", "'quoted'", "12"]
)
def test_no_cell_is_a_formula_and_all_lead_back(cell):
    ((written,),) = csv.reader([files.as_csv([[cell]]).strip()])
    assert files.cell_text(written) == cell
    assert not re.match(r"[=+@]|-(?![\d.]+$)", written)
