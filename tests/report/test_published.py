from statistics import fmean

import pytest

from pbprompt.errors import InputError
from pbprompt.evaluate.metrics import harmonic_mean
from pbprompt.report.published import AVERAGE, MISPRINTS, misprint, published, tables


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


@pytest.mark.parametrize("known", MISPRINTS, ids=str)
def test_misprints_are_printed_so(known):
    touched = [figure for figure in published(known.table) if misprint(figure) == known]
    assert sorted(figure.dataset for figure in touched) == sorted(known.datasets)
    if known.printed is not None:
        assert [figure.value for figure in touched] == [known.printed]
        assert f"{known.printed:.2f}" in str(known) and f"{known.correct:.2f}" in str(known)


def test_the_corrections_follow_from_the_other_figures():
    for table, shots in (("few_shot_vit", 4), ("few_shot_rn50", 2)):
        rows = [
            figure.value
            for figure in published(table)
            if figure.method == "CoOp" and figure.shots == shots and figure.dataset != AVERAGE
        ]
        (known,) = [m for m in MISPRINTS if m.table == table]
        assert len(rows) == 11 and fmean(rows) == pytest.approx(known.correct, abs=0.006)
    for known in MISPRINTS:
        if known.metric == "H":
            base, new = (value(known.table, known.method, known.datasets[0], m) for m in ("Base", "New"))
            assert harmonic_mean(base, new) == pytest.approx(known.correct, abs=0.006)
    flowers = harmonic_mean(72.97, value("base_to_new_variants", "VPT", "Flowers102", "New"))
    assert flowers == pytest.approx(value("base_to_new_variants", "VPT", "Flowers102", "H"), abs=0.02)
    row = next(m for m in MISPRINTS if m.printed is None)
    for dataset in row.datasets:
        assert value(row.table, "ProGrad", dataset) == value("cross_dataset", "CoCoOp", dataset)


def test_the_papers_average_h_is_that_of_the_averages():
    for table in ("base_to_new_vit", "base_to_new_rn50"):
        for method in {figure.method for figure in published(table)}:
            base, new, both = (value(table, method, AVERAGE, metric) for metric in ("Base", "New", "H"))
            assert both == pytest.approx(harmonic_mean(base, new), abs=0.02)
