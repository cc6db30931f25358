"""What to look at first in a model's answers, in sentences."""

from pbprompt.evaluate.answers import Answers
from pbprompt.evaluate.per_class import worst_first

FEW_IMAGES = 10  # of a class: one image moves its figures by a tenth or more


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def findings(answers: Answers) -> list[str]:
    """How many are wrong, the weakest class, the worst pair, whether confidence leans, and what to doubt."""
    wrong = len(answers) - int(answers.right.sum())
    said = [f"{wrong:,} of {len(answers):,} images are named wrongly."]
    weakest = worst_first(answers.per_class)[0]
    if weakest.recall is not None and weakest.recall < 1:
        found = f"{weakest.right} of its {weakest.images} images are found ({percent(weakest.recall)})"
        said.append(f"Weakest class: {weakest.name}; {found}.")
    if answers.confused:
        pair = answers.confused[0]
        how_often = f"{pair.images} of {answers.per_class[pair.true].images} images"
        said.append(
            f"Most confused: {answers.classes[pair.true]}, taken for {answers.classes[pair.taken_for]} "
            f"({how_often})."
        )
    said.append(_lean(float(answers.confidence.mean()), float(answers.right.mean())))
    few = sum(0 < one.images < FEW_IMAGES for one in answers.per_class)
    if few:
        said.append(
            f"Classes with fewer than {FEW_IMAGES} images here: {few} of {len(answers.classes)}. A single "
            "image moves their figures a good deal."
        )
    return said


def _lean(sure: float, right: float) -> str:
    gap = 100 * (sure - right)
    average = f"Its confidence averages {percent(sure)}, its accuracy is {percent(right)}"
    if abs(gap) < 1:
        return f"{average}: on average it is as sure as it is right."
    lean = "overconfident" if gap > 0 else "underconfident"
    return f"{average}: it is {lean} by {abs(gap):.1f} points."
