"""What the pages share."""

import base64
import io

from PIL import Image

from pbprompt.report.html_page import LONGEST_SIDE, picture, table


def test_a_picture_is_made_small_and_one_that_cannot_be_read_is_left_out(tmp_path):
    Image.new("RGB", (900, 300)).save(tmp_path / "wide.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    head, content = picture(tmp_path / "wide.png", '"wide"').split('"')[1].split(",")
    image = Image.open(io.BytesIO(base64.b64decode(content)))
    assert head == "data:image/jpeg;base64" and image.size == (LONGEST_SIDE, LONGEST_SIDE // 3)
    assert 'alt="&quot;wide&quot;"' in picture(tmp_path / "wide.png", '"wide"')
    assert picture(tmp_path / "broken.png") == picture(tmp_path / "missing.png") == ""


def test_one_writer_makes_plain_tables_cards_and_shaded_matrices():
    plain = table("A <b>", ("", "n"), [["x", "1"]])
    assert "<caption>A &lt;b&gt;</caption>" in plain and "<td>1</td>" in plain
    cards = table("A", ("", "<i>n</i>"), {"8 shots": [["x", "1"]]}, cards=True)
    assert '<td data-head="n">1</td>' in cards and '<th scope="rowgroup" colspan="2">8 shots</th>' in cards
    matrix = table("A", ("", "x", "y"), [["x", "5", "·"]], shares=[[0.5, 0]])
    assert '<td style="background: rgb(0 114 178 / 0.30)">5</td><td>·</td>' in matrix
    assert '<p class="quiet">A.</p>' in matrix and "caption" not in matrix
