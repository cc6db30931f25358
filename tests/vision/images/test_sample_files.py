"""The embedded sample set: its files, its index and its licences agree, and its limits hold."""

import importlib.resources
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

SAMPLE = Path(str(importlib.resources.files("pbprompt"))) / "vision" / "images" / "sample"
STYLES = ["google", "twitter", "openmoji", "fluent"]
Index = dict[str, Any]


@pytest.fixture(scope="module")
def index() -> Index:
    return json.loads((SAMPLE / "index.json").read_text(encoding="utf-8"))


def test_index_lists_exactly_the_files(index: Index) -> None:
    on_disk = sorted(
        path.relative_to(SAMPLE / "images").as_posix()
        for path in (SAMPLE / "images").rglob("*")
        if not path.is_dir()
    )
    assert on_disk == sorted(item["file"] for item in index["items"])
    beside = {path.name for path in SAMPLE.iterdir()} - {"__pycache__", "__init__.py"}
    assert beside == {"images", "index.json", "LICENCES.md"}


def test_paths_say_style_class_and_emoji(index: Index) -> None:
    for item in index["items"]:
        slug = index["classes"][item["label"]].replace(" ", "-")
        assert item["file"] == f"{item['style']}/{slug}/{item['emoji']}.webp"


def test_items_are_in_a_fixed_order(index: Index) -> None:
    order = [(index["styles"].index(item["style"]), item["label"]) for item in index["items"]]
    assert order == sorted(order)
    assert len({item["file"] for item in index["items"]}) == len(index["items"])


def test_folder_is_at_most_six_megabytes() -> None:
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*") if path.is_file()) <= 6_000_000


def test_classes_and_styles(index: Index) -> None:
    assert index["name"] == "sample"
    assert index["template"].count("{}") == 1
    assert index["styles"] == STYLES
    assert 20 <= len(index["classes"]) <= 30
    assert index["classes"] == sorted(set(index["classes"]))
    assert all(name == name.strip().lower() for name in index["classes"])


def test_every_class_has_the_same_emoji_in_every_style_and_at_least_twelve(index: Index) -> None:
    emoji = defaultdict(set)
    for item in index["items"]:
        emoji[item["label"], item["style"]].add(item["emoji"])
    for label in range(len(index["classes"])):
        drawn = [emoji[label, style] for style in STYLES]
        assert len(drawn[0]) >= 12
        assert all(other == drawn[0] for other in drawn)


def test_an_emoji_has_one_class_one_name_and_one_split(index: Index) -> None:
    seen: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for item in index["items"]:
        seen[item["emoji"]].add((item["label"], item["name"], item["split"]))
    assert {emoji: facts for emoji, facts in seen.items() if len(facts) != 1} == {}


def test_split_sizes_allow_sixteen_shots(index: Index) -> None:
    counts = Counter((item["label"], item["split"]) for item in index["items"] if item["style"] == "fluent")
    assert {split for _, split in counts} == {"train", "val", "test"}
    for label in range(len(index["classes"])):
        assert counts[label, "train"] == 8
        assert counts[label, "val"] >= 1
        assert counts[label, "test"] >= 4


def test_no_two_images_across_splits_are_the_same_file(index: Index) -> None:
    split_of_bytes = defaultdict(set)
    for item in index["items"]:
        split_of_bytes[(SAMPLE / "images" / item["file"]).read_bytes()].add(item["split"])
    assert all(len(splits) == 1 for splits in split_of_bytes.values())


def test_every_image_opens_as_square_rgb_and_shows_something(index: Index) -> None:
    side = index["size"]
    for item in index["items"]:
        with Image.open(SAMPLE / "images" / item["file"]) as image:
            assert (image.format, image.mode, image.size) == ("WEBP", "RGB", (side, side)), item["file"]
            assert min(image.convert("L").tobytes()) < 224, f"{item['file']} is blank"


def test_licences_name_every_package_version_and_licence(index: Index) -> None:
    rows = [
        line
        for line in (SAMPLE / "LICENCES.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `images/")
    ]
    assert len(rows) == len(STYLES)
    for style, row in zip(STYLES, rows, strict=True):
        package = index["packages"][style]
        cells = [cell.strip(" `") for cell in row.strip("|").split("|")]
        assert cells[0] == f"images/{style}/"
        assert cells[2:4] == [package["package"], package["version"]]
        assert cells[4].replace(" ", "-") == package["licence"]
