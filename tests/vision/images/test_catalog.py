"""Every catalogue entry: found by name, read from a miniature of its layout, checked, mended."""

import csv
import json

import pytest
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images.benchmark_readers import reversed_path, split_capitals, year_first
from pbprompt.vision.images.catalog import benchmarks, check, find, lookup

FIFTEEN = (
    "imagenet caltech101 oxford_pets stanford_cars flowers102 food101 fgvc_aircraft sun397 dtd eurosat "
    "ucf101 imagenetv2 imagenet_sketch imagenet_a imagenet_r"
)


def put(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(folder / path, format="PNG")


def text(folder, path, content):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(content, encoding="utf-8")


def test_every_entry_is_complete():
    entries = benchmarks()
    assert list(entries) == [*FIFTEEN.split(), "pacs", "grocery", "sample"]
    assert len({entry.folder for entry in entries.values()}) == len(entries)
    for entry in entries.values():
        assert entry.licence and entry.source and entry.template.count("{}") == 1


def test_names_are_forgiving_and_suggested():
    assert find("Caltech-101").name == find("caltech101").name == "caltech101"
    assert find("FGVCAircraft").name == "fgvc_aircraft" and find("ImageNet-A").name == "imagenet_a"
    assert lookup("pets") is None
    with pytest.raises(InputError, match="did you mean 'imagenet_sketch'"):
        find("imagenetsketsch")


SPLIT_FILES = {
    "caltech101": (
        "split_zhou_Caltech101.json",
        "101_ObjectCategories/",
        {"Faces": "face", "sea_horse": "sea horse"},
    ),
    "oxford_pets": ("split_zhou_OxfordPets.json", "images/", {"basset_hound": "basset hound", "pug": "pug"}),
    "stanford_cars": (
        "split_zhou_StanfordCars.json",
        "",
        {"Audi TT 2011": "2011 Audi TT", "2012 Fiat": "2012 Fiat"},
    ),
    "flowers102": (
        "split_zhou_OxfordFlowers.json",
        "jpg/",
        {"hard-leaved orchid": "hard-leaved orchid", "b": "b"},
    ),
    "food101": ("split_zhou_Food101.json", "images/", {"apple_pie": "apple pie", "ramen": "ramen"}),
    "sun397": (
        "split_zhou_SUN397.json",
        "SUN397/",
        {"a/abbey": "abbey", "/c/church/indoor": "indoor church"},
    ),
    "dtd": (
        "split_zhou_DescribableTextures.json",
        "images/",
        {"banded": "banded", "polka-dotted": "polka-dotted"},
    ),
    "eurosat": ("split_zhou_EuroSAT.json", "2750/", {"SeaLake": "Sea or Lake", "Forest": "Forest"}),
    "ucf101": ("split_zhou_UCF101.json", "UCF-101-midframes/", {"YoYo": "Yo Yo", "Tai_Chi": "Tai Chi"}),
}


@pytest.mark.parametrize("name", SPLIT_FILES)
def test_split_file_benchmarks(tmp_path, name):
    file, prefix, classes = SPLIT_FILES[name]
    entry = find(name)
    folder = tmp_path / entry.folder
    rows = [[f"{label}.jpg", label, raw] for label, raw in enumerate(classes)]
    text(folder, file, json.dumps({"train": rows, "val": rows[:1], "test": rows[1:]}))
    data = entry.open(tmp_path)
    assert data.classes == tuple(classes.values()) and data.template == entry.template
    assert [item.path for item in data.train] == [f"{prefix}0.jpg", f"{prefix}1.jpg"]
    assert entry.open(folder).content_hash == data.content_hash


def test_fgvc_aircraft(tmp_path):
    folder = tmp_path / "fgvc_aircraft"
    text(folder, "variants.txt", "707-320\nA310\nBAE 146-200\n")
    for split in ("train", "val", "test"):
        text(folder, f"images_variant_{split}.txt", f"{split}1 BAE 146-200\n{split}2 707-320\n")
    data = find("fgvc_aircraft").open(tmp_path)
    assert data.classes == ("707-320", "A310", "BAE 146-200")
    assert [(item.path, item.label) for item in data.val] == [("images/val1.jpg", 2), ("images/val2.jpg", 0)]
    text(folder, "images_variant_val.txt", "1 Zeppelin\n")
    with pytest.raises(InputError, match=r"images_variant_val\.txt line 1: 'Zeppelin'"):
        find("fgvc_aircraft").open(tmp_path)


NAMES = "n03 missile\nn01 tench\nn02 missile\nn04 great white_shark\n"


def test_imagenet(tmp_path):
    folder = tmp_path / "imagenet"
    put(
        folder,
        "images/train/n02/b.JPEG",
        "images/train/n02/a.JPEG",
        "images/train/n01/z.JPEG",
        "images/val/n04/v.JPEG",
    )
    with pytest.raises(InputError, match=r"classnames\.txt is missing"):
        find("imagenet").open(tmp_path)
    text(folder, "classnames.txt", NAMES)
    data = find("imagenet").open(tmp_path)
    # labels are the sorted ids; two classes share a name in the published list
    assert data.classes == ("tench", "missile", "missile", "great white shark") and data.val == ()
    assert [(item.path, item.label) for item in data.train] == [
        ("images/train/n01/z.JPEG", 0),
        ("images/train/n02/a.JPEG", 1),
        ("images/train/n02/b.JPEG", 1),
    ]
    assert [(item.path, item.label) for item in data.test] == [("images/val/n04/v.JPEG", 3)]
    put(folder, "images/val/n99/x.JPEG")
    with pytest.raises(InputError, match="n99: no such class"):
        find("imagenet").open(tmp_path)


def test_imagenets_relatives(tmp_path):
    text(tmp_path / "imagenet", "classnames.txt", NAMES)
    put(tmp_path / "imagenet-adversarial", "imagenet-a/n04/1.jpg", "imagenet-a/n02/1.jpg")
    text(tmp_path / "imagenet-adversarial", "imagenet-a/README.txt", "read me")
    adversarial = find("imagenet_a").open(tmp_path)
    assert adversarial.classes == ("missile", "great white shark") and not adversarial.train
    assert [(item.path, item.label) for item in adversarial.test] == [
        ("imagenet-a/n02/1.jpg", 0),
        ("imagenet-a/n04/1.jpg", 1),
    ]
    images = "imagenetv2-matched-frequency-format-val"
    put(tmp_path / "imagenetv2", f"{images}/3/x.jpeg", f"{images}/0/y.jpeg")
    text(tmp_path / "imagenetv2", "classnames.txt", NAMES)
    second = find("imagenetv2").open(tmp_path)
    assert len(second.classes) == 4 and [item.label for item in second.test] == [0, 3]
    for name, place in (
        ("imagenet_r", "imagenet-rendition/imagenet-r"),
        ("imagenet_sketch", "imagenet-sketch/images"),
    ):
        put(tmp_path / place, "n01/1.jpg")
        assert find(name).open(tmp_path).classes == ("tench",)


def test_pacs(tmp_path):
    folder = tmp_path / "pacs"
    put(
        folder,
        *(f"{d}/{c}/{n}.jpg" for d in ("photo", "sketch") for c in ("dog", "horse") for n in range(10)),
    )
    data = find("pacs").open(tmp_path)
    assert data.classes == ("dog", "horse") and data.home == "photo" and data.domains == ("photo", "sketch")
    for domain in data.domains:
        part = data.only(domain)
        assert [len(part.train), len(part.val), len(part.test)] == [10, 4, 6]
        assert all(item.path.startswith(domain) for item in part.items)
    report = check(find("pacs"), tmp_path)
    assert "cartoon: expected 2,344, found 0" in report.problems


def test_grocery(tmp_path):
    folder = tmp_path / "grocery" / "dataset"
    folder.mkdir(parents=True)
    with (folder / "classes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Class Name (str)", "Class ID (int)", "c", "d", "e", "f"])
        for label, name in enumerate(("Granny-Smith", "Oatly-Oat-Milk")):
            writer.writerow([name, label, "Apple", 0, f"/iconic/{name}.jpg", f"/iconic/{name}.txt"])
    for split in ("train", "val", "test"):
        text(folder, f"{split}.txt", f"{split}/a.jpg, 1, 0\n{split}/b.jpg, 0, 0\n")
    data = find("grocery").open(tmp_path)
    assert data.classes == ("Granny Smith", "Oatly Oat Milk")
    assert [(item.path, item.label) for item in data.only("iconic").items] == [
        ("dataset/iconic/Granny-Smith.jpg", 0),
        ("dataset/iconic/Oatly-Oat-Milk.jpg", 1),
    ]
    assert [item.path for item in data.only("photo").test] == ["dataset/test/a.jpg", "dataset/test/b.jpg"]
    text(folder, "val.txt", "val/a.jpg, 2, 0\n")
    with pytest.raises(InputError, match=r"val\.txt line 1: '2' is no label"):
        find("grocery").open(tmp_path)


