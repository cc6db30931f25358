"""What the HTML pages share: a document that needs nothing besides itself, contents, facts and figures."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

from pbprompt import __version__
from pbprompt.report import plots
from pbprompt.report.figures import Drawing


def document(title: str, parts: Mapping[str, str], style: str = "") -> str:
    """A page of sections (name -> HTML), the first of which the contents leave out: it comes right below."""
    css = (files("pbprompt.report") / "page.css").read_text(encoding="utf-8") + style
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(shortened(title))}</title>",
            f"<style>\n{css}</style></head>",
            f"<body>\n<header><h1>{escape(shortened(title))}</h1></header>",
            _contents(list(parts)[1:]),
            "<main>",
            *(
                f'<section id="part-{n}"><h2>{escape(name)}</h2>\n{body}\n</section>'
                for n, (name, body) in enumerate(parts.items())
            ),
            f'</main>\n<footer class="quiet"><p>Written by pbprompt {escape(__version__)}.</p></footer>',
            "</body>\n</html>\n",
        ]
    )


def facts_list(facts: Mapping[str, str], notices: Sequence[str] = ()) -> str:
    """Names and texts, those without a text left out, and sentences that must not be missed."""
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    boxes = (f'<p class="notice" role="note">{escape(notice)}</p>' for notice in notices)
    return "\n".join([f"<dl>{''.join(rows)}</dl>", *boxes])


def figures_html(drawings: Sequence[Drawing]) -> Iterator[str]:
    """The large ones, then the small ones."""
    for small in (False, True):
        if shown := [drawing for drawing in drawings if drawing.small is small]:
            yield f'<div class="figures">{"".join(map(_figure, shown))}</div>'


def shortened(text: str, most: int = 120) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


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
