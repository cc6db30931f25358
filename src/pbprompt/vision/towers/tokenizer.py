"""Text to token ids, exactly as the models were trained: CLIP's byte-pair encoding, and SentencePiece."""

import gzip
import re
import string
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice, pairwise
from typing import Any

import regex
import torch
from jaxtyping import Int
from torch import Tensor

from pbprompt.errors import BrokenInstallError, InputError
from pbprompt.vision.images.names import mended
from pbprompt.vision.towers import ASSETS

MERGES_FILE = "bpe_simple_vocab_16e6.txt.gz"
BYTES = 256
WORD_PIECES = regex.compile(
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    regex.IGNORECASE,
)


NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
SPACE = "▁"  # how the vocabulary spells the space before a word


class TruncationWarning(UserWarning):
    """A text was longer than the context and lost its end."""


def clean(text: str) -> str:
    """Broken encodings mended, HTML entities resolved (twice, as CLIP did), spaces collapsed, lower case."""
    return " ".join(mended(text).split()).lower()


class BaseTokenizer:
    """What every tokenizer does with its token ids."""

    context_length: int
    sos: int | None
    eot: int
    pad: int
    pads_left: bool

    def encode(self, text: str, *, specials: bool = True) -> list[int]:
        """The text's token ids, without those that enclose it, however many."""
        raise NotImplementedError

    def enclose(self, ids: list[int]) -> list[int]:
        """What the tower reads of a text, before the padding: text [EOT], behind [SOS] where there is one."""
        return [*([] if self.sos is None else [self.sos]), *ids, self.eot]

    def padded(self, prompt: list[int]) -> list[int]:
        """A prompt of the whole context, as a tower reads it that sees padding."""
        padding = [self.pad] * (self.context_length - len(prompt))
        return [*padding, *prompt] if self.pads_left else [*prompt, *padding]

    def __call__(self, texts: str | Sequence[str]) -> tuple[Int[Tensor, "n l"], Int[Tensor, " n"]]:
        """Enclosed ids, padded behind to the context, and the lengths: the first EOT is at `lengths - 1`.

        The first, because that is where CLIP reads the feature, should a text itself spell out an EOT.
        """
        texts = [texts] if isinstance(texts, str) else texts
        ids = torch.full((len(texts), self.context_length), self.pad)
        lengths = torch.zeros(len(texts), dtype=torch.long)
        for row, text in enumerate(texts):
            tokens = self.enclose(self.encode(text))
            if len(tokens) > self.context_length:
                shown = text if len(text) <= 60 else f"{text[:57]}..."
                warnings.warn(
                    f"{shown!r} is {len(tokens)} tokens long with its start and end; "
                    f"the context holds {self.context_length}: its end was cut off",
                    TruncationWarning,
                    stacklevel=2,
                )
                tokens = [*tokens[: self.context_length - 1], self.eot]
            ids[row, : len(tokens)] = torch.tensor(tokens)
            lengths[row] = tokens.index(self.eot) + 1
        return ids, lengths


@dataclass(frozen=True)
class Tokenizer(BaseTokenizer):
    """CLIP's tokeniser for a vocabulary of 2·256 bytes, `vocab_size` − 514 merges, SOS and EOT."""

    vocab_size: int = 49408
    context_length: int = 77

    def __post_init__(self) -> None:
        if self.vocab_size < 2 * BYTES + 2 or self.context_length < 2:
            raise InputError(
                f"a CLIP vocabulary has at least {2 * BYTES + 2} tokens and a context at least 2 positions, "
                f"not {self.vocab_size} and {self.context_length}"
            )

    pad = 0
    pads_left = False

    @property
    def sos(self) -> int:  # type: ignore[override]
        return self.vocab_size - 2

    @property
    def eot(self) -> int:  # type: ignore[override]
        return self.vocab_size - 1

    def encode(self, text: str, *, specials: bool = True) -> list[int]:
        """The text's token ids, without SOS and EOT, however many.

        A special that the text spells out is one, as CLIP has it; without `specials` it is text.
        """
        vocabulary = _vocabulary(self.vocab_size - 2 * BYTES - 2)
        known = {"<|startoftext|>": self.sos, "<|endoftext|>": self.eot} if specials else {}
        ids: list[int] = []
        for piece in WORD_PIECES.findall(clean(text)):
            ids.extend([known[piece]] if piece in known else vocabulary.word_ids(piece))
        return ids

    def words(self) -> dict[int, str]:
        """Tokens that can be read as a word: those that end one, of lower-case letters or digits alone.

        Bytes that are no character, pieces from inside a word, punctuation, emoji, the special tokens, and
        capitals, which no text has once it is cleaned, are left out. A word's last piece cannot be told from
        a whole word: the tokeniser does not mark beginnings.
        """
        words = {}
        for token in range(BYTES, self.vocab_size - 2):  # before: bytes inside a word; behind: SOS and EOT
            spelling = self.decode([token])
            word = spelling[:-1]
            if spelling.endswith(" ") and word.isalnum() and word == word.lower():
                words[token] = word
        return words

    def decode(self, ids: Iterable[int] | Int[Tensor, " n"]) -> str:
        """The text of token ids: cleaned text with a space after every word, specials spelt out."""
        spelling = _vocabulary(self.vocab_size - 2 * BYTES - 2).spelling
        specials = {self.sos: b"<|startoftext|>", self.eot: b"<|endoftext|>"}
        return b"".join(specials.get(i) or spelling[i] for i in map(int, ids)).decode(errors="replace")


