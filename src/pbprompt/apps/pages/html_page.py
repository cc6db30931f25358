"""The one writer of HTML: a page is a template of `templates/`, filled by jinja2, which does the escaping.

Only `Markup` is taken as it is: pictures and drawings, made here, and the marks of a table's best figures.
"""

import base64
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from pbprompt import __version__
from pbprompt.apps.pages import plots
from pbprompt.apps.pages.plots import Drawing
from pbprompt.errors import InputError
from pbprompt.files import as_text
from pbprompt.model.card import percent
from pbprompt.vision.images.images import encoded_image, small_jpeg
from pbprompt.vision.towers.loading.hub import EMBEDDED

LONGEST_SIDE = 144  # of a picture: twice the size it is shown at, for dense screens
NOT_CLIP = "The backbone {} is not CLIP: its figures are not comparable with those of papers on CLIP."
NO_FIGURES = "Figures are left out, since matplotlib is not installed: the extra `plots` brings it."


def page(template: str, **values: Any) -> str:
    """The HTML of a template; a value it names and is not given is an error."""
    return environment().get_template(template).render(values)


@cache
def environment() -> Environment:
    """Where templates are found, and what they may call."""
    here = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    here.globals |= {"picture": picture, "inline": inline, "version": __version__}
    here.filters |= {"svg": svg, "as_text": as_text, "percent": percent}
    return here


def notices(backbones: Iterable[str]) -> list[str]:
    """What a reader must know of figures made with these backbones, on this machine."""
    made_with = set(backbones)
    embedded = [NOT_CLIP.format(name) for name in EMBEDDED if name in made_with]
    return embedded + [NO_FIGURES] * (not plots.available())


def picture(file: Path, alt: str = "", side: int = LONGEST_SIDE) -> Markup:
    """The image, small and inside the page; nothing where it can no longer be read."""
    try:
        content = small_jpeg(file, side, quality=70)
    except InputError:
        return Markup()
    return _inside(content, alt)


def inline(image: Image.Image, alt: str) -> Markup:
    """A picture made here, as it is."""
    return _inside(encoded_image(image, "JPEG", quality=80), alt)


def _inside(jpeg: bytes, alt: str) -> Markup:
    content = base64.b64encode(jpeg).decode("ascii")
    return Markup('<img src="data:image/jpeg;base64,{}" alt="{}" loading="lazy">').format(content, alt)


def svg(drawing: Drawing) -> Markup:
    """The SVG inline, with ids of its own and its ink in the page's colour."""
    text = plots.render(drawing.figure, transparent=True).decode()
    text = text[text.index("<svg") :].replace(plots.INK, "currentColor")
    text = re.sub(r"<!--.*?-->| xmlns(:xlink)?=\"[^\"]*\"| version=\"1\.1\"", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{drawing.name}-", text)
    start = Markup('<svg role="img" aria-label="{}"').format(f"{drawing.caption} {drawing.description}")
    return start + Markup(text.removeprefix("<svg"))
