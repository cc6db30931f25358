"""The README's table against what people would use instead, from the study's summary."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.study.tables import NOT_RUN, number
from pbprompt import markdown
from pbprompt.errors import InputError
from pbprompt.files import write_text
from pbprompt.registry import find_method

BEGIN, END = "<!-- figures of the study: begin -->", "<!-- figures of the study: end -->"
COLUMNS = ("1 shot", "4 shots", "16 shots")
ROWS = {  # of the study: the method, and what a reader of the README calls it
    "conjugate": ("conjugate", "**`pbprompt fit`** (default)"),
    "logistic regression": ("linear-probe", "scikit-learn's logistic regression, C by cross-validation"),
    "LDA, tempered": ("linear-probe", "scikit-learn's LDA with shrinkage, tempered by folds"),
    "nearest mean, tempered": ("nearest-mean", "class mean, tempered by folds"),
    "ProKeR, searched, tempered": ("proker", "ProKeR, searched and tempered by left-out images"),
    "Tip-Adapter, searched, tempered": ("tip-adapter", "Tip-Adapter, likewise"),
    "zero-shot": ("zeroshot", "names alone, zero-shot"),
}


def readme_table(study: Mapping[str, Any]) -> str:
    """Accuracy / NLL / ECE, averaged over the study's datasets, and who takes a class by its name."""
    cells = study["parts"]["few-shot"]["cells"]

    def cell(row: str, column: str) -> str:
        found = cells.get(row, {}).get(f"average, {column}", {})
        metrics = ("accuracy", "nll", "ece")
        return " / ".join(number(name, found[name][0]) for name in metrics) if found else NOT_RUN

    rows = [
        [label, *(cell(row, column) for column in COLUMNS), "yes" if takes_names(method) else "no"]
        for row, (method, label) in ROWS.items()
    ]
    return markdown.table(["on the same features", *COLUMNS, "classes by name"], rows)


def takes_names(method: str) -> bool:
    """Whether it takes a class of which there is no image."""
    return bool(find_method(method).takes_new_names)


def write_readme(study: Mapping[str, Any], path: Path) -> None:
    """Replace what stands between the two comments."""
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise InputError(f"{path}: needs the comments {BEGIN} and {END} once each")
    before, rest = text.split(BEGIN)
    write_text(path, f"{before}{BEGIN}\n{readme_table(study)}\n{END}{rest.split(END)[1]}")
