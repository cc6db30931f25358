"""The images that a command is given: files, folders and globs, `-` for standard input, and addresses."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pbprompt.errors import InputError

STDIN = "-"


@dataclass
class GivenImages:
    """Files to read, what to call each, and what could not be had at all."""

    paths: list[Path] = field(default_factory=list)
    names: dict[Path, str] = field(default_factory=dict)  # of those that are no files of the user's
    failures: list[InputError] = field(default_factory=list)

    def name(self, path: Path) -> str:
        return self.names.get(path, str(path))

    def told(self, path: Path, error: InputError) -> InputError:
        """An error of the reader, with the name that the user knows."""
        return InputError(str(error).replace(str(path), self.name(path)))


def listed(words: Sequence[str], allow_urls: bool) -> list[Path | str]:
    """The files that the words name; what comes from elsewhere stays a word, and is not yet fetched."""
    from pbprompt.data.download import is_address
    from pbprompt.data.images import list_images

    if words.count(STDIN) > 1:
        raise InputError(f"{STDIN} is given twice: standard input holds one image")
    found: list[Path | str] = []
    for word in words:
        if is_address(word) and not allow_urls:
            raise InputError(f"{word}: an address: add --allow-urls to fetch images from elsewhere")
        found += [word] if word == STDIN or is_address(word) else list_images(word)
    return found


@contextlib.contextmanager
def fetched(found: Sequence[Path | str]) -> Iterator[GivenImages]:
    """What comes from elsewhere as files too, in a folder that goes when all is done."""
    from pbprompt.data.download import download

    given = GivenImages()
    with tempfile.TemporaryDirectory(prefix="pbprompt-") as folder:
        for number, one in enumerate(found):
            path = one if isinstance(one, Path) else Path(folder) / str(number)
            if isinstance(one, str):
                try:
                    path.write_bytes(_read_stdin() if one == STDIN else download(one))
                except InputError as error:
                    given.failures.append(error)
                    continue
                given.names[path] = one
            given.paths.append(path)
        yield given


def _read_stdin() -> bytes:
    from pbprompt.data.download import MOST_BYTES

    if sys.stdin.isatty():
        raise InputError(f"{STDIN}: standard input is a terminal: pipe an image in, such as `< photo.jpg`")
    content = sys.stdin.buffer.read(MOST_BYTES + 1)
    if not content:
        raise InputError(f"{STDIN}: nothing came from standard input: pipe an image in")
    if len(content) > MOST_BYTES:
        raise InputError(
            f"{STDIN}: more than {MOST_BYTES >> 20} MiB came from standard input: give one image"
        )
    return content
