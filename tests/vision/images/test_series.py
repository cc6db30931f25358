"""Series as folders, EXIF and tables name them, and that splits and draws keep them whole."""

import json

import pytest
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.series import apart, check_groups, folder_of, moment_of, numbered
from pbprompt.vision.images.sources import open_dataset


def photograph(path, taken="", shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if taken:
        exif[271], exif[272] = "Maker", "Camera\0"
        exif.get_ifd(0x8769)[36867] = taken
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(path, exif=exif)


@pytest.fixture
def bursts(tmp_path):
    """Two classes of six bursts, three photographs each."""
    for month, name in enumerate(("cat", "dog"), start=1):
        for burst in range(6):
            for shot in range(3):
                taken = f"2026:0{month}:0{burst + 1} 12:30:0{shot}"
                photograph(tmp_path / name / f"burst {burst}" / f"{shot}.jpg", taken, 40 * burst + shot)
    return tmp_path


def whole(parts, size=3):
    """Whether every series lies in one part, whole."""
    places = [{item.group for item in part} for part in parts]
    once = sum(map(len, places)) == len(set.union(*places))
    return once and all(len(part) == size * len(series) for part, series in zip(parts, places, strict=True))


@pytest.mark.parametrize("by", ["folder", "exif"])
def test_a_split_by_seed_keeps_series_whole(bursts, by):
    dataset = open_dataset(bursts, group=by, held_out=(0.2, 0.3))
    assert whole([dataset.train, dataset.val, dataset.test]) and dataset.val and dataset.test
    alone = open_dataset(bursts)
    assert not any(item.group for item in alone.items) and alone.content_hash != dataset.content_hash
    assert whole([draw(dataset, 6, seed=2).train])  # two bursts of each class
    assert len({item.group for item in draw(dataset, 2, seed=2).train}) == 2


def test_a_series_of_several_classes_stays_whole_too(bursts):
    for file in bursts.rglob("*.jpg"):
        photograph(file, f"2026:01:0{file.parent.name[-1]} 12:30:00")
    dataset = open_dataset(bursts, group="exif", held_out=(0.2, 0.3))
    assert len({item.group for item in dataset.items}) == 6
    assert whole([dataset.train, dataset.val, dataset.test], size=6)


def test_a_column_names_the_series(tmp_path):
    for shot in range(8):
        photograph(tmp_path / f"{shot}.jpg", shade=shot)
    rows = [f"{shot}.jpg,{'ab'[shot % 2]},{shot // 4}" for shot in range(8)]
    table = tmp_path / "t.csv"
    table.write_text("image,label,place\n" + "\n".join(rows) + "\n")
    assert sorted({item.group for item in open_dataset(table, group="place").items}) == ["0", "1"]
    fields = [dict(zip(("image", "label", "place"), row.split(","), strict=True)) for row in rows]
    lines = tmp_path / "t.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in fields))
    assert open_dataset(lines, group="place").train == open_dataset(table, group="place").train
    with pytest.raises(InputError, match=r"--group plaice: .* column 'plaice'"):
        open_dataset(table, group="plaice")


def test_what_names_no_series_is_refused(bursts):
    with pytest.raises(InputError, match=r"--group folder: .* a folder below its class's"):
        check_groups([], "folder")
    for file in bursts.rglob("*.jpg"):
        photograph(file)
    with pytest.raises(InputError, match=r"--group exif: .* EXIF"):
        open_dataset(bursts, group="exif", held_out=(0.2, 0.3))


def test_folders_and_moments(tmp_path):
    assert folder_of("train/cat/a/b/1.jpg", "cat") == "cat/a/b" and folder_of("cat/1.jpg", "cat") == ""
    photograph(tmp_path / "a.jpg", "2026:01:31 12:59:59")
    assert moment_of(tmp_path / "a.jpg") == "Maker Camera 2026:01:31 12:59"
    photograph(tmp_path / "b.jpg")
    (tmp_path / "c.jpg").write_bytes(b"no image")
    assert moment_of(tmp_path / "b.jpg") == moment_of(tmp_path / "c.jpg") == ""


def test_a_header_that_takes_long_or_much_memory_has_no_moment(tmp_path, monkeypatch):
    exif = Image.Exif()
    exif.get_ifd(0x8769)[36867] = "2026:01:31 12:59:59"
    for padding, found in ((b"", True), (bytes(1 << 16), False)):  # the entries of so much may overlap
        Image.new("RGB", (8, 8)).save(tmp_path / "a.png", exif=exif.tobytes() + padding)
        assert bool(moment_of(tmp_path / "a.png")) == found
    photograph(tmp_path / "a.jpg")
    data = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(data[:2] + b"\xff" * 300_000 + data[2:])
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow goes through it byte by byte"))
    assert moment_of(tmp_path / "a.jpg") == ""


def test_numbers_and_items_apart(bursts):
    train = open_dataset(bursts, group="folder").train
    assert numbered(train[:4]) == [0, 0, 0, 1]
    assert numbered(open_dataset(bursts).train) is None
    assert apart(train, train[:1]) == list(train[3:])
