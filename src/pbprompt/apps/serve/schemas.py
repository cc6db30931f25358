"""What clients send and get: pydantic checks the one and writes the other; field texts are /docs."""

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from pbprompt.apps.explain.heat_maps import Reading
from pbprompt.apps.serve.limits import Limits, Refused

NAME_LENGTH = 200
Share = Annotated[float, Field(gt=0, lt=1)]
BUSY = {429: "too many at once: Retry-After says when to come again", 503: "no answer in time"}
KEY = {401: "no API key, or a wrong one"}
UNUSABLE = KEY | {
    400: "not readable as what it says it is",
    408: "sent too slowly",
    413: "too many bytes, pixels or images",
    415: "no image, or no known type of body",
    422: "a field is wrong or an image damaged",
}


def readable(text: str) -> str:
    """A client's text as it can always be written: no control characters, not long."""
    text = text[:NAME_LENGTH].encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else "�" for c in text)


def _named(given: Any) -> Any:
    """An image may be sent without a name."""
    return {"data": given} if isinstance(given, str) else given


def _bytes(given: Any) -> Any:
    """The bytes of a base64 text, with or without a `data:` prefix; a form brings bytes."""
    if not isinstance(given, str):
        return given
    try:
        return base64.b64decode(
            given.partition(",")[2] if given.startswith("data:") else given, validate=True
        )
    except (binascii.Error, ValueError):
        raise ValueError("send valid base64") from None


class Upload(BaseModel):
    """One image as sent, with the name the client gave it."""

    name: Annotated[str, BeforeValidator(lambda name: readable(name) if isinstance(name, str) else name)] = ""
    data: Annotated[bytes, BeforeValidator(_bytes)]


_TEXT, _BASE64 = {"type": "string"}, {"type": "string", "format": "byte"}
_SENT = {"type": "object", "properties": {"name": _TEXT, "data": _BASE64}, "required": ["data"]}
SentImage = Annotated[
    Upload,
    BeforeValidator(_named),
    WithJsonSchema({"description": 'base64, or {"name": …, "data": base64}', "oneOf": [_BASE64, _SENT]}),
]


