"""Write docs/licences.md: the licence of everything that pbprompt can install, as the packages say.

python scripts/licences.py            # in an environment with the extra `dev`
"""

import re
from importlib.metadata import Distribution
from pathlib import Path

from installed import PACKAGE, needed, said

from pbprompt import markdown

PAGE = Path(__file__).parents[1] / "docs" / "licences.md"
EXTRAS = ("serve", "onnx", "plots", "ray", "slurm", "parquet", "siglip", "remote", "docs", "dev")
UNKNOWN = "not said"
INTRODUCTION = """# Licences of dependencies

For those who deploy a model: the licence of everything that is installed with the package.

What `pip install pbprompt` brings with it, and what the extras add, directly or through others, each with \
the licence that its own metadata name. Written by `make lock` in the environment of the tests, on Linux: on \
other systems, and with torch for a GPU, some more come; the extras `hf`, `track`, `s3`, `gs` and `timm` are \
not in that one. What is embedded in the package itself is in `THIRD_PARTY_NOTICES.md`.

"""


def licence(of: Distribution) -> str:
    """An SPDX expression where there is one, else the licence classifiers, else a short free text."""
    if expression := said(of, "License-Expression"):
        return expression
    classifiers = [
        text.rsplit(" :: ", 1)[1]
        for text in of.metadata.get_all("Classifier") or ()
        if text.startswith("License :: ") and text.count(" :: ") > 1
    ]
    if classifiers:
        return ", ".join(classifiers)
    text = said(of, "License").strip()
    first = text.splitlines()[0].strip() if text else ""
    return first if re.fullmatch(r".{2,60}", first) else UNKNOWN


def rows() -> list[list[str]]:
    """Name, licence, and whether the package itself or which extra first brings it."""
    found: dict[str, list[str]] = {}
    for extra in ("", *EXTRAS):
        for name, distribution in needed(frozenset({extra} - {""})).items():
            found.setdefault(name, [name, licence(distribution), extra or PACKAGE])
    return [found[name] for name in sorted(found)]


def main() -> None:
    table = markdown.table(["package", "licence", "comes with"], rows())
    PAGE.write_text(f"{INTRODUCTION}{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
