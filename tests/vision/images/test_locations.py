"""A folder's files in order, however few names are held; its images, and what its folders say of them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images import locations as folders
from pbprompt.vision.images.locations import Labels
from pbprompt.vision.images.stream import Stream, list_images

NAMES = st.text("ab.-_", min_size=1, max_size=3).filter(lambda name: not name.startswith("."))


@settings(max_examples=25, deadline=None)
@given(paths=st.sets(st.lists(NAMES, min_size=1, max_size=3).map(tuple), max_size=12), held=st.integers(1, 3))
def test_files_come_in_the_order_of_their_paths(tmp_path_factory, paths, held):
    root = tmp_path_factory.mktemp("tree")
    parents = {path[:depth] for path in paths for depth in range(1, len(path))}
    files = [path for path in paths if path not in parents]
    for path in files:
        root.joinpath(*path).parent.mkdir(parents=True, exist_ok=True)
        root.joinpath(*path).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "NAMES_AT_ONCE", held)
        found = [path for _, path in folders.files_in(root)]
    assert found == sorted("/".join(path) for path in files)


def test_a_link_to_a_folder_above_is_not_followed_for_ever(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").touch()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert [path for _, path in folders.files_in(tmp_path)] == ["a/x"]


def test_list_images(tmp_path):
    image = Image.new("RGB", (4, 4))
    (tmp_path / "b").mkdir()
    (tmp_path / "a [1]").mkdir()
    image.save(tmp_path / "b" / "2.png")
    image.save(tmp_path / "b" / "1", format="PNG")
    image.save(tmp_path / "a [1]" / "z.JPG", format="PNG")
    image.save(tmp_path / ".hidden.png")
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "table.csv").write_text("image\nb/2.png\n")  # which a stream would read
    (tmp_path / "b" / "more.tar").touch()
    found = [path.relative_to(tmp_path).as_posix() for path in list_images(tmp_path)]
    assert found == ["a [1]/z.JPG", "b/1", "b/2.png"]
    assert list_images(tmp_path / "b" / "1") == [tmp_path / "b" / "1"]
    assert [path.name for path in list_images(f"{tmp_path}/b/*.png")] == ["2.png"]
    assert [path.name for path in list_images(f"{tmp_path}/**/*")] == ["z.JPG", "1", "2.png"]
    assert [path.name for path in list_images(tmp_path / "a [1]")] == ["z.JPG"]


def test_list_images_says_what_to_give(tmp_path):
    for wrong in (tmp_path, tmp_path / "none", f"{tmp_path}/*.png"):
        with pytest.raises(InputError, match="give"):
            list_images(wrong)


def test_walk_follows_links_but_not_in_circles(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x.png").write_bytes(b"x")
    (tmp_path / "real" / "up").symlink_to(tmp_path)
    (tmp_path / "same").symlink_to(tmp_path / "real")
    found = [path for _, path in folders.files_in(tmp_path)]
    assert found == ["real/x.png", "same/x.png"]


@pytest.mark.parametrize(
    ("found", "file", "wanted"),
    [
        (["cat", "dog"], "cat/deep/1.jpg", ("cat", "")),
        (["cat", "dog"], "1.jpg", ("", "")),
        (["train", "valid"], "valid/cat/1.jpg", ("cat", "val")),
        (["train", "valid"], "valid/1.jpg", ("", "val")),
        (["train", "test", "extra"], "extra/cat/1.jpg", ("", "")),
        (["Train"], "Train/cat/1.jpg", ("cat", "train")),
        (["train", "bus"], "train/1.jpg", ("train", "")),
    ],
)
def test_what_the_folders_of_a_file_say(found, file, wanted):
    assert Labels(found).of(file) == wanted


def test_a_link_to_itself_stops_nothing(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(b"")
    for name in ("loop", "loop.png"):
        (tmp_path / name).symlink_to(tmp_path / name)
    assert list_images(tmp_path) == [tmp_path / "a.png", tmp_path / "loop.png"]
    last = list(Stream([tmp_path]).records())[-1]
    with pytest.raises(InputError, match=r"cannot read image .*loop\.png"):
        last.read()
