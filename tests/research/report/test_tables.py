import csv
import io
from dataclasses import replace
from statistics import fmean, stdev

import numpy as np
import pytest
from rich.console import Console

from pbprompt.errors import InputError
from pbprompt.model.metrics.evaluation import harmonic_mean
from pbprompt.model.metrics.resampling import paired_average_difference
from pbprompt.research.recipes import MethodRow, Recipe, load_recipe
from pbprompt.research.report import render
from pbprompt.research.report.tables import build_table, title_of
from pbprompt.research.runs import BackboneFacts, DataFacts, RunRecord

ROWS = (MethodRow("PBPrompt", "pbprompt"), MethodRow("CoOp", "coop"), MethodRow("a_b & 50%", "zeroshot"))


def recipe(task="few-shot", **changes):
    values = {"backbone": "lite", "datasets": ("caltech101", "dtd"), "rows": ROWS, "shots": (1, 4)}
    return Recipe(**{"name": "own", "title": "Own", "task": task, **values, **changes})


def accuracy(config, test):
    """Made-up figures that differ by method, dataset, test, shots and seed."""
    order = {"pbprompt": 3, "coop": 2, "zeroshot": 0}[config.method]
    return 0.4 + 0.1 * order + 0.01 * config.shots + 0.003 * config.seed**2 + len(test + config.dataset) / 300


def record(config, backbone="lite"):
    names = {"base-to-new": ("base", "new", "joint")}.get(config.task, (config.dataset, *config.targets))
    results = {name: {"accuracy": accuracy(config, name)} for name in names}
    if config.task == "base-to-new":
        results["H"] = {"accuracy": harmonic_mean(accuracy(config, "base"), accuracy(config, "new"))}
    return RunRecord(
        id=f"{config.method}-{config.dataset}-{config.shots}-{config.seed}",
        config=config,
        settings={},
        data=DataFacts(config.dataset, "d", "e"),
        backbone=BackboneFacts(backbone, "f"),
        code="c",
        results=results,
        seconds=1.0,
    )


def records(of, backbone="lite"):
    return [record(config, backbone) for _, config in of.expand()]


def section(table, title):
    return next(section for section in table.sections if section.title == title)


def test_few_shot_has_a_section_a_dataset_and_a_column_a_number_of_shots():
    own = recipe()
    table = build_table(own, records(own))
    assert [part.title for part in table.sections] == ["Caltech101", "DTD", "Average"]
    assert section(table, "DTD").columns == ("1 shot", "4 shots")
    cell = section(table, "DTD").cells[1][1]
    runs = [config for label, config in own.narrowed(["dtd"], [4]).expand() if label == "CoOp"]
    figures = [100 * accuracy(config, "dtd") for config in runs]
    assert (cell.mean, cell.std, cell.seeds) == pytest.approx((fmean(figures), stdev(figures), 3))
    average = section(table, "Average").cells[1][1]
    both = [section(table, name).cells[1][1].mean for name in ("Caltech101", "DTD")]
    assert average.mean == pytest.approx(fmean(both))


def test_one_number_of_shots_makes_datasets_the_columns():
    own = recipe(shots=(4,))
    (only,) = build_table(own, records(own)).sections
    assert (only.title, only.columns) == ("4 shots", ("Caltech101", "DTD", "Average"))


def test_the_average_h_is_the_harmonic_mean_of_the_averages():
    own = recipe("base-to-new", shots=(16,))
    found = records(own)
    for one in found:
        if one.config.dataset == "dtd":
            one.results["new"]["accuracy"] /= 2
            one.results["H"]["accuracy"] = harmonic_mean(one.accuracy("base"), one.accuracy("new"))
    table = build_table(own, found)
    base, new, both, _ = section(table, "Average").cells[0]
    assert both.mean == pytest.approx(harmonic_mean(base.mean, new.mean))
    for part in table.sections:  # of the printed means, for a single dataset too
        for printed in part.cells:
            assert printed[2].mean == pytest.approx(harmonic_mean(printed[0].mean, printed[1].mean))
    plain = fmean(section(table, name).cells[0][2].mean for name in ("Caltech101", "DTD"))
    assert abs(both.mean - plain) > 0.1
    assert section(table, "DTD").columns == ("Base", "New", "H", "Joint")


