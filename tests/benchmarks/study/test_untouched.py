"""The sets that nothing was chosen on, from the files of their repositories."""

import subprocess
import sys

from benchmarks.study import untouched


def test_files_have_the_class_that_their_repository_gives_them():
    rooms = ["Houses Dataset/1_bedroom.jpg", "Houses Dataset/1_frontal.jpg", "Houses Dataset/HousesInfo.txt"]
    assert untouched.taken(rooms, untouched.SOURCES["rooms"]) == {
        "Houses Dataset/1_bedroom.jpg": "bedroom/000.jpg",
        "Houses Dataset/1_frontal.jpg": "front of a house/000.jpg",
    }
    fruits = ["Training/Apple Red 1/a.jpg", "Test/Apple Red 1/b.jpg", "test-multiple_fruits/c.jpg", "LICENSE"]
    assert set(untouched.taken(fruits, untouched.SOURCES["fruits"])) == set(fruits[:2])
    faces = ["dataset/with_mask/a.JPG", "images/pic.png"]
    assert untouched.taken(faces, untouched.SOURCES["masks"]) == {faces[0]: "with mask/000.jpg"}


def test_so_many_of_a_class_are_taken_and_the_same_in_any_order(monkeypatch):
    monkeypatch.setattr(untouched, "MOST", 3)
    paths = [f"Dataset/7/{number}.JPG" for number in range(9)]
    few = untouched.taken(paths, untouched.SOURCES["hands"])
    assert len(few) == 3 and few == untouched.taken(paths[::-1], untouched.SOURCES["hands"])


def test_sets_are_written_from_clones(tmp_path, monkeypatch, capsys):
    for source in untouched.SOURCES.values():
        clone = tmp_path / "clones" / source.repository
        (clone / "Dataset" / "7").mkdir(parents=True)
        (clone / "Dataset" / "7" / "a.jpg").write_bytes(b"a")
        git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
            subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(sys, "argv", ["untouched", str(tmp_path / "clones"), str(tmp_path / "data")])
    untouched.main()
    assert (tmp_path / "data" / "untouched" / "hands" / "7" / "000.jpg").read_bytes() == b"a"
    assert "hands: 1 images" in capsys.readouterr().out
