"""The paper's figures are all there; what cannot be right among them, by recomputing all means and H."""

from collections import Counter, defaultdict
from statistics import fmean

import pytest

from pbprompt.errors import InputError
from pbprompt.model.metrics.evaluation import harmonic_mean
from pbprompt.research.report.published import AVERAGE, figures, published, tables


def value(table, method, dataset, metric="accuracy", shots=16):
    (found,) = [
        figure.value
        for figure in published(table)
        if (figure.method, figure.dataset, figure.metric, figure.shots) == (method, dataset, metric, shots)
    ]
    return found


def test_all_figures_are_there():
    assert sum(len(published(table)) for table in tables()) == 1394
    assert value("base_to_new_vit", "PBPrompt", AVERAGE, "H") == 77.86
    costs = [f.value for f in published("computation_cost") if f.metric == "parameters" and f.shots is None]
    assert 1577984 in costs


def test_an_unknown_table_is_an_error():
    with pytest.raises(InputError, match=r"no table 'few_shot': it has .*few_shot_vit"):
        published("few_shot")


def test_the_papers_average_h_is_that_of_the_averages():
    for table in ("base_to_new_vit", "base_to_new_rn50"):
        for method in {figure.method for figure in published(table)}:
            base, new, both = (value(table, method, AVERAGE, metric) for metric in ("Base", "New", "H"))
            assert both == pytest.approx(harmonic_mean(base, new), abs=0.02)


FOUND = [
    ("few_shot_vit", "CoOp", AVERAGE, "accuracy", 4, 70.02, 72.98),
    ("few_shot_vit", "CoOp", AVERAGE, "accuracy", 8, 76.36, 76.39),
    ("few_shot_vit", "CoOp", AVERAGE, "accuracy", 16, 78.92, 78.94),
    ("few_shot_vit", "PLOT", AVERAGE, "accuracy", 4, 67.69, 67.72),
    ("few_shot_rn50", "CoOp", AVERAGE, "accuracy", 2, 61.51, 61.78),
    ("base_to_new_vit", "CoOp+VPT", "OxfordPets", "H", 16, 96.61, 94.17),
    ("base_to_new_vit", "CoOp+SHIP", "Food101", "H", 16, 90.87, 90.78),
    ("base_to_new_vit", "CoOp+SHIP", AVERAGE, "Base", 16, 80.03, 79.74),
    ("base_to_new_vit", "CoOp+SHIP", AVERAGE, "New", 16, 73.69, 73.32),
    ("base_to_new_rn50", "CoCoOp", "OxfordPets", "H", 16, 92.44, 93.44),
    ("base_to_new_rn50", "PBPrompt", AVERAGE, "New", 16, 69.4, 69.59),
    ("base_to_new_variants", "VPT", "Flowers102", "Base", 16, 92.97, 72.97),
    ("base_to_new_variants", "CoCoOp", "Flowers102", "H", 16, 81.87, 81.71),
    ("base_to_new_variants", "PBPrompt", "Caltech101", "New", 16, 95.54, 95.37),
    ("base_to_new_variants", "PBPrompt", "Caltech101", "H", 16, 96.74, 96.66),
    ("trade_off_50_more_epochs", "PBPrompt", "ImageNet", "H", 16, 73.36, 73.39),
    ("lambda_ablation", "PBPrompt(lambda=0.5)", "DTD", "accuracy", 2, 56.34, 56.20),
    ("prograd", "CoOp", "Food101", "accuracy", 4, 86.50, 83.63),
    ("backbone_ablation", "CoOp", "Food101", "accuracy", 4, 74.49, 73.49),
    ("backbone_ablation", "PBPrompt", "Food101", "accuracy", 2, 77.83, 77.93),
    ("backbone_ablation", "CoOp", "Caltech101", "accuracy", 1, 93.19, 93.13),
    ("ablation_stochastic_ot", "CoOp", "Flowers102", "accuracy", 4, 86.56, 86.50),
    ("cross_dataset", "CoOp", "StanfordCars", "accuracy", 16, 65.41, 64.51),
    ("cross_dataset", "CoOp", AVERAGE, "accuracy", 16, 63.81, 63.88),
    ("cross_dataset", "PBPrompt", AVERAGE, "accuracy", 16, 66.4, 66.44),
    ("cross_dataset_coop_based", "PBPrompt", AVERAGE, "accuracy", 16, 66.4, 66.44),
    ("cross_dataset_coop_based", "CoOp+SHIP", AVERAGE, "accuracy", 16, 65.69, 65.66),
]