def test_transfer_averages_the_targets_without_the_source():
    own = recipe("cross-dataset", datasets=("imagenet",), targets=("dtd", "oxford_pets"), shots=(16,))
    (only,) = build_table(own, records(own)).sections
    assert only.columns == ("ImageNet", "DTD", "OxfordPets", "Average")
    cells = only.cells[0]
    assert cells[3].mean == pytest.approx((cells[1].mean + cells[2].mean) / 2)


def test_what_stands_apart_is_shown_but_not_averaged_in():
    own = recipe("base-to-new", datasets=("caltech101", "oxford_pets", "dtd"), apart=("dtd",), shots=(16,))
    table = build_table(own, records(own))
    assert [part.title for part in table.sections] == ["Caltech101", "OxfordPets", "DTD", "Average"]
    counted = [section(table, name).cells[0][0].mean for name in ("Caltech101", "OxfordPets")]
    assert section(table, "Average").cells[0][0].mean == pytest.approx(fmean(counted))
    assert section(table, "DTD").cells[0][0].mean != pytest.approx(fmean(counted))


def test_missing_runs_leave_gaps_and_fewer_seeds():
    own = recipe(shots=(4,))
    some = [
        found
        for found in records(own)
        if found.config.dataset == "dtd" and (found.config.method, found.config.seed) != ("coop", 3)
    ]
    table = build_table(own, some)
    (only,) = table.sections
    assert [cell.seeds for cell in only.cells[1]] == [0, 2, 0]
    assert "| – |" in render.markdown(table) and "(2 seeds)" in render.markdown(table)


def test_runs_of_another_backbone_or_other_settings_do_not_count():
    own = recipe(shots=(4,))
    others = records(own, backbone="RN50")
    others += [replace(one, config=replace(one.config, overrides=("epochs=1",))) for one in records(own)]
    assert not any(cell.measured for row in build_table(own, others).sections[0].cells for cell in row)


def test_of_equal_settings_the_latest_record_counts():
    own = recipe(shots=(4,), datasets=("dtd",), seeds=(1,))
    found = records(own)
    later = record(own.expand()[0][1])
    later.results["dtd"]["accuracy"] = 0.125
    assert build_table(own, [*found, later]).sections[0].cells[0][0].mean == 12.5


def test_best_and_runner_up_are_marked_and_ties_share():
    own = recipe(shots=(4,), datasets=("dtd",), seeds=(1,))
    found = records(own)
    assert [row[0].rank for row in build_table(own, found).sections[0].cells] == [1, 2, 0]
    found[1].results["dtd"]["accuracy"] = found[0].accuracy("dtd") + 1e-6
    assert [row[0].rank for row in build_table(own, found).sections[0].cells] == [1, 1, 2]
    assert [row[0].rank for row in build_table(own, found[:1]).sections[0].cells] == [0, 0, 0]


def test_published_figures_stand_beside_the_papers_backbones_only():
    vit = recipe(backbone="ViT-B/16", published=("few_shot_vit",))
    table = build_table(vit, records(vit, "ViT-B/16"))
    cell = section(table, "DTD").cells[1][1]
    assert cell.published.value == 59.23
    assert cell.difference == pytest.approx(cell.mean - cell.published.value)
    lite = recipe(published=("few_shot_vit",))
    table = build_table(lite, records(lite))
    assert not any(c.published for part in table.sections for row in part.cells for c in row)
    assert not table.footnotes


