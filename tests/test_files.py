"""Paths from files others wrote stay inside the root; files are written whole or not at all."""

import os
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbprompt.errors import InputError
from pbprompt.files import inside, read_text, write_bytes, write_text


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
