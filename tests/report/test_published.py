import pytest

from pbprompt.errors import InputError
from pbprompt.evaluate.metrics import harmonic_mean
from pbprompt.report.published import AVERAGE, published, tables


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
