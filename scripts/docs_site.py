"""Links from docs/ to other files of the repository lead to copies of them on the site."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?:\.\./)+[^)\s#]+")


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """`../examples/demo.py` in docs/faq.md becomes `repository/examples/demo.py`, a copy that is added."""
    docs = Path(config.docs_dir)
    here = (docs / page.file.src_uri).parent

    def inside(match: re.Match[str]) -> str:
        target = (here / match[0]).resolve()
        if target.is_relative_to(docs) or not target.is_file():
            return match[0]
        copy = f"repository/{target.relative_to(ROOT).as_posix()}"
        copy += ".txt" if target.suffix == ".md" else ""  # else mkdocs would make a page of it
        if files.get_file_from_path(copy) is None:
            files.append(File.generated(config, copy, abs_src_path=str(target)))
        return "../" * page.file.src_uri.count("/") + copy

    return LINK.sub(inside, text)
