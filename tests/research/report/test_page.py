"""The page: what it says of a store, that it is whole in itself, and that no name is taken as markup."""

import re
import sys
from html.parser import HTMLParser
from statistics import fmean, stdev

import numpy as np
import pytest

from pbprompt.errors import InputError
from pbprompt.research.recipes import MethodRow, Recipe
from pbprompt.research.report.page import write_page
from pbprompt.research.runs import BackboneFacts, DataFacts, Failure, RunConfig, RunRecord, RunStore

VOID = {"meta", "br", "path", "use"}
HOSTILE = "<script>alert('x')</script> & \"$\\q$"


class Page(HTMLParser):
    """A page's texts by element, its attributes, and a check that every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.cells, self.attributes = [], [], [], []
        self.text = text
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag not in VOID or self.get_starttag_text().endswith("/>"):
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("th", "td"):
            self.cells[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.cells[-1][-1] += data

    def values(self, name):
        return [value for _, key, value in self.attributes if key == name]


class Runs:
    """A store that made-up runs are added to."""

    def __init__(self, folder):
        self.store = RunStore(folder)
        self.count = 0

    def add(self, accuracy=0.5, backbone="ViT-B/16", keep_arrays=True, settings=None, code="c", **config):
        run = RunConfig(**{"task": "few-shot", "dataset": "sample", **config})
        tests = ["base", "new", "joint"] if run.task == "base-to-new" else [run.dataset, *run.targets]
        figures = {"macro_f1": 0.4, "nll": 1.25, "brier": 0.6, "ece": 0.1, "aurc": 0.3, "images": 40}
        results = {test: {"accuracy": accuracy, **figures} for test in tests}
        if run.task == "base-to-new":
            results["H"] = {"accuracy": accuracy}
        self.count += 1
        generator = np.random.default_rng(self.count)
        arrays = {}
        for test in tests:
            arrays[f"{test}/confidence"] = generator.uniform(0.2, 1, 40).astype(np.float32)
            arrays[f"{test}/label"] = generator.integers(0, 5, 40).astype(np.int32)
            arrays[f"{test}/predicted"] = generator.integers(0, 5, 40).astype(np.int32)
        record = RunRecord(
            id=f"run{self.count}",
            config=run,
            settings=settings or {},
            data=DataFacts(run.dataset, "d", "e"),
            backbone=BackboneFacts(backbone, "0123456789abcdef"),
            code=code,
            library="0.1.0",
            results=results,
            seconds=3.0,
        )
        self.store.add(record, arrays if keep_arrays else None)

    def page(self, recipes=()):
        out = self.store.folder.parent / "page.html"
        write_page(self.store, out, recipes)
        return Page(out.read_text(encoding="utf-8"))


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "runs")


def rows(page, first):
    return [cells for cells in page.cells if cells[0] == first]


def test_mean_and_deviation_of_every_method_and_shots_with_the_best_marked(runs):
    scores = {("coop", 1): [0.4, 0.5], ("coop", 4): [0.6, 0.7], ("zeroshot", 1): [0.3, 0.3]}
    for (method, shots), values in scores.items():
        for seed, value in enumerate(values, start=1):
            runs.add(value, method=method, shots=shots, seed=seed)
    page = runs.page()
    printed = {("coop", 1): 0, ("zeroshot", 1): 0, ("coop", 4): 1}
    for (method, shots), place in printed.items():
        values = [100 * value for value in scores[method, shots]]
        wanted = [method, "2", f"{fmean(values):.2f} ± {stdev(values):.2f}"]
        label, seeds, _, accuracy, *_ = rows(page, method)[place]
        assert [label, seeds, accuracy] == wanted
    assert "<strong>45.00 ± 7.07</strong>" in page.text
    assert "<strong>30.00" not in page.text and "<strong>65.00" not in page.text  # alone: nothing to mark
    assert rows(page, "1 shot") and rows(page, "4 shots")


def test_different_epochs_are_told(runs):
    """A difference between two methods may be one of their training."""
    runs.add(method="coop", settings={"epochs": 50})
    assert "different numbers of epochs" not in runs.page().text
    runs.add(method="pbprompt", settings={"epochs": 60})
    runs.add(method="plot", settings={"epochs": 0})
    runs.add(method="conjugate", settings={"epochs": 0})
    runs.add(method="zeroshot")
    page = runs.page()
    assert "different numbers of epochs" in page.text
    told = {name: rows(page, name)[0][2] for name in ("coop", "pbprompt", "plot", "conjugate", "zeroshot")}
    assert told == {
        "coop": "50",
        "pbprompt": "60",
        "plot": "its own",
        "conjugate": "none",
        "zeroshot": "none",
    }


def test_one_shot_is_one_shot(runs):
    for shots in (1, 1):
        runs.add(method="coop", shots=shots)
    assert "1 shots" not in runs.page().text


def test_a_cell_says_its_column_where_a_row_is_a_card(runs):
    """On a phone a table as wide as this would be cut: there each cell has its head beside it."""
    runs.add(method="coop")
    page = runs.page()
    heads = re.findall(r'data-head="([^"]*)"', page.text)
    assert heads[:2] == ["Seeds", "Epochs"] and "Accuracy %\N{NO-BREAK SPACE}↑" in heads
    assert page.text.count("<td ") == len(heads) == page.tags.count("td")
    assert "content: attr(data-head)" in page.text and "max-width: 44rem" in page.text


def test_tables_name_their_rows_and_columns(runs):
    runs.add(method="coop")
    page = runs.page()
    assert {"col", "row", "rowgroup"} == set(page.values("scope"))
    assert page.tags.count("caption") == page.tags.count("table") == 1


@pytest.mark.parametrize("task", ["few-shot", "base-to-new", "cross-dataset", "domain-shift"])
def test_every_task(runs, task):
    targets = ("dtd", "eurosat") if task in ("cross-dataset", "domain-shift") else ()
    for shots in (1, 4):
        runs.add(0.25 * shots / 4, task=task, targets=targets, method="coop", shots=shots)
    page = runs.page()
    assert f"{task[0].upper()}{task[1:]} on sample, ViT-B/16" in page.text
    wanted = {"few-shot": ["Accuracy %"], "base-to-new": ["Base %", "New %", "H %", "Joint %"]}
    heads = [head.partition("\N{NO-BREAK SPACE}")[0] for head in page.cells[0]]
    for head in wanted.get(task, ["sample %", "dtd %", "eurosat %", "Mean of targets %"]):
        assert rows(page, "coop")[1][heads.index(head)] == "25.00"
    tests = 2 if task == "base-to-new" else 1
    assert page.tags.count("svg") == 1 + 2 * tests  # shots; risk-coverage and reliability for each test set
    assert "25.0 at 4" in page.text  # the curve in words


def test_runs_on_the_validation_split_are_a_comparison_of_their_own(runs):
    runs.add(0.4, method="coop")
    runs.add(0.8, method="coop", split="val")
    page = runs.page()
    assert "<h2>Few-shot on sample, ViT-B/16</h2>" in page.text
    assert "<h2>Few-shot on sample, val, ViT-B/16</h2>" in page.text
    assert [cells[3] for cells in rows(page, "coop")] == ["40.00", "80.00"]


def test_the_page_is_whole_in_itself(runs):
    for seed in (1, 2):
        runs.add(method="coop", seed=seed)
        runs.add(method="coop", task="base-to-new", seed=seed)
    page = runs.page()
    assert "http" not in page.text
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    references = [*page.values("href"), *page.values("xlink:href"), *re.findall(r"url\(([^)]*)\)", page.text)]
    assert references and {reference.removeprefix("#") for reference in references} <= set(ids)
    assert page.tags.count("svg") == page.values("role").count("img") == 6
    assert all(label for label in page.values("aria-label"))


def test_the_same_store_gives_the_same_page(runs):
    runs.add(method="coop")
    assert runs.page().text == runs.page().text
    assert sorted(path.name for path in runs.store.folder.parent.iterdir()) == ["page.html", "runs"]


def test_hostile_names_are_only_text(runs):
    for shots in (1, 2):
        runs.add(method=HOSTILE, dataset=HOSTILE, backbone=HOSTILE, variant='" onload="x', shots=shots)
    runs.store.fail(Failure("f", RunConfig(task="few-shot", dataset=HOSTILE, method=HOSTILE), HOSTILE))
    page = runs.page()
    assert "script" not in page.tags and "onload" not in {key for _, key, _ in page.attributes}
    assert rows(page, f'{HOSTILE}, " onload="x')
    assert page.tags.count("svg") == 3


def test_failures_are_folded_with_the_last_traceback(runs):
    config = RunConfig(task="few-shot", dataset="sample", method="coop", shots=2, seed=3)
    for text in ("Traceback\nValueError: earlier", "Traceback\n  File <x>\nValueError: <second>"):
        runs.store.fail(Failure("f", config, text))
    page = runs.page()
    assert page.tags.count("details") == 1 and "earlier" not in page.text
    assert "few-shot on sample: coop, 2 shots, seed 3, tried 2 times" in page.text
    assert "<code>ValueError: &lt;second&gt;</code>" in page.text and "  File &lt;x&gt;" in page.text


def test_lite_is_not_clip(runs):
    runs.add(method="coop")
    assert "not CLIP" not in runs.page().text
    runs.add(method="coop", backbone="lite-vit")
    assert "The backbone lite-vit is not CLIP" in runs.page().text
    assert "The backbone lite is" not in runs.page().text
    runs.add(method="coop", backbone="lite")
    assert "The backbone lite is not CLIP" in runs.page().text


def test_what_was_run(runs):
    runs.add(method="coop", seed=2)
    runs.add(method="pbprompt", seed=1)
    text = runs.page().text
    for fact in (
        "2 finished in 0:00:06",
        "ViT-B/16 (0123456789ab)",
        "coop, pbprompt",
        "1, 2",
        "pbprompt 0.1.0",
    ):
        assert f"<dd>{fact}" in text
    assert "Commit" not in text


def test_a_setting_that_varies_is_drawn(runs):
    for weight in (0.1, 1.0, 10.0):
        knobs = {"epochs": 5, "ct_weight": weight}
        runs.add(0.5 + weight / 100, method="pbprompt", overrides=(f"ct_weight={weight}",), settings=knobs)
    text = runs.page().text
    assert "Accuracy against η (ct_weight)" in text
    assert "pbprompt, 16 shots: 50.1 at 0.1, 51.0 at 1, 60.0 at 10." in text
    assert "against epochs" not in text


def test_recipes_name_the_rows_of_their_own_backbone_and_add_their_table(runs):
    row = MethodRow("Our method", "pbprompt", overrides=("epochs=3",))
    recipe = Recipe("r", "A table", "few-shot", "lite", ("sample",), (row,), shots=(4,), seeds=(1,))
    runs.add(0.5, method="pbprompt", overrides=("epochs=3",), shots=4, backbone="ViT-B/16")
    page = runs.page([recipe])
    assert not rows(page, "Our method") and rows(page, "pbprompt, epochs=3") and "A table" not in page.text
    runs.add(0.75, method="pbprompt", overrides=("epochs=3",), shots=4, backbone="lite")
    page = runs.page([recipe])
    assert [cells[1] for cells in rows(page, "Our method")] == ["75.00", "1"]  # the recipe's table; ours
    assert "A table (lite)" in page.text


def test_a_base_to_new_table_has_bars_of_h_with_the_papers_beside_them(runs):
    rows_of_it = (MethodRow("PBPrompt", "pbprompt"), MethodRow("CoOp", "coop"))
    recipe = Recipe(
        "r",
        "Base",
        "base-to-new",
        "ViT-B/16",
        ("dtd",),
        rows_of_it,
        seeds=(1, 2),
        published=("base_to_new_vit",),
    )
    for seed, accuracy in ((1, 0.5), (2, 0.6)):
        runs.add(accuracy, task="base-to-new", dataset="dtd", method="pbprompt", seed=seed)
    folder = runs.store.folder.parent / "figures"
    write_page(runs.store, runs.store.folder.parent / "page.html", [recipe], folder)
    assert (folder / "r-h.svg").is_file()
    text = runs.page([recipe]).text
    assert "one sample standard deviation (÷ (n − 1)) over seeds; diamonds: the paper&#39;s figures." in text
    assert "H in per cent. DTD: PBPrompt 55.0." in text  # and CoOp has no run


def test_older_code_does_not_enter_the_mean(runs):
    runs.add(0.1, method="coop", seed=1, code="old")
    runs.add(0.1, method="coop", seed=2, code="old")
    runs.add(0.6, method="coop", seed=1, code="new")
    page = runs.page()
    assert rows(page, "coop")[0][1:4:2] == ["1", "60.00"]
    assert "2 older runs were made with other code" in page.text


def test_runs_without_arrays_keep_their_figures(runs):
    runs.add(method="coop", keep_arrays=False)
    page = runs.page()
    assert rows(page, "coop") and "svg" not in page.tags


def test_without_matplotlib(runs, monkeypatch):
    runs.add(method="coop")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = runs.page()
    assert "svg" not in page.tags and rows(page, "coop")
    assert "the extra `plots` brings it" in page.text


def test_nothing_to_show(runs, tmp_path):
    with pytest.raises(InputError, match="runs: no such folder"):
        runs.page()
    runs.store.folder.mkdir()
    with pytest.raises(InputError, match="runs: no runs in it"):
        runs.page()
    assert not (tmp_path / "page.html").exists()


def test_a_record_of_another_version(runs):
    runs.store.folder.mkdir()
    runs.store.lines.write_text('{"id": "abc", "config": {"task": "few-shot", "dataset": "sample"}}')
    with pytest.raises(InputError, match=r"records\.jsonl: run abc: field 'settings' is missing"):
        runs.page()
