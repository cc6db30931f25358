"""What cannot be right among the paper's figures, by recomputing all means and H."""

import pytest

from pbprompt.report.misprints import misprint, misprints
from pbprompt.report.published import AVERAGE, published

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


def test_these_and_no_others_cannot_be_right():
    told = [
        (f.table, f.method, f.dataset, f.metric, f.shots, f.value, wrong.correct)
        for f, wrong in misprints().items()
        if wrong.correct is not None
    ]
    assert sorted(told) == sorted(FOUND)


def test_a_row_that_repeats_anothers_is_told_once():
    row = [f for f in published("cross_dataset_coop_based") if f.method == "ProGrad"]
    assert [f.dataset for f in row if misprint(f) is None] == ["ImageNet"]
    assert {str(misprint(f)) for f in row[1:]} == {
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
    assert (misprint(figure) is not None) == wrong
    if wrong:
        assert str(misprint(figure)) == (
            "CoOp, Food101, accuracy, 4 shots: printed 74.49, should be 73.49: what another has"
        )