def test_name_rules():
    assert year_first("AM General Hummer SUV 2000") == "2000 AM General Hummer SUV"
    assert year_first("2000 AM General Hummer SUV") == "2000 AM General Hummer SUV"
    assert (
        reversed_path("/a/airplane_cabin") == "airplane_cabin"
        and reversed_path("indoor church") == "indoor church"
    )
    assert (
        split_capitals("ApplyEyeMakeup") == "Apply Eye Makeup"
        and split_capitals("Hand_stand") == "Hand_stand"
    )


def test_check_says_exactly_what_is_missing(tmp_path):
    entry = find("oxford_pets")
    report = check(entry, tmp_path)
    assert len(report.problems) == 1
    assert "oxford_pets/split_zhou_OxfordPets.json" in report.problems[0] and "https://" in report.problems[0]

    folder = tmp_path / "oxford_pets"
    rows = [[f"{label}.jpg", label, f"c{label}"] for label in range(37)]
    text(folder, entry.marker, json.dumps({"train": rows, "val": [], "test": rows[:5]}))
    report = check(entry, tmp_path)
    assert report.problems == (
        "train: expected 2,944, found 37",
        "val: expected 736, found 0",
        "test: expected 3,669, found 5",
        f"{folder / 'images'}: the folder is missing (42 images)",
    )
    put(folder, *(f"images/{label}.jpg" for label in range(36)))
    (folder / "images" / "3.jpg").write_bytes(b"")
    report = check(entry, folder)
    assert report.problems[3:] == (f"{folder / 'images'}: 3 images missing or empty (3.jpg, 3.jpg, 36.jpg)",)
    assert ("classes", "37", "37") in report.found and ("files", "42", "39") in report.found
