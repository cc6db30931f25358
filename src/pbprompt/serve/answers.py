"""The JSON that clients get; the field texts are the documentation at /docs."""

from pydantic import BaseModel, Field

from pbprompt.errors import InputError
from pbprompt.evaluate.conformal import prediction_set
from pbprompt.model.calibration import DIGITS, rounded
from pbprompt.serve.limits import Refused
from pbprompt.serve.model import Outcome
from pbprompt.serve.questions import Wishes


class ClassScore(BaseModel):
    name: str
    probability: float = Field(description="mean over the sampled prompts")
    spread: float = Field(description="standard deviation of the probability over the sampled prompts")


class Prediction(BaseModel):
    image: str = Field(description="the name the client gave")
    label: str = Field(description="the likeliest class")
    probability: float
    scores: list[ClassScore] = Field(description="likeliest first: all classes, or the first top_k")
    entropy: float = Field(description="the whole doubt, in nats")
    epistemic: float = Field(description="the part of it that the sampled prompts disagree on")
    unsure: bool | None = Field(
        description="less sure than accepted images must be for the accuracy reject_at; null: not calibrated"
    )
    prediction_set: list[str] | None = Field(
        description="holds the true class with probability coverage; null: not calibrated"
    )


class Predictions(BaseModel):
    predictions: list[Prediction]


class Explanation(BaseModel):
    class_name: str = Field(serialization_alias="class")
    probability: float
    mean: str = Field(description="base64 of a PNG: the square the model saw, under the mean heat map")
    samples: list[str] = Field(description="the same for each sampled prompt")


class Classes(BaseModel):
    classes: list[str]
    calibrated: bool = Field(description="whether predictions carry `unsure` and `prediction_set`")


class Health(BaseModel):
    status: str
    method: str
    backbone: str
    classes: int
    needs_key: bool = Field(description="whether other endpoints want an API key")


class Problem(BaseModel):
    error: str = Field(description="what is wrong, in one sentence")


def prediction(image: str, outcome: Outcome, wishes: Wishes) -> Prediction:
    """What is said of one image."""
    row = rounded(outcome.probabilities)
    order = sorted(range(len(row)), key=lambda index: -outcome.probabilities[index])
    best = order[0]
    unsure, among = None, None
    if outcome.calibration is not None:
        try:
            unsure = row[best] < outcome.calibration.threshold(wishes.reject_at)
            chosen = prediction_set(row, outcome.calibration.quantile(wishes.coverage))
        except InputError as error:
            raise Refused(422, str(error)) from None
        among = [outcome.classes[index] for index in chosen]
    return Prediction(
        image=image,
        label=outcome.classes[best],
        probability=row[best],
        scores=[
            ClassScore(
                name=outcome.classes[index],
                probability=row[index],
                spread=round(outcome.spreads[index], DIGITS),
            )
            for index in order[: wishes.top_k]
        ],
        entropy=round(outcome.entropy, DIGITS),
        epistemic=round(outcome.epistemic, DIGITS),
        unsure=unsure,
        prediction_set=among,
    )