def test_figures_on_the_validation_split_say_so_and_stand_beside_no_published_ones():
    vit = recipe(backbone="ViT-B/16", published=("few_shot_vit",))
    val = replace(vit, split="val")
    table = build_table(val, records(val, "ViT-B/16"))
    assert table.title == "Own (ViT-B/16, val)" and table.seeds == 3
    assert not any(c.published for part in table.sections for row in part.cells for c in row)
    assert not build_table(val, records(vit, "ViT-B/16")).seeds  # runs on test are others


def test_misprints_are_footnoted_where_they_show_and_differences_taken_from_the_right_figure():
    vit = recipe(backbone="ViT-B/16", published=("few_shot_vit",))
    table = build_table(vit, records(vit, "ViT-B/16"))
    cell = section(table, "Average").cells[1][1]
    assert cell.published.misprint and cell.published.value == 70.02
    assert cell.difference == pytest.approx(cell.mean - 72.98)
    assert table.footnotes == (
        "† CoOp, Average, accuracy, 4 shots: printed 70.02, should be 72.98: the mean of its datasets.",
    )
    assert "70.02†" in render.markdown(table)
    shown = recipe(backbone="ViT-B/16", published=("few_shot_vit",), shots=(1, 2))
    assert not build_table(shown, []).footnotes


def test_every_published_figure_of_the_papers_tables_finds_its_cell():
    for name, rows, count in (("few-shot-vit", 4, 240), ("base-to-new-rn50", 3, 108), ("lambda", 7, 84)):
        own = load_recipe(name)
        table = build_table(own, [])
        figures = {cell.published for part in table.sections for row in part.cells for cell in row}
        assert len({figure.method for figure in figures - {None}}) == rows
        # the λ table prints no averages, and Joint is ours alone
        assert len(figures - {None}) == count


def test_the_first_row_is_compared_on_the_same_images():
    own = recipe(shots=(4,), datasets=("dtd",), seeds=(1, 2), rows=ROWS[:2])
    found, source = records(own), np.random.default_rng(0)
    labels = source.integers(0, 3, 200)
    said = {
        one.id: {
            "dtd/label": labels,
            "dtd/predicted": np.where(source.random(200) < (0.9 if "pb" in one.id else 0.5), labels, 3),
        }
        for one in found
    }
    (only,) = build_table(own, found, said.__getitem__).sections
    hits = [
        np.array([said[f"{method}-dtd-4-{seed}"]["dtd/predicted"] == labels for seed in (1, 2)])
        for method in ("pbprompt", "coop")
    ]
    assert only.leads[0] == (None,)
    assert only.leads[1][0] == paired_average_difference(*[[[side]] for side in hits])
    assert only.leads[1][0].difference == pytest.approx(hits[0].mean() - hits[1].mean())
    said["coop-dtd-4-1"]["dtd/label"] = labels[::-1]
    assert build_table(own, found, said.__getitem__).sections[0].leads[1] == (None,)


def test_missing_arrays_are_said_and_do_not_stop_the_table():
    own = recipe(shots=(4,), datasets=("dtd",), seeds=(1,))

    def missing(identity):
        raise InputError(f"{identity}: gone")

    table = build_table(own, records(own), missing)
    assert any("gone" in note for note in table.footnotes) and table.sections[0].cells[0][0].measured


def test_latex_escapes_and_marks():
    own = recipe(shots=(4,))
    text = render.latex(build_table(replace(own, title="a\n\\input{x}"), records(own)))
    assert text.startswith("% a \\input{x} (lite)\n") and render.latex_escaped("a\nb") == "a b"
    assert r"a\_b \& 50\%" in text and r"\textbf{" in text and r"\underline{" in text
    assert r"$\pm$" in text and "±" not in text
    assert text.count(r"\begin{tabular}{lrrr}") == text.count(r"\end{tabular}") == 1
    assert render.latex_escaped("\\{^}~#$<λ>") == (
        r"\textbackslash{}\{\textasciicircum{}\}\textasciitilde{}\#\$\textless{}$\lambda$\textgreater{}"
    )


