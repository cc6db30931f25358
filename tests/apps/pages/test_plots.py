"""Figures hold the numbers they were given, and the same numbers give the same bytes."""

import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.container import BarContainer
from PIL import Image

from pbprompt.apps.pages import plots
from pbprompt.errors import InputError
from pbprompt.model.metrics.classification import ReliabilityBins, confidence_bins

LINES = {
    "PBPrompt": {1: [0.60, 0.62, 0.67], 4: [0.70, 0.70, 0.73], 16: [0.80]},
    "zero-shot": {1: [0.50], 4: [0.50], 16: [0.50]},
}


def lines_of(figure):
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def texts_of(path):
    return {text for text in ElementTree.parse(path).getroot().itertext() if text.strip()}


def test_few_shot_curves_go_through_the_means():
    figure = plots.curves(LINES, "Caltech101")
    drawn = lines_of(figure)
    assert list(drawn) == list(LINES)
    np.testing.assert_allclose(drawn["PBPrompt"].get_xdata(), [1, 4, 16])
    np.testing.assert_allclose(drawn["PBPrompt"].get_ydata(), [0.63, 0.71, 0.80])
    np.testing.assert_allclose(drawn["zero-shot"].get_ydata(), [0.5, 0.5, 0.5])
    axes = figure.axes[0]
    assert axes.get_xlabel() == "Training images per class (shots)" and axes.get_ylabel() == "Accuracy (%)"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4", "16"]
    assert legend_of(figure) == ["PBPrompt", "zero-shot"]


def test_what_is_no_share_is_not_labelled_in_per_cent():
    shares, plain = (plots.curves(LINES, measured="NLL", share=s).axes[0] for s in (True, False))
    assert (shares.get_ylabel(), plain.get_ylabel()) == ("NLL (%)", "NLL")
    ticks = [axes.yaxis.get_major_formatter().format_ticks([0.5, 0.6])[0] for axes in (shares, plain)]
    assert ticks == ["50", "0.5"]


def test_the_band_is_one_deviation_over_seeds_and_a_single_seed_has_none():
    bands = plots.curves(LINES).axes[0].collections
    assert len(bands) == 1
    corners = bands[0].get_paths()[0].vertices
    at_one = corners[corners[:, 0] == 1][:, 1]
    deviation = np.std([0.60, 0.62, 0.67], ddof=1)
    assert at_one.min() == pytest.approx(0.63 - deviation) and at_one.max() == pytest.approx(0.63 + deviation)


@pytest.mark.parametrize(("values", "scale"), [((0.01, 0.1, 1.0), "log"), ((0.0, 0.5, 1.0), "linear")])
def test_setting_curve(values, scale):
    points = {value: [0.5 + value / 10] for value in values}
    figure = plots.curves({"PBPrompt": points}, axis="η", measured="Harmonic mean H")
    line = lines_of(figure)["PBPrompt"]
    np.testing.assert_allclose(line.get_xdata(), values)
    np.testing.assert_allclose(line.get_ydata(), [0.5 + value / 10 for value in values])
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_xlabel(), axes.get_ylabel()) == (scale, "η", "Harmonic mean H (%)")


def test_reliability_diagram_shows_every_full_bin_and_the_calibration_error():
    generator = np.random.default_rng(0)
    bins = confidence_bins(generator.dirichlet([0.4] * 5, 200).max(1), generator.random(200) < 0.5)
    figure = plots.reliability_diagram(bins, "PBPrompt")
    full = bins.count > 0
    axes, shares = figure.axes
    accuracy, gap = axes.containers
    np.testing.assert_allclose([bar.get_height() for bar in accuracy], bins.accuracy[full])
    np.testing.assert_allclose([bar.get_x() for bar in accuracy], bins.edges[:-1][full])
    np.testing.assert_allclose([bar.get_y() + bar.get_height() for bar in gap], bins.confidence[full])
    np.testing.assert_allclose([bar.get_height() for bar in shares.containers[0]], bins.count[full] / 200)
    assert axes.get_title(loc="left") == f"PBPrompt\nECE {100 * bins.error:.1f} %"


