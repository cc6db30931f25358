"""What the page offers to try: images of the model's own data, or drawings."""

import base64
import io
import json
from dataclasses import replace
from hashlib import sha256

import pytest
from PIL import Image
from real_server import RealServer

from pbprompt.apps.serve.app import create_app
from pbprompt.apps.serve.samples import SIDE, samples_of
from pbprompt.config import from_dict
from pbprompt.model.card import Provenance
from pbprompt.model.fitting import to_try
from pbprompt.vision.images.build_dataset import OF_A_DRAW
from pbprompt.vision.images.sources import open_dataset


@pytest.fixture
def photos(tmp_path):
    """Eight classes of ten photographs, each of a colour of its own."""
    for place in range(80):
        path = tmp_path / "photos" / f"class {place // 10}" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (600, 300), (3 * place, 0, 0)).save(path)
    return open_dataset(tmp_path / "photos", held_out=OF_A_DRAW)


def recorded(dataset):
    """As the model's folder gives it back."""
    given = json.loads(json.dumps(Provenance(to_try=to_try(dataset)).to_dict()))
    return from_dict(Provenance, given, "field")


def test_images_that_were_kept_back_are_shown_small(photos):
    found = samples_of(recorded(photos).to_try)
    assert list(found.samples) == [f"class {n}" for n in range(6)] and not found.drawn
    kept_back = {str(photos.file(item)) for item in photos.val}
    assert {file for _, file, _ in to_try(photos)} <= kept_back
    image = Image.open(io.BytesIO(base64.b64decode(found.samples["class 0"].partition(",")[2])))
    assert image.size == (SIDE, SIDE // 2)


def test_several_labels_are_all_named(photos):
    few = replace(photos, multi_label=True, val=())
    few = replace(few, test=tuple(replace(item, label=0, labels=(1, 2)) for item in photos.test[:3]))
    assert [name for name, _, _ in to_try(few)] == ["class 1, class 2"]


def test_what_is_gone_or_was_changed_is_not_shown(photos, tmp_path):
    data = recorded(photos)
    files = [photos.root / file for _, file, _ in data.to_try]
    files[0].unlink()
    Image.new("RGB", (600, 300), "blue").save(files[1])
    assert list(samples_of(data.to_try).samples) == [f"class {n}" for n in range(2, 6)]
    for file in files[2:]:
        file.unlink()
    assert samples_of(data.to_try).drawn


def test_a_model_cannot_name_other_files_of_this_machine(tmp_path):
    """Nor what is no image, no file or no entry, whatever its hash."""
    (tmp_path / "diary.txt").write_text("dear diary")
    Image.new("RGB", (9, 9)).save(tmp_path / "private.png")
    known = sha256(b"dear diary").hexdigest()
    entries = [
        ["a", str(tmp_path / "private.png"), "0" * 64],
        ["b", str(tmp_path / "diary.txt"), known],
        ["c", "/dev/zero", known],
        ["d", str(tmp_path), known],
        ["e", "a\0b", known],
        ["f"],
    ]
    for listed in (entries, ()):
        found = samples_of(listed)
        assert found.drawn and list(found.samples)[:2] == ["cat", "guitar"]


def test_they_are_behind_the_key(model, photos):
    model = replace(model, info=replace(model.info, data=recorded(photos)))
    with RealServer(create_app(model, api_key="open-it"), "http://localhost") as client:
        assert client.get("/samples").status_code == 401
        said = client.get("/samples", headers={"X-API-Key": "open-it"}).json()
        assert len(said["samples"]) == 6 and said["drawn"] is False