ROUNDING = 0.0151  # two decimals: rounded figures, and a result that is rounded or cut
COARSE = 0.06  # tables with one decimal
FULL = (  # the others print parts of them
    "few_shot_vit",
    "few_shot_rn50",
    "base_to_new_vit",
    "base_to_new_rn50",
)
SAME = {"VPT": "CoOp+VPT", "SHIP": "CoOp+SHIP", "PBPrompt(lambda=0.5)": "PBPrompt"}  # names of one method
APART = ("computation_cost", "trade_off_50_more_epochs")  # of other quantities than the rest


def recomputed_misprints():
    """{figure: (the right one or None, why)}, from the printed values alone."""
    wrong = {**known(), **contradicted()}
    right = {figure: correct for figure, (correct, _) in wrong.items() if correct is not None}
    return wrong | {figure: found for figure, found in off(right).items() if figure not in right}


def known():
    found = {}
    for figure in published("cross_dataset"):
        if (figure.method, figure.dataset) == ("CoOp", "StanfordCars"):
            found[figure] = (64.51, "what CoOp's own figures say")
    for figure in published("cross_dataset_coop_based"):
        if figure.method == "ProGrad" and figure.dataset != "ImageNet":
            found[figure] = (None, "the row repeats CoCoOp's on every target")
    return found


def contradicted():
    """What another table prints otherwise: the one printed more often counts, else the larger table's."""
    places = defaultdict(list)
    for f in figures():
        if f.table not in APART:
            name = SAME.get(f.method, f.method)
            places[f.task, f.backbone, f.dataset, name, f.shots, f.metric].append(f)
    found = {}
    for same in places.values():
        times = Counter(f.value for f in same)
        right = max(same, key=lambda f: (times[f.value], f.table in FULL)).value
        why = "what the other tables have" if len(same) > 2 else "what another has"
        found |= {f: (right, why) for f in same if abs(f.value - right) > ROUNDING}
    return found


def off(right):
    """Means and H that do not follow from the figures they are of, misprints among those put right."""
    rows = defaultdict(lambda: defaultdict(dict))
    for f in figures():
        rows[f.table, f.backbone, f.method, f.shots][f.metric][f.dataset] = f
    found = {}

    def compare(printed, value, parts, why):
        coarse = all(round(f.value, 1) == f.value for f in parts)
        if abs(printed.value - value) > (COARSE if coarse else ROUNDING):
            found[printed] = (round(value, 2), why)

    for row in rows.values():
        for metric, line in row.items():
            parts = [f for name, f in line.items() if name != AVERAGE and averaged(f)]
            if AVERAGE in line and metric != "H":
                mean = fmean(right.get(f, f.value) for f in parts)
                compare(line[AVERAGE], mean, parts, "the mean of its datasets")
        for name, h in row["H"].items():
            if row["Base"] and row["New"]:
                parts = [row["Base"][name], row["New"][name]]
                base, new = (right.get(f, f.value) for f in parts)
                compare(h, harmonic_mean(base, new), parts, f"H of {base:.2f} and {new:.2f}")
    return found


def averaged(figure):
    """Whether the average takes it in: on the way to other datasets, not ImageNet."""
    return figure.task != "cross-dataset" or figure.dataset != "ImageNet"


def test_the_misprints_are_those_that_recomputing_finds():
    stored = {f: (f.correct, f.misprint) for f in figures() if f.misprint}
    assert stored == recomputed_misprints()


def test_these_and_no_others_cannot_be_right():
    told = [
        (f.table, f.method, f.dataset, f.metric, f.shots, f.value, f.correct)
        for f in figures()
        if f.correct is not None
    ]
    assert sorted(told) == sorted(FOUND)


def test_a_row_that_repeats_anothers_is_told_once():
    row = [f for f in published("cross_dataset_coop_based") if f.method == "ProGrad"]
    assert [f.dataset for f in row if not f.misprint] == ["ImageNet"]
    assert {f.note for f in row[1:]} == {
        "ProGrad, accuracy, 16 shots: the row repeats CoCoOp's on every target"
    }
    theirs = {f.dataset: f.value for f in published("cross_dataset") if f.method == "CoCoOp"}
    assert all(theirs[f.dataset] == f.value for f in row[1:])


@pytest.mark.parametrize(("backbone", "wrong"), [("RN50", True), ("ViT-B/16", False)])
def test_a_misprint_is_one_backbones(backbone, wrong):
    (figure,) = [
        f
        for f in published("backbone_ablation")
        if (f.backbone, f.method, f.dataset, f.shots) == (backbone, "CoOp", "Food101", 4)
    ]
    assert bool(figure.misprint) == wrong
    if wrong:
        assert figure.note == (
            "CoOp, Food101, accuracy, 4 shots: printed 74.49, should be 73.49: what another has"
        )
