"""Whatever `fit` takes, and folders of images without labels."""

from pathlib import Path

from pbprompt.data.assemble import SPLIT_WORDS
from pbprompt.data.folders import subfolders
from pbprompt.data.huggingface import is_saved_dataset
from pbprompt.data.images import list_images
from pbprompt.data.items import Dataset, Item
from pbprompt.data.names import from_folder
from pbprompt.data.sources import open_dataset


def open_any(
    source: str | Path,
    root: str | Path | None = None,
    *,
    classes_file: str | Path | None = None,
    seed: int = 1,
) -> tuple[Dataset, bool]:
    """The images as a dataset, and whether they are labelled.

    A folder with one class folder, or none, is taken as it is: its images are its training items.
    """
    path = Path(source).expanduser()
    if path.is_dir() and not is_saved_dataset(path):
        folders = subfolders(path)
        if not folders or (len(folders) == 1 and folders[0].lower() not in SPLIT_WORDS):
            items = [Item(file.relative_to(path).as_posix(), 0) for file in list_images(path)]
            name = from_folder(folders[0]) if folders else "unlabelled"
            return Dataset(path.resolve().name, path, (name,), tuple(items)), bool(folders)
    return open_dataset(source, root, classes_file=classes_file, seed=seed), True
