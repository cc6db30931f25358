"""How endpoints refuse, for /openapi.json: a status and what it means there."""

from pbprompt.serve.schemas import Problem

BUSY = {429: "too many at once: Retry-After says when to come again", 503: "no answer in time"}
UNUSABLE = {
    400: "not readable as what it says it is",
    401: "no API key, or a wrong one",
    408: "sent too slowly",
    413: "too many bytes, pixels or images",
    415: "no image, or no known type of body",
    422: "a field is wrong or an image damaged",
}


def problems(reasons: dict[int, str]) -> dict[int | str, dict[str, object]]:
    return {status: {"model": Problem, "description": text} for status, text in sorted(reasons.items())}
