"""`serve --label`: a person labels a folder's images, and the model learns each at once."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from real_server import RealServer

from pbprompt.apps.labelling.next_images import Entry, read_table, write_table
from pbprompt.apps.serve.app import create_app
from pbprompt.apps.serve.images import decode_image
from pbprompt.apps.serve.labelling import Labelling
from pbprompt.apps.serve.limits import Limits, Refused
from pbprompt.errors import InputError
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.images.sources import open_dataset

CLASSES = ("cat", "guitar", "apple")


@pytest.fixture(scope="module")
def learner(lite, cat, guitar) -> TunedModel:
    kind = find_method("conjugate")
    method = build_method(kind, make_config(kind), lite, seed=1)
    method.prepare(CLASSES, "a photo of a {}.")
    start, see = TunedModel(method, describe_model(method)), lite.preprocess
    images = [see.normalised(decode_image(data, Limits(), see.cropper)) for data in (cat, guitar)]
    return start.partial_fit(start.encode(images), ["cat", "guitar"])


@pytest.fixture
def folder(cat, guitar, tmp_path: Path) -> Path:
    """Turned cats and guitars, a third of a kind that no browser shows, and a file that is no image."""
    there = tmp_path / "photos"
    (there / "more").mkdir(parents=True)
    (tmp_path / "cat.webp").write_bytes(cat)
    (tmp_path / "guitar.webp").write_bytes(guitar)
    for name in ("cat", "guitar"):
        with Image.open(tmp_path / f"{name}.webp") as picture:
            image = picture.convert("RGB")
        for angle in (5, 10):
            image.rotate(angle, fillcolor="white").save(there / "more" / f"{name}-{angle}.png")
        image.rotate(20, fillcolor="white").save(there / f"{name}-20.tif")
    (there / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    return there


@pytest.fixture
def served(learner, folder) -> Iterator[Callable[..., Any]]:
    """Clients of servers that have looked at the folder anew, one after another."""
    with contextlib.ExitStack() as running:

        def serve(**options: str) -> Any:
            labelling = Labelling.open(learner, folder, progress=False)
            app = create_app(learner, labelling=labelling, **options)
            return running.enter_context(RealServer(app, "http://localhost"))

        yield serve


def truth(name: str) -> str:
    return Path(name).name.partition("-")[0]


def say(client: Any, name: str, label: str | None) -> dict:
    answer = client.post("/labelling", json={"image": name, "label": label})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_labels_are_learned_at_once_and_kept_in_a_table_that_fit_reads(served, learner, folder):
    client = served()
    state = client.get("/labelling").json()
    assert (state["labelled"], state["left"]) == (0, 6) and state["estimate"] is None
    assert set(state["scores"]) == set(CLASSES) and state["suggested"] in CLASSES
    names = []
    for count in range(1, 7):
        names.append(state["image"])
        state = say(client, state["image"], truth(state["image"]))
        assert state["labelled"] == count == len(read_table(folder / "labels.csv"))
    assert len(set(names)) == 6 and state["image"] is None and state["left"] == 0
    assert state["estimate"]["of"] >= 6 and state["estimate"]["right"] <= state["estimate"]["of"]
    data = open_dataset(str(folder / "labels.csv"))
    items = [*data.train, *data.val, *data.test]
    assert {item.path: data.classes[item.label] for item in items} == {n: truth(n) for n in names}
    assert "pbprompt_examples_total 6.0" in client.get("/metrics").text

    # and what it answers by is the model that has learned them
    labelling = Labelling.open(learner, folder, progress=False)
    image = (folder / "more" / "cat-5.png").read_bytes()
    said = client.post("/predict", files=[("files", ("x", image))]).json()["predictions"][0]["scores"]
    again = labelling.model.predict(labelling._encoded(["more/cat-5.png"]))[0].scores
    assert said == pytest.approx(again, abs=1e-3)


def test_it_goes_on_where_the_table_ends(served):
    first = served()
    state = first.get("/labelling").json()
    label = truth(state["image"])
    after = say(first, state["image"], label)
    again = served().get("/labelling").json()
    assert again["labelled"] == 1 and again["left"] == 5 and again["may_undo"] is False
    assert again["estimate"] == after["estimate"] and again["image"] != state["image"]


def test_images_that_wait_in_the_table_come_first_and_stay_there(served, folder):
    waiting = Entry("more/cat-10.png", "", "guitar", "0.5000", "0.9000")
    write_table(folder / "labels.csv", [waiting])
    client = served()
    assert client.get("/labelling").json()["image"] == waiting.image
    say(client, waiting.image, "cat")
    assert read_table(folder / "labels.csv")[0].label == "cat"
    assert client.post("/labelling/undo").json()["image"] == waiting.image
    assert [row._replace(suggested="", probability="") for row in read_table(folder / "labels.csv")] == [
        waiting._replace(suggested="", probability="")
    ]


def test_undo_unlearns_and_skipping_teaches_nothing(served, folder):
    client = served()
    before = client.get("/labelling").json()
    skipped = say(client, before["image"], None)
    assert skipped["labelled"] == 0 and skipped["left"] == 5 and not (folder / "labels.csv").exists()
    taught = say(client, skipped["image"], "a new kind")
    assert "a new kind" in taught["scores"]
    undone = client.post("/labelling/undo").json()
    assert undone["image"] == skipped["image"] and set(undone["scores"]) == set(CLASSES)
    assert undone["scores"] == pytest.approx(skipped["scores"]) and read_table(folder / "labels.csv") == []
    assert client.post("/labelling/undo").json()["image"] == before["image"]
    refused = client.post("/labelling/undo")
    assert refused.status_code == 409 and "nothing was labelled" in refused.json()["error"]


@pytest.mark.parametrize(
    ("label", "status", "says"),
    [("CAT", 409, "another spelling"), (" ", 422, "empty"), ("x" * 101, 422, "longer")],
)
def test_a_bad_label_changes_nothing(served, folder, label, status, says):
    client = served()
    before = client.get("/labelling").json()
    answer = client.post("/labelling", json={"image": before["image"], "label": label})
    assert answer.status_code == status and says in answer.json()["error"]
    assert client.get("/labelling").json() == before and not (folder / "labels.csv").exists()


def test_an_image_is_labelled_once(served):
    client = served()
    name = client.get("/labelling").json()["image"]
    say(client, name, "cat")
    again = client.post("/labelling", json={"image": name, "label": "guitar"})
    assert again.status_code == 409 and "reload" in again.json()["error"]


def test_a_table_that_cannot_be_written_teaches_nothing(served, folder, monkeypatch):
    client = served()
    before = client.get("/labelling").json()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pbprompt.apps.serve.labelling.write_table", full)
    answer = client.post("/labelling", json={"image": before["image"], "label": "cat"})
    assert answer.status_code == 507 and "No space left" in answer.json()["error"]
    assert client.get("/labelling").json() == before


def test_what_a_person_writes_into_the_table_meanwhile_stays_and_is_learned(served, folder):
    client, table = served(), folder / "labels.csv"
    state = client.get("/labelling").json()
    first = state["image"]
    state = say(client, first, truth(first))
    mine = next(name for name in ("more/cat-5.png", "more/cat-10.png") if name not in (first, state["image"]))
    edited = [row._replace(label="by hand") if row.image == first else row for row in read_table(table)]
    write_table(table, [*edited, Entry(mine, "cat", "", "", "")])
    second = state["image"]
    state = say(client, second, truth(second))
    assert {row.image: row.label for row in read_table(table)} == {
        first: "by hand",
        mine: "cat",
        second: truth(second),
    }
    assert state["labelled"] == 3 and "by hand" in state["scores"]


def test_two_servers_of_one_table_lose_no_label_and_neither_does_the_second_say(served, folder):
    one, two = served(), served()
    name = one.get("/labelling").json()["image"]
    assert two.get("/labelling").json()["image"] == name
    say(one, name, "cat")
    answer = two.post("/labelling", json={"image": name, "label": "guitar"})
    assert answer.status_code == 409
    assert all(word in answer.json()["error"] for word in (name, "'cat'", "'guitar'", "labels.csv"))
    state = two.get("/labelling").json()
    assert state["image"] != name and state["labelled"] == 1
    say(two, state["image"], truth(state["image"]))
    third = one.get("/labelling").json()["image"]
    if third == state["image"]:
        assert one.post("/labelling", json={"image": third, "label": "x"}).status_code == 409
        third = one.get("/labelling").json()["image"]
    say(one, third, truth(third))
    assert [row.image for row in read_table(folder / "labels.csv")] == [name, state["image"], third]


def test_what_was_corrected_by_hand_is_not_taken_back(served, folder):
    client, table = served(), folder / "labels.csv"
    name = client.get("/labelling").json()["image"]
    say(client, name, "cat")
    write_table(table, [row._replace(label="guitar") for row in read_table(table)])
    answer = client.post("/labelling/undo")
    assert answer.status_code == 409 and "'guitar'" in answer.json()["error"]
    assert [row.label for row in read_table(table)] == ["guitar"]


def test_an_image_that_is_listed_twice_is_kept_so_until_it_is_known_which(served, folder):
    client, table = served(), folder / "labels.csv"
    first = client.get("/labelling").json()["image"]
    say(client, first, "cat")
    name = client.get("/labelling").json()["image"]
    (row,) = read_table(table)
    write_table(table, [row, row._replace(label="guitar")])
    text = table.read_text()
    answer = client.post("/labelling", json={"image": name, "label": "cat"})
    assert answer.status_code == 422 and "listed twice, with 'cat' and 'guitar'" in answer.json()["error"]
    assert table.read_text() == text
    write_table(table, [row._replace(label=""), row, row])
    say(client, name, "cat")
    assert [(one.image, one.label) for one in read_table(table)] == [(first, "cat"), (name, "cat")]


def test_a_table_that_is_gone_or_half_edited_is_not_written(served, folder):
    client, table = served(), folder / "labels.csv"
    state = say(client, client.get("/labelling").json()["image"], "cat")
    text = table.read_text()
    table.unlink()
    answer = client.post("/labelling", json={"image": state["image"], "label": "cat"})
    assert answer.status_code == 409 and "is gone" in answer.json()["error"] and not table.exists()
    table.write_text(text + "half a line\n")
    answer = client.post("/labelling", json={"image": state["image"], "label": "cat"})
    assert answer.status_code == 422 and "labels.csv line 3" in answer.json()["error"]
    assert table.read_text() == text + "half a line\n"
    table.write_text(text)
    assert say(client, state["image"], "cat")["labelled"] == 2


def test_images_of_every_kind_are_shown_as_jpeg(served):
    client = served()
    for name in ("cat-20.tif", "more/cat-5.png"):
        shown = client.get("/labelling/image", params={"name": name})
        assert shown.status_code == 200 and shown.headers["content-type"] == "image/jpeg"
        assert shown.content.startswith(b"\xff\xd8\xff")


@pytest.mark.parametrize(
    "name", ["../cat.webp", "/etc/passwd", "more/../../cat.webp", "away.webp", "labels.csv", "broken.jpg", ""]
)
def test_nothing_outside_the_folder_is_shown(served, folder, name):
    (folder / "away.webp").symlink_to(folder.parent / "cat.webp")
    assert served().get("/labelling/image", params={"name": name}).status_code == 404


def test_what_becomes_a_link_out_of_the_folder_is_not_shown(served, folder):
    client = served()
    (folder / "cat-20.tif").unlink()
    (folder / "cat-20.tif").symlink_to(folder.parent / "cat.webp")
    assert client.get("/labelling/image", params={"name": "cat-20.tif"}).status_code == 404
    (folder / "guitar-20.tif").write_bytes(b"no longer an image")
    assert client.get("/labelling/image", params={"name": "guitar-20.tif"}).status_code == 422


def test_it_is_behind_the_key_and_off_unless_asked_for(served, learner):
    client = served(api_key="k")
    for path in ("/label", "/label.js"):  # the page itself says nothing of the images, and loads nothing
        page = client.get(path)
        assert page.status_code == 200 and "//" not in re.sub(r"(?m)(^|\s)// .*$", "", page.text)
    for path in ("/labelling", "/labelling/image?name=cat-20.tif"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"x-api-key": "k"}).status_code == 200
    for path in ("/labelling", "/labelling/undo"):
        assert client.post(path, json={}).status_code == 401
    assert client.get("/healthz").json()["labelling"] is True
    with RealServer(create_app(learner), "http://localhost") as other:
        assert other.get("/label").status_code == other.get("/labelling").status_code == 404
        assert other.get("/healthz").json()["labelling"] is False


def test_what_is_left_out_is_said(learner, folder):
    (folder / "away.webp").symlink_to(folder.parent / "cat.webp")
    write_table(folder / "labels.csv", [Entry("gone.png", "cat", "", "", "")])
    labelling = Labelling.open(learner, folder, progress=False)
    broken, away, gone = labelling.notes
    assert "broken.jpg" in broken and "1 links lead out" in away and "1 labels" in gone
    assert labelling.shown.labelled == 0 and len(labelling.names) == 6


def test_a_table_elsewhere_names_images_from_the_folder(learner, folder, tmp_path):
    (tmp_path / "tables").mkdir()
    table = tmp_path / "tables" / "mine.csv"
    labelling = Labelling.open(learner, folder, table, progress=False)
    for label in ("cat", "guitar"):
        labelling.label(labelling.shown.image, label, (), Limits())
    assert all((folder / row.image).is_file() for row in read_table(table))
    assert open_dataset(str(table), root=folder).classes == ("cat", "guitar")


def test_another_spelling_of_an_added_class_is_refused_before_it_is_written(learner, folder):
    labelling = Labelling.open(learner, folder, progress=False)
    with pytest.raises(Refused, match="another spelling"):
        labelling.label(labelling.shown.image, "Wood Duck", ["wood duck"], Limits())
    assert not labelling.table.exists() and labelling.model is learner


def test_what_cannot_be_labelled_is_refused_at_the_start(learner, model, folder, tmp_path):
    with pytest.raises(InputError, match="cannot learn while images are labelled"):
        Labelling.open(model, folder, progress=False)
    with pytest.raises(InputError, match="not a folder"):
        Labelling.open(learner, tmp_path / "nowhere", progress=False)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    with pytest.raises(InputError, match="none of its images"):
        Labelling.open(learner, tmp_path / "bad", progress=False)
