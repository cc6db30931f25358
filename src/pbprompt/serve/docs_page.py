"""The page at /docs: the endpoints as /openapi.json has them, without script or anything from elsewhere."""

from html import escape
from importlib.resources import files
from string import Template
from typing import Any


def docs_page(schema: dict[str, Any]) -> str:
    """HTML of an OpenAPI schema."""
    rows = [
        _operation(path, verb, operation)
        for path, verbs in schema["paths"].items()
        for verb, operation in verbs.items()
    ]
    page = (files("pbprompt.serve") / "page" / "docs.html").read_text(encoding="utf-8")
    title, about = (escape(schema["info"][key]) for key in ("title", "description"))
    return Template(page).substitute(title=title, about=about, sections="".join(rows) + _schemas(schema))


def _operation(path: str, verb: str, operation: dict[str, Any]) -> str:
    sent = "".join(
        f"<dt><code>{escape(kind)}</code></dt><dd>{_fields(body['schema'])}</dd>"
        for kind, body in operation.get("requestBody", {}).get("content", {}).items()
    )
    answers = ", ".join(
        f"<code>{escape(status)}</code> {escape(answer['description'])}"
        for status, answer in operation["responses"].items()
    )
    return (
        f"<section><h2><code>{escape(verb.upper())} {escape(path)}</code></h2>"
        f"<p>{escape(operation.get('description') or operation['summary'])}</p>"
        + (f"<h3>Send</h3><dl>{sent}</dl>" if sent else "")
        + f"<h3>Answers</h3><p>{answers}</p></section>"
    )


def _fields(schema: dict[str, Any]) -> str:
    rows = ""
    for name, value in schema.get("properties", {}).items():
        text = value.get("description", value.get("type", ""))
        rows += f"<li><code>{escape(name)}</code>{escape(f': {text}' if text else '')}</li>"
    return f"<ul>{rows}</ul>"


def _schemas(schema: dict[str, Any]) -> str:
    parts = (
        f"<h3>{escape(name)}</h3>{_fields(part)}"
        for name, part in schema.get("components", {}).get("schemas", {}).items()
    )
    return f"<section><h2>What comes back</h2>{''.join(parts)}</section>"
