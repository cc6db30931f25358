"""The embedded sample: emoji of 28 classes drawn in four free styles; the style is the domain.

`index.json` lists the images with their split; an emoji is in the same split in every style, so that a
change of style is tested on things never tuned on.
"""

import json
from pathlib import Path

from pbprompt.data.catalog.benchmark import Benchmark
from pbprompt.data.items import SPLITS, Dataset, Item
from pbprompt.errors import BrokenInstallError

FOLDER = Path(__file__).resolve().parents[1] / "sample"


def read(benchmark: Benchmark, folder: Path) -> Dataset:
    """The items of `index.json`, whose files lie in `images/<style>/<class>/`."""
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        rows = sorted(index["items"], key=lambda row: row["file"])
        parts = {
            split: tuple(
                Item(f"images/{row['file']}", row["label"], row["style"])
                for row in rows
                if row["split"] == split
            )
            for split in SPLITS
        }
        classes, template = tuple(index["classes"]), index["template"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenInstallError(
            f"{folder / 'index.json'} is damaged ({error}): install pbprompt again"
        ) from None
    return Dataset(
        name=benchmark.name,
        root=folder,
        classes=classes,
        template=template,
        home="openmoji",
        train=parts["train"],
        val=parts["val"],
        test=parts["test"],
    )


BENCHMARK = Benchmark(
    name="sample",
    title="Sample",
    folder="sample",
    marker="index.json",
    classes=28,
    counts=(None, None, None),
    licence="Apache-2.0, CC BY 4.0, CC BY-SA 4.0 and MIT, by style",
    source="this package, which holds it",
    read=read,
    template="a drawing of a {}.",
)