def test_risk_coverage_curves():
    coverage = np.array([0.25, 0.5, 0.75, 1.0])
    curves = {"better": (coverage, coverage / 4), "worse": (coverage, coverage / 2)}
    figure = plots.risk_coverage_curves(curves)
    for label, (x, y) in curves.items():
        np.testing.assert_array_equal(lines_of(figure)[label].get_xdata(), x)
        np.testing.assert_array_equal(lines_of(figure)[label].get_ydata(), y)
    assert legend_of(figure) == ["worse", "better"]  # as the lines end, from the top


def test_bars_have_their_heights_and_the_papers_figures():
    groups = {
        "one": {"ours": plots.Bar(0.8, 0.02, 0.79), "theirs": plots.Bar(0.6)},
        "two": {"theirs": plots.Bar(0.7, published=0.5)},
    }
    (axes,) = plots.bars(groups, "title").axes
    ours, theirs = (c for c in axes.containers if isinstance(c, BarContainer))
    assert [bar.get_height() for bar in ours] == [0.8] and [bar.get_height() for bar in theirs] == [0.6, 0.7]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["one", "two"]
    assert ours[0].get_x() < theirs[0].get_x() < 0.5 < theirs[1].get_x()  # each in its group
    assert ours[0].get_facecolor() != theirs[0].get_facecolor()
    diamonds = [line for line in axes.get_lines() if line.get_marker() == "D"]
    assert [line.get_ydata().tolist() for line in diamonds] == [[0.79], [0.5]]
    assert axes.get_ylim()[0] == pytest.approx(0.45)  # below the lowest of all


def test_twelve_bars_all_look_different():
    (axes,) = plots.bars({"one": {f"method {n}": plots.Bar(0.5) for n in range(12)}}).axes
    drawn = [bar for container in axes.containers for bar in getattr(container, "patches", [])]
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in drawn}) == 12


def test_twelve_lines_all_look_different():
    curves = {f"method {n}": ([0.5, 1.0], [0.1, 0.2]) for n in range(12)}
    drawn = lines_of(plots.risk_coverage_curves(curves)).values()
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn}) == 12


def test_the_same_numbers_give_the_same_bytes_whatever_the_users_settings(tmp_path, monkeypatch):
    import matplotlib

    plots.save(plots.curves(LINES), tmp_path / "first.svg")
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 20.0)
    monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", None)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    plots.save(plots.curves(LINES), tmp_path / "second.svg")
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
    other = {**LINES, "zero-shot": {1: [0.51], 4: [0.5], 16: [0.5]}}
    assert plots.render(plots.curves(other)) != (tmp_path / "first.svg").read_bytes()
    assert matplotlib.rcParams["font.size"] == 20.0  # and leaves them as they were
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["first.svg", "second.svg"]


def test_names_are_drawn_as_they_are(tmp_path):
    name = "_a <b> & $x_1$ 日"
    plots.save(plots.curves({name: {1: [0.5]}}), tmp_path / "figure.svg")
    assert name in texts_of(tmp_path / "figure.svg")


def test_png(tmp_path):
    figure = plots.curves(LINES)
    plots.save(figure, tmp_path / "sub" / "figure.PNG")
    with Image.open(tmp_path / "sub" / "figure.PNG") as image:
        assert image.format == "PNG" and image.width == 1280
    assert plots.render(figure, "png") == (tmp_path / "sub" / "figure.PNG").read_bytes()


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"figure\.pdf.*\.svg or \.png"):
        plots.save(plots.curves(LINES), tmp_path / "figure.pdf")


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not plots.available()
    empty = ReliabilityBins(np.array([0.0, 1.0]), np.array([1]), np.array([0.5]), np.array([0.5]))
    for draw in (lambda: plots.curves(LINES), lambda: plots.reliability_diagram(empty)):
        with pytest.raises(InputError, match=r"pip install -e '.*\[plots\]'"):
            draw()


def test_no_pyplot(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # to import it would raise
    assert plots.render(plots.curves(LINES))
