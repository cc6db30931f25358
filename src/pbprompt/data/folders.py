"""Class folders: `<class>/…` with a seeded split, or `train|val|test/<class>/…`."""

from pathlib import Path

from pbprompt.data.assemble import SPLIT_WORDS, Choices, Row, Skipped, assemble, keep_images
from pbprompt.data.images import walk_files
from pbprompt.data.items import Dataset, some
from pbprompt.data.names import from_folder
from pbprompt.errors import InputError


def open_folders(root: Path, choices: Choices) -> Dataset:
    """The dataset in a folder of class folders. Images may lie at any depth below their class folder."""
    folders = subfolders(root)
    if not folders:
        raise InputError(f"{root}: no class folders in it: put each class's images in a folder of its own")
    splits = {name: SPLIT_WORDS[name.lower()] for name in folders if name.lower() in SPLIT_WORDS}
    # A class may itself be called "train": two splits, or nothing but splits, make the folders splits.
    depth = 1 if len(set(splits.values())) > 1 or len(splits) == len(folders) else 0

    rows: list[Row] = []
    skipped: list[Skipped] = []
    for file in walk_files(root):
        path = file.relative_to(root)
        parts = path.parts[:-1]
        if len(parts) > depth and (depth == 0 or parts[0] in splits):
            rows.append(Row(path.as_posix(), parts[depth], splits[parts[0]] if depth else ""))
        else:
            skipped.append((path.as_posix(), "outside the class folders"))
    kept, no_images = keep_images(root, rows)
    return assemble(
        root.resolve().name,
        root,
        kept,
        choices,
        where=str(root),
        naming=from_folder,
        notes=[*_warn_of_codes(kept, choices), *_warn_of_empty(root, kept, [*splits] if depth else [""])],
        skipped=[*no_images, *skipped],
        remedy="put JPEG, PNG, WebP or similar files into its class folders",
    )


def subfolders(folder: Path) -> list[str]:
    """The names of the folders directly in a folder, sorted, hidden ones left out."""
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}: give a folder that can be read") from None
    return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _warn_of_codes(rows: list[Row], choices: Choices) -> list[str]:
    """A note where most class folders are named by codes, which tell a text tower nothing."""
    keys = {row.key for row in rows}
    codes = [key for key in keys if sum(map(str.isalpha, key)) < 2]
    if choices.mapping is None and 2 * len(codes) > len(keys):
        return [f"Folder names such as {min(codes)!r} are codes: name the classes in a classes file"]
    return []


def _warn_of_empty(root: Path, rows: list[Row], parents: list[str]) -> list[str]:
    """A note where a class folder holds no image in any split: it is no class of the dataset."""
    found = {name for parent in parents for name in subfolders(root / parent)}
    empty = sorted(found - {row.key for row in rows})
    return [f"Class folders without images: {some(empty)}"] if empty else []
