"""What HTML pages share: a document that needs nothing besides itself, facts, tables, figures, pictures."""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from pbprompt import __version__
from pbprompt.clip.loading.hub import EMBEDDED
from pbprompt.data.images import small_jpeg
from pbprompt.errors import InputError
from pbprompt.report import plots
from pbprompt.report.plots import Drawing

LONGEST_TITLE = 120
LONGEST_SIDE = 144  # of a picture: twice the size it is shown at, for dense screens
NOT_CLIP = "The backbone {} is not CLIP: its figures are not comparable with those of papers on CLIP."
NO_FIGURES = "Figures are left out, since matplotlib is not installed: the extra `plots` brings it."

_TAG = re.compile("<[^>]*>")
Rows = Sequence[Sequence[str]]


def document(title: str, parts: Mapping[str, str], style: str = "") -> str:
    """A page of sections (name -> HTML), the first of which the contents leave out: it comes right below.

    A section without HTML is left out.
    """
    shown = {name: body for name, body in parts.items() if body}
    sections = (
        f'<section id="part-{n}"><h2>{escape(name)}</h2>\n{body}\n</section>'
        for n, (name, body) in enumerate(shown.items())
    )
    page, css = (
        (files("pbprompt.report") / name).read_text(encoding="utf-8") for name in ("page.html", "page.css")
    )
    return Template(page).substitute(
        title=escape(title if len(title) <= LONGEST_TITLE else title[: LONGEST_TITLE - 1] + "…"),
        style=css + style,
        contents=_contents(list(shown)[1:]),
        sections="\n".join(sections),
        version=escape(__version__),
    )


def facts_list(facts: Mapping[str, str], notices: Sequence[str] = ()) -> str:
    """Names and texts, those without a text left out, and sentences that must not be missed."""
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    boxes = (f'<p class="notice" role="note">{escape(notice)}</p>' for notice in notices)
    return "\n".join([f"<dl>{''.join(rows)}</dl>", *boxes])


def notices(backbones: Iterable[str]) -> list[str]:
    """What a reader must know of figures made with these backbones, on this machine."""
    made_with = set(backbones)
    embedded = [NOT_CLIP.format(name) for name in EMBEDDED if name in made_with]
    return embedded + [NO_FIGURES] * (not plots.available())


def table(
    caption: str,
    heads: Sequence[str],
    rows: Rows | Mapping[str, Rows],
    *,
    cards: bool = False,
    shares: Sequence[Sequence[float]] = (),
) -> str:
    """Cells (HTML) as a table, the first of a row as its head; rows by group start with a row that says it.

    `cards`: on a narrow screen a row is a card, each cell beside its head. `shares` (of 1) shade the cells of
    a matrix, whose caption stands above it, since it may be narrower.
    """
    label = escape(caption)
    lines = [f'<p class="quiet">{label}.</p>'] if shares else []
    classes = "wide cards" if cards else "wide matrix" if shares else "wide"
    lines.append(f'<div class="{classes}" role="region" aria-label="{label}" tabindex="0"><table>')
    lines += [] if shares else [f"<caption>{label}</caption>"]
    lines.append("<thead><tr>" + "".join(f'<th scope="col">{head}</th>' for head in heads) + "</tr></thead>")
    for group, body in rows.items() if isinstance(rows, Mapping) else [("", rows)]:
        lines.append("<tbody>")
        if group:
            lines.append(f'<tr><th scope="rowgroup" colspan="{len(heads)}">{group}</th></tr>')
        for place, (first, *cells) in enumerate(body):
            marks = [""] * len(cells)
            if cards:
                marks = [f' data-head="{_TAG.sub("", head)}"' for head in heads[1:]]
            elif shares:  # text stays readable on the lighter part of the scale
                marks = [
                    f' style="background: rgb(0 114 178 / {0.6 * share:.2f})"' if share else ""
                    for share in shares[place]
                ]
            data = "".join(f"<td{mark}>{cell}</td>" for mark, cell in zip(marks, cells, strict=True))
            lines.append(f'<tr><th scope="row">{first}</th>{data}</tr>')
        lines.append("</tbody>")
    return "\n".join([*lines, "</table></div>"])


def picture(file: Path, alt: str = "", side: int = LONGEST_SIDE) -> str:
    """The image, small and inside the page; nothing where it can no longer be read."""
    try:
        content = base64.b64encode(small_jpeg(file, side, quality=70)).decode("ascii")
    except InputError:
        return ""
    return f'<img src="data:image/jpeg;base64,{content}" alt="{escape(alt)}" loading="lazy">'


def figures_html(drawings: Sequence[Drawing]) -> Iterator[str]:
    """The large ones, then the small ones."""
    for small in (False, True):
        if shown := [drawing for drawing in drawings if drawing.small is small]:
            yield f'<div class="figures">{"".join(map(_figure, shown))}</div>'


def _contents(names: Sequence[str]) -> str:
    links = (f'<li><a href="#part-{n}">{escape(name)}</a></li>' for n, name in enumerate(names, start=1))
    return f'<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>' if len(names) > 1 else ""


def _figure(drawing: Drawing) -> str:
    """The SVG inline, with ids of its own and its ink in the page's colour."""
    svg = plots.render(drawing.figure, transparent=True).decode()
    svg = svg[svg.index("<svg") :].replace(plots.INK, "currentColor")
    svg = re.sub(r"<!--.*?-->| xmlns(:xlink)?=\"[^\"]*\"| version=\"1\.1\"", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{drawing.name}-", svg)
    label = escape(f"{drawing.caption} {drawing.description}")
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    kind = ' class="small"' if drawing.small else ""
    return f"<figure{kind}>{svg}<figcaption>{escape(drawing.caption)}</figcaption></figure>\n"
