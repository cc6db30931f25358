"""The embedded sample opens by name and is whole."""

import pytest

from pbprompt.errors import BrokenInstallError
from pbprompt.vision.images.catalog import SAMPLE as FOLDER
from pbprompt.vision.images.catalog import check, find
from pbprompt.vision.images.fewshot import base_new, draw
from pbprompt.vision.images.images import open_image
from pbprompt.vision.images.sources import open_dataset

pytestmark = pytest.mark.skipif(not (FOLDER / "index.json").exists(), reason="the sample is not built")


def test_it_is_whole():
    assert check(find("sample"), FOLDER).problems == ()


def test_splits_styles_and_images():
    data = open_dataset("sample")
    assert data.domains == ("fluent", "google", "openmoji", "twitter") and data.home in data.domains
    assert open_image(data.file(data.train[0])).size == (128, 128)
    fluent = open_dataset("sample:fluent")
    assert {item.domain for item in fluent.items} == {"fluent"}
    drawn = draw(fluent, 4, 1)
    assert not drawn.short and len(drawn.train) == 4 * len(data.classes)
    base, new = base_new(drawn.apply(fluent))
    assert len(base.train) + len(new.train) == len(drawn.train)


def test_no_emoji_is_in_two_splits():
    data = open_dataset("sample")
    emoji = [{item.path.rsplit("/", 1)[1] for item in items} for items in (data.train, data.val, data.test)]
    assert not (emoji[0] & emoji[1] or emoji[0] & emoji[2] or emoji[1] & emoji[2])


def test_a_damaged_index_is_the_installs_fault(tmp_path):
    (tmp_path / "index.json").write_text('{"items": [{}]}')
    with pytest.raises(BrokenInstallError, match="install pbprompt again"):
        find("sample").open(tmp_path)
