"""What the endpoints take, for /openapi.json: they read bodies by hand, so that limits hold while reading."""

from typing import Any

from pbprompt.explain.heatmaps import READINGS

_FILE = {"type": "string", "format": "binary"}
_IMAGE = {
    "description": 'base64 text, or {"name": text, "data": base64}',
    "oneOf": [
        {"type": "string", "format": "byte"},
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "data": {"type": "string", "format": "byte"}},
            "required": ["data"],
        },
    ],
}
_WISHES = {
    "top_k": {"type": "integer", "minimum": 1, "description": "scores to return; all if left out"},
    "reject_at": {"type": "number", "default": 0.9, "description": "accuracy wanted of what is not unsure"},
    "coverage": {"type": "number", "default": 0.9, "description": "wanted of the prediction set"},
}
_EXPLAIN = {
    "class": {"type": "string", "description": "one of GET /classes"},
    "samples": {"type": "integer", "default": 4, "description": "sampled prompts to show"},
    "reading": {
        "enum": list(READINGS),
        "default": "evidence",
        "description": f"which map: {', '.join(READINGS)}",
    },
    "format": {"enum": ["json", "png"], "default": "json", "description": "json, or png: one drawn grid"},
}


def _body(**kinds: dict[str, Any]) -> dict[str, Any]:
    media = {"form": "multipart/form-data", "json": "application/json"}
    content = {media[kind]: {"schema": {"type": "object", **schema}} for kind, schema in kinds.items()}
    return {"requestBody": {"required": True, "content": content}}


PREDICT = _body(
    form={
        "properties": {
            "files": {"type": "array", "items": _FILE, "description": "images, one part each"},
            **_WISHES,
        },
        "required": ["files"],
    },
    json={
        "properties": {
            "images": {"type": "array", "items": _IMAGE, "description": "the images"},
            **_WISHES,
        },
        "required": ["images"],
    },
)
EXPLAIN = _body(
    form={
        "properties": {"file": {**_FILE, "description": "the image"}, **_EXPLAIN},
        "required": ["file", "class"],
    },
    json={"properties": {"image": _IMAGE, **_EXPLAIN}, "required": ["image", "class"]},
)
CLASSES = _body(
    json={
        "properties": {
            "names": {"type": "array", "items": {"type": "string"}, "description": "class names to add"}
        },
        "required": ["names"],
    }
)
