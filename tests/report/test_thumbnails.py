"""Small pictures inside a page."""

import base64
import io

from PIL import Image

from pbprompt.report.thumbnails import LONGEST_SIDE, data_uri


def test_a_picture_is_made_small_and_one_that_cannot_be_read_is_none(tmp_path):
    Image.new("RGB", (900, 300)).save(tmp_path / "wide.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    head, content = data_uri(tmp_path / "wide.png").split(",")
    image = Image.open(io.BytesIO(base64.b64decode(content)))
    assert head == "data:image/jpeg;base64" and image.size == (LONGEST_SIDE, LONGEST_SIDE // 3)
    assert data_uri(tmp_path / "broken.png") is None and data_uri(tmp_path / "missing.png") is None
