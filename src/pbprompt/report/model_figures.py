"""A model's answers as figures: the confusion matrix, reliability, risk against coverage."""

from collections.abc import Iterator

from pbprompt.evaluate.answers import Answers
from pbprompt.evaluate.selective import area_under_risk_coverage
from pbprompt.report import plots
from pbprompt.report.confusion_plot import confusion_picture
from pbprompt.report.figures import Drawing, reliability_words


def draw_confusion(answers: Answers) -> Drawing:
    """All classes; needs matplotlib."""
    wrong = len(answers) - int(answers.right.sum())
    return Drawing(
        "confusion",
        "Confusion matrix of all classes, in the order of the data: rows are the truth, columns the answers; "
        "the darker, the larger the share of a class's images.",
        f"{wrong} of {len(answers)} images lie beside the diagonal.",
        confusion_picture(answers.confusion, answers.classes),
    )


def draw_trust(answers: Answers) -> Iterator[Drawing]:
    """Whether confidence means what it says, and what is gained by answering only the sure images."""
    coverage, risk = answers.risk_coverage
    area = area_under_risk_coverage(answers.confidence, answers.right)
    yield Drawing(
        "risk-coverage",
        "Risk against coverage: the share of errors among the surest images, from few of them to all.",
        f"Area under the curve {area:.1%}; with every image answered {risk[-1]:.1%} are wrong.",
        plots.risk_coverage_curves({"this model": (coverage, risk)}),
    )
    yield Drawing(
        "reliability",
        "Reliability: accuracy of images by how sure the model is; below, how many there are.",
        "Accuracy by mean confidence in per cent: " + reliability_words(answers.reliability),
        plots.reliability_diagram(answers.reliability),
        small=True,
    )
