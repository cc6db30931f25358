"""A folder's files in order, however few names are held."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.data import walk

NAMES = st.text("ab.-_", min_size=1, max_size=3).filter(lambda name: not name.startswith("."))


@settings(max_examples=25, deadline=None)
@given(paths=st.sets(st.lists(NAMES, min_size=1, max_size=3).map(tuple), max_size=12), held=st.integers(1, 3))
def test_files_come_in_the_order_of_their_paths(tmp_path_factory, paths, held):
    root = tmp_path_factory.mktemp("tree")
    folders = {path[:depth] for path in paths for depth in range(1, len(path))}
    files = [path for path in paths if path not in folders]
    for path in files:
        root.joinpath(*path).parent.mkdir(parents=True, exist_ok=True)
        root.joinpath(*path).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "NAMES_AT_ONCE", held)
        found = [path.relative_to(root).as_posix() for path in walk.files_below(root)]
    assert found == sorted("/".join(path) for path in files)


def test_a_link_to_a_folder_above_is_not_followed_for_ever(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").touch()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert [path.name for path in walk.files_below(tmp_path)] == ["x"]
