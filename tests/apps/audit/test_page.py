"""The page is one file that shows what was found, whatever the names are."""

import re
from dataclasses import replace

from pbprompt.apps.audit.page import headline, write_page
from pbprompt.apps.pages.html_page import LONGEST_SIDE, picture


def test_it_needs_nothing_besides_itself(found, tmp_path):
    write_page(found, tmp_path / "look.html")
    page = (tmp_path / "look.html").read_text(encoding="utf-8")
    assert headline(found) in page and "width=device-width" in page
    for part in ("Classes", "Likely label errors", "Duplicates", "Unreadable files"):
        assert f"<h2>{part}</h2>" in page
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(sources) >= 5
    assert all(source.startswith(("data:image/jpeg;base64,", "#part-")) for source in sources)
    assert "wrong.webp" in page and "two labels: building, mammal" in page and "in train and test" in page


def test_names_are_only_names(found, tmp_path):
    nasty = "<script>alert(1)</script>"
    images = tuple(replace(image, path=f"{nasty}/{image.path}") for image in found.images)
    unreadable = ((nasty, nasty),)
    hostile = replace(
        found, name=nasty, classes=(nasty, *found.classes[1:]), images=images, unreadable=unreadable
    )
    write_page(hostile, tmp_path / "look.html")
    page = (tmp_path / "look.html").read_text(encoding="utf-8")
    assert page.count("<script") == 1 and nasty not in page and "&lt;script&gt;" in page


def test_thumbnails_are_small(found):
    shown = picture(found.root / found.images[0].path)
    assert shown.startswith('<img src="data:image/jpeg') and len(shown) < 12_000 and LONGEST_SIDE < 200
    assert picture(found.root / "train/clock/torn.jpg") == ""