def test_markdown_escapes_pipes():
    own = recipe(shots=(4,), rows=(MethodRow("a|b", "coop"), MethodRow("c*d", "zeroshot")))
    lines = render.markdown(build_table(own, records(own))).splitlines()
    assert any(line.startswith("| a\\|b | **") for line in lines) and any("c\\*d" in line for line in lines)


def test_csv_has_a_line_a_cell():
    own = recipe(backbone="ViT-B/16", published=("few_shot_vit",))
    table = build_table(own, records(own, "ViT-B/16"))
    lines = list(csv.DictReader(io.StringIO(render.csv_text(table))))
    assert len(lines) == 3 * 3 * 2
    line = next(x for x in lines if (x["section"], x["row"], x["column"]) == ("Average", "CoOp", "4 shots"))
    cell = section(table, "Average").cells[1][1]
    assert float(line["mean"]) == cell.mean and float(line["published"]) == 70.02
    assert (line["misprint"], line["seeds"], line["rank"]) == ("yes", "3", "2")


def test_the_terminal_shows_all_of_it():
    own = recipe(shots=(4,), rows=(MethodRow("[bold]x", "coop"), ROWS[0]))
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(render.terminal(build_table(own, records(own))))
    text = console.export_text()
    assert "[bold]x" in text and "over 3 seeds" in text and "Caltech101" in text


def test_names_of_datasets():
    assert title_of("oxford_pets") == "OxfordPets"
    assert title_of("pacs:art_painting") == "PACS art painting"
    assert title_of("my-folder") == "my-folder"


@pytest.mark.parametrize("datasets", [("dtd",), ("dtd", "eurosat")])
def test_h_has_an_interval_of_both_halves_and_so_has_its_average(datasets):
    own = recipe("base-to-new", datasets=datasets, shots=(16,), rows=ROWS[:2])
    found, generator = records(own), np.random.default_rng(0)
    said = {}
    for one in found:
        said[one.id] = {}
        for half in ("base", "new", "joint"):
            said[one.id][f"{half}/label"] = np.zeros(60, dtype=np.int32)
            said[one.id][f"{half}/predicted"] = generator.integers(0, 3, 60)

    def right(name, half, dataset):
        own = [one.id for one in found if (one.config.method, one.config.dataset) == (name, dataset)]
        return np.array([said[identity][f"{half}/predicted"] == 0 for identity in own])

    last = build_table(own, found, said.__getitem__).sections[-1]
    assert last.title == ("DTD" if len(datasets) == 1 else "Average")
    sides = [
        [[right(name, half, dataset) for dataset in datasets] for half in ("base", "new")]
        for name in ("pbprompt", "coop")
    ]
    assert last.leads[1][2] == paired_average_difference(*sides)
    base = [[halves[0]] for halves in sides]
    assert last.leads[1][0] == paired_average_difference(*base)


def test_an_average_without_all_its_runs_is_not_compared():
    own = recipe("base-to-new", datasets=("dtd", "eurosat"), shots=(16,), rows=ROWS[:2])
    found = [one for one in records(own) if (one.config.method, one.config.dataset) != ("coop", "eurosat")]
    said = {
        half + key: np.zeros(9, int) for half in ("base", "new", "joint") for key in ("/label", "/predicted")
    }
    dtd, eurosat, average = build_table(own, found, lambda identity: said).sections
    assert all(dtd.leads[1]) and not any(eurosat.leads[1]) and not any(average.leads[1])


def test_runs_of_two_codes_are_not_averaged():
    own = recipe(shots=(4,), datasets=("dtd",), seeds=(1, 2), rows=ROWS[:2])
    found = records(own)
    first, *others = [one for one in found if one.config.method == "coop"]
    old = replace(first, code="other")
    table = build_table(own, [old, *(one for one in found if one is not first)])
    coop = table.sections[0].cells[1][0]
    assert coop.seeds == len(others) == 1 and table.sections[0].cells[0][0].seeds == 2
    assert any("1 runs of other code" in note for note in table.footnotes)
    assert not any("other code" in note for note in build_table(own, [old, *found]).footnotes)