class RequestBody(BaseModel):
    """The body of a request. A field that means nothing here is refused: it may be a misspelt one."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


NAMES: Any = Field([], max_length=Limits.classes, description="further class names, for this request alone")


class Predict(RequestBody):
    images: list[SentImage] = Field(min_length=1, description="the images")
    top_k: int | None = Field(None, ge=1, le=1_000_000, description="so many, likeliest first; or all")
    reject_at: Share = Field(0.9, description="accuracy wanted of what is not unsure")
    coverage: Share = Field(0.9, description="wanted of the prediction set")
    back_off: Share = Field(0.9, description="accuracy wanted of answers by a class or a group of classes")
    none_at: Share = Field(0.05, description="share of images of the classes that may be taken for unknown")
    classes: list[str] = NAMES


class Explain(RequestBody):
    image: SentImage = Field(description="the image")
    class_name: str = Field(alias="class", description="one of GET /classes, or of `classes`")
    classes: list[str] = NAMES
    samples: int = Field(4, ge=1, le=Limits.samples, description="sampled prompts to show")
    reading: Reading = Field("contribution", description="which map")
    format: Literal["json", "png"] = Field("json", description="json, or png: one drawn grid")


class AddClasses(RequestBody):
    names: list[str] = Field(min_length=1, max_length=Limits.classes, description="class names to add")


class Examples(RequestBody):
    images: list[SentImage] = Field(min_length=1, description="images to learn from")
    labels: list[str] = Field(description="the class of each image, in the same order; a new name is added")


class Label(RequestBody):
    image: str = Field(description="the image, as GET /labelling names it")
    label: str | None = Field(None, description="its class, a new one too; left out: skip the image")


Body = TypeVar("Body", bound=RequestBody)


def parsed_body(kind: type[Body], sent: Any) -> Body:
    """The body as its kind, or what is wrong with it in one sentence."""
    if not isinstance(sent, dict):
        raise Refused(422, "send a JSON object")
    try:
        return kind.model_validate(sent)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            what = f"it is unknown: there are {', '.join(kind.model_json_schema()['properties'])}"
        raise Refused(422, f"{readable('.'.join(map(str, first['loc'])))}: {what}") from None


def request_body(kind: type[RequestBody], form: str | None = None) -> dict[str, Any]:
    """`form` names the files of a form, which stand for the images of JSON."""
    schema = kind.model_json_schema()
    content = {"application/json": {"schema": schema}}
    if form is not None:
        images, file = "images" if form == "files" else "image", {"type": "string", "format": "binary"}
        files = {"type": "array", "minItems": 1, "items": file} if form == "files" else file
        files["description"] = schema["properties"][images]["description"]
        fields = {name: about for name, about in schema["properties"].items() if name != images}
        required = [form if name == images else name for name in schema["required"]]
        content["multipart/form-data"] = {
            "schema": schema | {"properties": {form: files} | fields, "required": required}
        }
    return {"requestBody": {"required": True, "content": content}}


class Prediction(BaseModel):
    """The fields of `pbprompt predict --json`; of a multi-label model image, labels and scores alone.

    Null is what was not asked for, or what the model cannot tell.
    """

    image: str = Field(description="the name the client gave it, or its number")
    label: str = Field("", description="the likeliest class")
    score: float = Field(0, description="its probability, the mean over the sampled prompts")
    spread: float = Field(0, description="standard deviation of the score over the sampled prompts")
    labels: list[str] = Field([], description="multi-label: those at or above their thresholds, if any")
    scores: dict[str, float] = Field(description="of every class, or of the top_k likeliest first")
    spreads: dict[str, float] = Field({}, description="of the same classes")
    entropy: float = Field(0, description="the whole doubt, in nats")
    epistemic: float = Field(0, description="the part of it that the sampled prompts disagree on")
    unsure: bool | None = Field(None, description="less sure than reject_at asks for; null: not calibrated")
    prediction_set: list[str] | None = Field(None, description="holds the true class as often as `coverage`")
    familiarity: float | None = Field(None, description="share of images of the classes that look less so")
    unknown: bool | None = Field(None, description="it looks like none of the classes: familiarity ≤ none_at")
    nothing: bool | None = Field(None, description="nothing to see: blank, noise, stripes, text")
    answer: str | None = Field(None, description="the class or group that is sure enough, or costs least")
    answer_score: float = Field(0, description="its probability")


class Predictions(BaseModel):
    predictions: list[Prediction] = Field(description="one for each image, in order")
    note: str | None = Field(description="why marks or sets are null, or what they cannot vouch for")


Box = Annotated[
    tuple[float, float, float, float],
    Field(description="left, top, right and bottom, as shares of the square that the model saw"),
]


class LikePart(BaseModel):
    """A part of the image, and the place in a training photograph that it is most like."""

    logit: float = Field(description="what it adds to the class's logit")
    box: Box
    photograph: str = Field(description="the name of its file")
    place: Box
    picture: str = Field(description="base64 of a PNG: both, side by side and framed")


class Explanation(BaseModel):
    class_name: str = Field(serialization_alias="class")
    score: float = Field(description="the probability of the class")
    range: tuple[float, float] = Field(description="lowest and highest value of the mean heat map")
    mean: str = Field(description="base64 of a PNG: the square the model saw, under the mean heat map")
    samples: list[str] = Field(description="the same for each sampled prompt")
    parts: list[LikePart] = Field(description="what looks like training photographs, with --photographs")


class Classes(BaseModel):
    classes: list[str]
    added: list[str] = Field(description="those of them that clients added, which DELETE /classes takes away")
    calibrated: bool = Field(description="whether predictions carry `unsure` and `prediction_set`")
    class_mix: str | Mapping[str, float] = Field(description="as-trained, balanced, or a share of each class")
    thresholds: dict[str, float] | None = Field(description="multi-label: the probability that gives a label")


class Samples(BaseModel):
    samples: dict[str, str] = Field(description="images as `data:` addresses, by the name of what they show")
    drawn: bool = Field(description="drawings, since images of the model's own data are not at hand")


class Estimate(BaseModel):
    """How many images, each judged by the model without it, are judged right."""

    right: int
    of: int


class ToLabel(BaseModel):
    image: str | None = Field(description="the image to label now; null: none is left")
    after: str | None = Field(description="the one that comes next, as far as is known")
    suggested: str | None = Field(description="the class that the model would say")
    scores: dict[str, float] = Field(description="the probability of every class for the image")
    labelled: int = Field(description="images that have a label")
    left: int = Field(description="images that have none and were not skipped")
    estimate: Estimate | None = Field(description="of the model now; null: it cannot be judged yet")
    estimate_at_start: Estimate | None = Field(description="of the model before any of these labels")
    may_undo: bool = Field(description="whether there is something to take back")
    table: str = Field(description="the file that keeps the labels")


class Health(BaseModel):
    status: str
    method: str
    backbone: str
    classes: int
    shared_classes: bool = Field(description="whether classes that clients add are kept, for all of them")
    labelling: bool = Field(description="whether there is a page to label images at /label")
    multi_label: bool = Field(description="whether an image may have several of the classes, or none")
    needs_key: bool = Field(description="whether other endpoints want an API key")


class Problem(BaseModel):
    error: str = Field(description="what is wrong, in one sentence")


def documented(
    reasons: dict[int, str], kind: type[RequestBody] | None = None, form: str | None = None
) -> dict[str, Any]:
    """An endpoint in /openapi.json: with what status it refuses and why, and what body it takes."""
    problems = {status: {"model": Problem, "description": text} for status, text in sorted(reasons.items())}
    return {"responses": problems, "openapi_extra": request_body(kind, form) if kind else None}
