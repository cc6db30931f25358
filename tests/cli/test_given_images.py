"""Images from files, from standard input and from addresses."""

import io
import sys
from pathlib import Path

import pytest

from pbprompt.cli.given_images import fetched, listed
from pbprompt.data import download
from pbprompt.errors import InputError


class Piped(io.TextIOWrapper):
    def __init__(self, content: bytes, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(content))
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_files_and_folders_stay_what_they_are(tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"")
    found = listed([str(tmp_path / "b.png"), str(tmp_path)], allow_urls=False)
    assert found == [tmp_path / "b.png", tmp_path / "a.png", tmp_path / "b.png"]
    with fetched(found) as given:
        assert given.paths == found and given.name(found[0]) == str(found[0])


def test_what_comes_from_elsewhere_is_a_file_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Piped(b"bytes"))

    def answer(address: str) -> bytes:
        if address.endswith("none"):
            raise InputError("cannot read image: Not Found")
        return b"fetched"

    monkeypatch.setattr(download, "download", answer)
    (tmp_path / "a.png").write_bytes(b"")
    words = ["-", str(tmp_path / "a.png"), "http://here/none", "https://here/x"]
    with fetched(listed(words, allow_urls=True)) as given:
        assert [given.name(path) for path in given.paths] == ["-", str(tmp_path / "a.png"), "https://here/x"]
        assert [path.read_bytes() for path in given.paths] == [b"bytes", b"", b"fetched"]
        assert [str(error) for error in given.failures] == ["cannot read image: Not Found"]
        told = given.told(given.paths[0], InputError(f"cannot read image {given.paths[0]}: no image"))
        assert str(told) == "cannot read image -: no image"
    assert not given.paths[0].exists() and given.paths[1].exists()


def test_addresses_are_refused_unless_allowed():
    with pytest.raises(InputError, match="add --allow-urls"):
        listed(["https://here/a.jpg"], allow_urls=False)
    with pytest.raises(InputError, match="given twice"):
        listed(["-", "-"], allow_urls=False)


@pytest.mark.parametrize(
    ("content", "terminal", "says"),
    [(b"", False, "nothing came"), (b"x", True, "is a terminal"), (b"x" * 99, False, "more than")],
)
def test_standard_input_without_an_image(monkeypatch, content, terminal, says):
    monkeypatch.setattr(sys, "stdin", Piped(content, terminal))
    monkeypatch.setattr(download, "MOST_BYTES", 50)
    with fetched(["-"]) as given:
        assert not given.paths and says in str(given.failures[0])


def test_a_missing_file_is_told(tmp_path: Path):
    with pytest.raises(InputError, match="does not exist"):
        listed([str(tmp_path / "absent.jpg")], allow_urls=False)
