"""What the pages share."""

import base64
import io
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from PIL import Image

import pbprompt
from pbprompt.apps.pages.html_page import LONGEST_SIDE, environment, page, picture


def test_a_picture_is_made_small_and_one_that_cannot_be_read_is_left_out(tmp_path):
    Image.new("RGB", (900, 300)).save(tmp_path / "wide.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    head, content = picture(tmp_path / "wide.png", '"wide"').split('"')[1].split(",")
    image = Image.open(io.BytesIO(base64.b64decode(content)))
    assert head == "data:image/jpeg;base64" and image.size == (LONGEST_SIDE, LONGEST_SIDE // 3)
    assert 'alt="&#34;wide&#34;"' in picture(tmp_path / "wide.png", '"wide"')
    assert picture(tmp_path / "broken.png") == picture(tmp_path / "missing.png") == ""


def test_a_page_is_not_written_without_a_value_that_it_names():
    with pytest.raises(UndefinedError, match="'title' is undefined"):
        page("page.html", parts=[])
    assert "<title>&lt;b&gt;</title>" in page("page.html", title="<b>", parts=[])


def test_nothing_escapes_by_hand():
    for path in Path(pbprompt.__file__).parent.rglob("*.py"):
        assert "from html import" not in path.read_text(encoding="utf-8"), path


def test_one_writer_makes_plain_tables_cards_and_shaded_matrices():
    table = environment().get_template("parts.html").module.table
    plain = table("A <b>", ("", "n"), [["x", "1"]])
    assert "<caption>A &lt;b&gt;</caption>" in plain and "<td>1</td>" in plain
    cards = table("A", ("", "n"), {"8 shots": [["x", "1"]]}, cards=True)
    assert '<td data-head="n">1</td>' in cards and '<th scope="rowgroup" colspan="2">8 shots</th>' in cards
    matrix = table("A", ("", "x", "y"), [["x", "5", "·"]], shares=[[0.5, 0]])
    assert '<td style="background: rgb(0 114 178 / 0.30)">5</td><td>·</td>' in matrix
    assert '<p class="quiet">A.</p>' in matrix and "caption" not in matrix
