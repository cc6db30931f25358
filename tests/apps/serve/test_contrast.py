"""Colours of the pages are told apart as WCAG 2.2 (AA) asks for: text 4.5 to 1, the rest 3 to 1."""

import re
from importlib.resources import files

import pytest

CSS = files("pbprompt.apps.serve").joinpath("page", "style.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", CSS, re.S)
)
TEXT = [
    ("ink", "paper"),
    ("ink", "card"),
    ("quiet", "paper"),
    ("quiet", "card"),
    ("link", "paper"),
    ("mark", "mark-paper"),
    ("mark", "paper"),
    ("bad", "paper"),
]
SHAPES = [
    ("rule", "paper"),
    ("rule", "card"),
    ("bar", "track"),
    ("bar", "card"),
    ("spread", "bar"),
    ("spread", "track"),
]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_ratio_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # a grey known to fail by a hair


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_every_pair_can_be_told_apart(colours):
    ratios = {pair: contrast(*(colours[name] for name in pair)) for pair in TEXT + SHAPES}
    low = {pair: ratio for pair, ratio in ratios.items() if ratio < (4.5 if pair in TEXT else 3)}
    assert not low
    assert set(colours) == {name for pair in TEXT + SHAPES for name in pair}  # none is left unlooked at
