"""What classes are called: a label, as folders and columns have it, and a name that a text tower can read.

The label is the class: predictions, files and commands have it as it is. The name is made of it, unless the
user gives a file of names. Of folders `_` and `-` become spaces, and CamelCase is split where a word of two
letters or more ends (`AnnualCrop` → `Annual Crop`, but `iPhone` and `McDonald` stay). Labels in tables and
split files were written as names, so only `_` becomes a space. Case is kept.
"""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pbprompt.config import read_yaml
from pbprompt.errors import InputError, first_line, suggest
from pbprompt.files import csv_rows, read_json, read_text


class ClassLabel(str):
    """A class by its label, with the name that prompts have for it.

    It is a text like any other, equal to the label: what knows nothing of names passes it on.

    Example:
        >>> setter = ClassLabel("english_setter", "English setter")
        >>> setter == "english_setter", read_name(setter), read_name("tabby")
        (True, 'English setter', 'tabby')
    """

    name: str

    def __new__(cls, label: str, name: str) -> "ClassLabel":
        made = super().__new__(cls, label)
        made.name = name
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.name


def read_name(label: str) -> str:
    """What prompts call a class: its label, where it has no other name."""
    return label.name if isinstance(label, ClassLabel) else label


def with_names(labels: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """The labels, with the names of those that have another."""
    return tuple(ClassLabel(one, names[one]) if names.get(one, one) != one else one for one in labels)


def other_names(labels: Iterable[str]) -> dict[str, str]:
    """The names of those labels that have another, as files keep them."""
    return {str(one): read_name(one) for one in labels if read_name(one) != one}


def from_folder(folder: str) -> str:
    words = re.sub(r"(?<=[a-z]{2})(?=[A-Z][a-z])", " ", folder)
    return " ".join(re.sub(r"[_\-]+", " ", words).split())


def from_label(label: str) -> str:
    """The readable name of a label in a table or split file."""
    return " ".join(label.replace("_", " ").split())


def name_key(name: str) -> str:
    """What two names of one class have in common: what the tokeniser reads alike does not tell them apart.

    That is case, underscores and spaces, and what ftfy and HTML make the same: é in one or two characters,
    letters of full width, `&amp;` and &.
    """
    return from_label(mended(name)).casefold()


def mended(text: str) -> str:
    """With broken encodings mended and HTML entities resolved (twice, as CLIP did)."""
    if text.isascii() and text.isprintable() and "&" not in text:
        return text  # nothing to mend, for which ftfy need not be imported
    import ftfy

    return html.unescape(html.unescape(ftfy.fix_text(text)))


def by_any_name(classes: Sequence[str]) -> dict[str, list[int]]:
    """Where classes are, by all that they may be called: first by label, then by label whatever its case,
    underscores and spaces, then likewise by the name to read. Several classes may be called alike."""
    keys = [(name_key(label), name_key(read_name(label))) for label in classes]
    by_label: dict[Any, list[int]] = {}
    by_name: dict[Any, list[int]] = {}
    alike: dict[Any, list[int]] = {}
    for row, (label, name) in enumerate(keys):
        for rows, key in ((by_label, label), (by_name, name), (alike, (label, name))):
            rows.setdefault(key, []).append(row)
    return by_name | by_label | {one: alike[key] for one, key in zip(classes, keys, strict=True)}


def called(rows: Mapping[str, list[int]], name: str) -> list[int]:
    """The classes of `by_any_name` that a label or a name means; none where it is of no class."""
    return next(
        (rows[word] for word in (name, name_key(name), name_key(read_name(name))) if word in rows), []
    )


def known_as(classes: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Labels, or names to read, as the classes have them; what is of no class stays as it is."""
    known = {read_name(label): label for label in classes} | {label: label for label in classes}
    return tuple(known.get(one, known.get(read_name(one), one)) for one in given)


def class_rows(classes: Sequence[str], names: Sequence[str]) -> list[int]:
    """Where the classes are that labels or names mean, all of a name."""
    rows = by_any_name(classes)
    for name in names:
        if not called(rows, name):
            raise InputError(f"class {name!r} is none of the model's {len(classes)}: add it by name first")
    return list(dict.fromkeys(row for name in names for row in called(rows, name)))


def missing_names(classes: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that are no class yet, each once."""
    rows = by_any_name(classes)
    new = {name_key(name): name for name in reversed(names) if not called(rows, name)}
    return list(reversed(new.values()))


def read_classes_file(path: str | Path, kind: str = "name") -> dict[str, str]:
    """Folder name or label → class name, or another kind of text: a JSON object, two columns of .csv or .tsv,
    or lines `key: name`."""
    path = Path(path)
    mapping: dict[str, str] = {}
    for where, key, name in _pairs(path, kind):
        key, name = key.strip(), " ".join(name.split())
        if not key or not name:
            raise InputError(f"{where}: the key or the {kind} is empty: give both")
        if mapping.get(key, name) != name:
            raise InputError(f"{where}: {key!r} is named twice: keep one of {mapping[key]!r} and {name!r}")
        mapping[key] = name
    if not mapping:
        what = "class names" if kind == "name" else f"{kind}s"
        raise InputError(f"{path}: no {what} in it: write one 'key: {kind}' per line, or a JSON object")
    return mapping


def read_descriptions(path: Path) -> dict[str, list[str]]:
    """What people say of each class: a YAML file of `class: sentence`, or of a list of sentences."""
    try:
        values = read_yaml(read_text(path))
    except yaml.YAMLError as error:
        raise InputError(f"{path}: no YAML ({first_line(error)}): write 'class: sentence'") from None
    if not isinstance(values, dict) or not values:
        raise InputError(f"{path}: no descriptions in it: write 'class: sentence', one class a line")
    found = {}
    for name, value in values.items():
        sentences = [value] if isinstance(value, str) else value
        whole = isinstance(sentences, list) and all(isinstance(one, str) and one.strip() for one in sentences)
        if not whole:
            raise InputError(f"{path}: class {str(name)!r}: give a sentence, or a list of sentences")
        found[str(name)] = [" ".join(one.split()) for one in sentences]
    return found


def described(
    classes: Sequence[str], sentences: Mapping[str, str | Sequence[str]], where: str
) -> tuple[tuple[str, ...], ...]:
    """Each class that is described, by its label, with its sentences."""
    for name in missing_names(classes, list(sentences)):
        raise InputError(f"{where}: no class is called {name!r}: {suggest(name, classes)}")
    rows = by_any_name(classes)
    return tuple(
        (str(classes[called(rows, name)[0]]), *([one] if isinstance(one, str) else one))
        for name, one in sentences.items()
    )


def _pairs(path: Path, kind: str) -> Iterator[tuple[str, str, str]]:
    """Where each pair stands, the key and the name."""
    suffix = path.suffix.lower()
    if suffix == ".json":
        value, types = read_json(path), (str, int, float) if kind == "number" else (str,)
        if not isinstance(value, dict) or not all(type(name) in types for name in value.values()):
            raise InputError(f"{path}: not a JSON object of {kind}s: write {{'class': {kind}, ...}}")
        yield from ((str(path), key, str(name)) for key, name in value.items())
    elif suffix in (".csv", ".tsv"):
        for where, row in csv_rows(path, read_text(path), "\t" if suffix == ".tsv" else ","):
            if len(row) != 2:
                raise InputError(f"{where}: {len(row)} columns where two belong: write key and {kind}")
            yield where, row[0], row[1]
    else:
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            key, colon, name = line.partition(":")
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if not colon:
                raise InputError(f"{path} line {number}: no ':' in {line.strip()!r}: write 'key: {kind}'")
            yield f"{path} line {number}", key, name


def check_distinct(keys: Sequence[str], names: Sequence[str], where: str) -> None:
    """Refuse two classes of the same name: the tokeniser could not tell them apart."""
    first: dict[str, str] = {}
    for key, name in zip(keys, names, strict=True):
        if not name:
            raise InputError(f"{where}: class {key!r} has no readable name: give it one by --names FILE")
        other = first.setdefault(name_key(name), key)
        if other != key:
            raise InputError(
                f"{where}: classes {other!r} and {key!r} are both named {name!r}: "
                "rename one, or tell them apart by --names FILE"
            )


def distinct(names: Sequence[str]) -> Sequence[str]:
    """The names, refused where two are one class."""
    seen: dict[str, str] = {}
    for name in names:
        key = name_key(name)
        if key in seen:
            raise InputError(f"class names {seen[key]!r} and {name!r} are the same: name each class once")
        seen[key] = name
    return names
