"""The images that a command is given, as a stream takes them; `-` is standard input."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pbprompt.errors import InputError

if TYPE_CHECKING:
    from pbprompt.data.stream import Record

STDIN = "-"


def sources(words: Sequence[str], allow_urls: bool) -> "list[str | Record]":
    """What comes from standard input is read; addresses must be allowed."""
    from pbprompt.data.download import is_address
    from pbprompt.data.stream import Record

    if words.count(STDIN) > 1:
        raise InputError(f"{STDIN} is given twice: standard input holds one image")
    for word in words:
        if is_address(word) and not (allow_urls or word.startswith("file://")):
            raise InputError(f"{word}: an address: add --allow-urls to fetch images from elsewhere")
    return [word if word != STDIN else Record(STDIN, _read_stdin()) for word in words]


def _read_stdin() -> bytes | InputError:
    from pbprompt.data.download import MOST_BYTES

    if sys.stdin.isatty():
        return InputError(f"{STDIN}: standard input is a terminal: pipe an image in, such as `< photo.jpg`")
    content = sys.stdin.buffer.read(MOST_BYTES + 1)
    if not content:
        return InputError(f"{STDIN}: nothing came from standard input: pipe an image in")
    if len(content) > MOST_BYTES:
        return InputError(
            f"{STDIN}: more than {MOST_BYTES >> 20} MiB came from standard input: give one image"
        )
    return content