class _Vocabulary:
    """Ids by merge: byte k of the order below is id k, 256 + k where it ends a word; merge r is 512 + r."""

    def __init__(self, merges: int) -> None:
        letters = _byte_letters()
        self.byte_ids = {byte: k for k, byte in enumerate(letters.values())}
        ids = {letter: k for k, letter in enumerate(letters)}
        ids |= {f"{letter}</w>": BYTES + k for k, letter in enumerate(letters)}
        self.spelling = [bytes([b]) for b in letters.values()] + [bytes([b, 0x20]) for b in letters.values()]
        self.merged: dict[tuple[int, int], int] = {}
        for rank, (left, right) in enumerate(_read_merges(merges)):
            pair = ids[left], ids[right]
            self.merged[pair] = ids[left + right] = 2 * BYTES + rank
            self.spelling.append(self.spelling[pair[0]] + self.spelling[pair[1]])
        # names repeat over and over in prompts; the bound keeps a server's memory in check
        self.word_ids = lru_cache(maxsize=2**15)(self._word_ids)

    def _word_ids(self, word: str) -> tuple[int, ...]:
        """Merge the pair of lowest rank, everywhere and from the left, until none is known."""
        ids = [self.byte_ids[byte] for byte in word.encode()]
        ids[-1] += BYTES
        while len(ids) > 1:
            pair = min(pairwise(ids), key=lambda pair: self.merged.get(pair, 1 << 60))
            if pair not in self.merged:
                break
            ids = _merge(ids, pair, self.merged[pair])
        return tuple(ids)


def _merge(ids: list[int], pair: tuple[int, int], into: int) -> list[int]:
    out: list[int] = []
    at = 0
    while at < len(ids):
        found = at + 1 < len(ids) and (ids[at], ids[at + 1]) == pair
        out.append(into if found else ids[at])
        at += 2 if found else 1
    return out


_vocabulary = cache(_Vocabulary)


def _byte_letters() -> dict[str, int]:
    """How the merges file spells each byte, in the order of the ids: visible characters stand for themselves
    and come first, the others are the characters from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(BYTES) if byte not in visible]
    return {chr(b): b for b in visible} | {chr(0x100 + n): b for n, b in enumerate(hidden)}


def _read_merges(count: int) -> list[tuple[str, str]]:
    path = ASSETS / MERGES_FILE
    try:
        with path.open("rb") as raw, gzip.open(raw, "rt", encoding="utf-8") as lines:
            pairs = [line.split() for line in islice(lines, 1, count + 1)]  # the first line is a header
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BrokenInstallError(f"{path} cannot be read ({error}): install pbprompt again") from None
    if len(pairs) < count:
        raise InputError(f"a vocabulary of {count + 2 * BYTES + 2} tokens is larger than CLIP's merges allow")
    return [(left, right) for left, right in pairs]


@dataclass(frozen=True, eq=False)
class SentenceTokenizer(BaseTokenizer):
    """A SentencePiece vocabulary by a `tokenizers.Tokenizer`; `lower` and `punctuation`: what is read.

    SigLIP reads text in lower case without punctuation (its own vocabulary of 32,000), SigLIP 2 in lower case
    (Gemma's of 256,000). Both end a text with EOS, have no start token, and pad it to the whole context,
    which the tower sees. MetaCLIP 2 reads 300 languages as they are written (XLM-V's 901,629 tokens), between
    a start token and EOS, where its causal tower is read.
    """

    backend: Any
    vocab_size: int
    context_length: int
    sos: int | None
    eot: int
    pad: int
    lower: bool
    punctuation: bool
    pads_left: bool

    def __post_init__(self) -> None:
        self.backend.no_padding()
        self.backend.no_truncation()
        self.backend.encode_special_tokens = True  # what spells a special token out is text

    def clean(self, text: str) -> str:
        """The text as the model was trained to read it."""
        text = text.lower() if self.lower else text
        if self.punctuation:
            return text
        return re.sub(r"\s+", " ", text.translate(NO_PUNCTUATION)).strip()

    def encode(self, text: str, *, specials: bool = True) -> list[int]:
        """The text's token ids, without EOS, however many; `specials` are CLIP's and change nothing here."""
        cleaned = self.clean(text)
        return list(self.backend.encode(cleaned, add_special_tokens=False).ids) if cleaned else []

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return str(self.backend.decode([int(token) for token in ids], skip_special_tokens=False))

    def words(self) -> dict[int, str]:
        """Tokens that can be read as a word: those that begin one, of lower-case letters or digits."""
        spelled = (
            (token, piece[1:]) for piece, token in self.backend.get_vocab().items() if piece[0] == SPACE
        )
        return {token: word for token, word in sorted(spelled) if word.isalnum() and word == word.lower()}


AnyTokenizer = Tokenizer | SentenceTokenizer
