"""Words on the command line, standard input and addresses."""

import io
import sys

import pytest

from pbprompt.cli.given_images import sources
from pbprompt.data import download
from pbprompt.data.stream import Record
from pbprompt.errors import InputError


class Piped(io.TextIOWrapper):
    def __init__(self, content: bytes, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(content))
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_words_stay_what_they_are_and_standard_input_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Piped(b"bytes"))
    found = sources(["a.png", "-", "https://here/x"], allow_urls=True)
    assert found == ["a.png", Record("-", b"bytes"), "https://here/x"]


def test_addresses_are_refused_unless_allowed():
    with pytest.raises(InputError, match="add --allow-urls"):
        sources(["https://here/a.jpg"], allow_urls=False)
    with pytest.raises(InputError, match="given twice"):
        sources(["-", "-"], allow_urls=False)


@pytest.mark.parametrize(
    ("content", "terminal", "says"),
    [(b"", False, "nothing came"), (b"x", True, "is a terminal"), (b"x" * 99, False, "more than")],
)
def test_standard_input_without_an_image(monkeypatch, content, terminal, says):
    monkeypatch.setattr(sys, "stdin", Piped(content, terminal))
    monkeypatch.setattr(download, "MOST_BYTES", 50)
    (record,) = sources(["-"], allow_urls=False)
    with pytest.raises(InputError, match=says):
        record.read()
