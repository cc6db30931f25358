"""Class folders: `<class>/…` with a seeded split, or `train|val|test/<class>/…`."""

from pathlib import Path

from pbprompt.data.assemble import Choices, Row, Skipped, assemble, keep_images
from pbprompt.data.items import Dataset, some
from pbprompt.data.names import from_folder
from pbprompt.data.stream.folders import Labels, files_below, subfolders
from pbprompt.errors import InputError


def open_folders(root: Path, choices: Choices) -> Dataset:
    """The dataset in a folder of class folders. Images may lie at any depth below their class folder."""
    folders = subfolders(root)
    if not folders:
        raise InputError(f"{root}: no class folders in it: put each class's images in a folder of its own")
    labels = Labels(folders)
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for file in files_below(root):
        path = file.relative_to(root).as_posix()
        label, split = labels.of(path)
        if label:
            rows.append(Row(path, label, split))
        else:
            skipped.append((path, "outside the class folders"))
    kept, no_images = keep_images(root, rows)
    return assemble(
        root.resolve().name,
        root,
        kept,
        choices,
        where=str(root),
        naming=from_folder,
        notes=[*_warn_of_codes(kept, choices), *_warn_of_empty(root, kept, [*labels.splits] or [""])],
        skipped=[*no_images, *skipped],
        remedy="put JPEG, PNG, WebP or similar files into its class folders",
    )


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
