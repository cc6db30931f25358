"""What is known of where a model came from, and what a file says of it."""

import pytest

from pbprompt.config import from_dict
from pbprompt.errors import InputError
from pbprompt.model.provenance import Provenance
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.items import Dataset, Item


@pytest.fixture
def dataset(tmp_path):
    items = tuple(Item(f"{n}.jpg", n % 2) for n in range(8))
    return Dataset("toys", tmp_path, ("cat", "dog"), items)


def test_facts_of_the_draw(dataset):
    drawn = draw(dataset, 1, seed=9)
    assert Provenance.of(drawn.apply(dataset)).to_dict() == {
        "dataset": "toys",
        "content_hash": dataset.content_hash,
        "draw_hash": drawn.hash,
        "draw_seed": 9,
        "shots": 1,
        "images": 2,
    }
    assert "draw_hash" not in Provenance.of(dataset).to_dict()


def test_there_and_back():
    told = Provenance(dataset="toys", options={"data": "photos"}, changes=("merged a and b",), unlabelled=3)
    assert from_dict(Provenance, told.to_dict(), "field") == told
    assert set(told.to_dict()) == {"dataset", "options", "changes", "unlabelled"}


def test_what_is_no_provenance_is_named():
    with pytest.raises(InputError, match="field 'to_try'"):
        from_dict(Provenance, {"to_try": 7}, "field")
