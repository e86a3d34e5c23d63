"""Renders openapi.json as one HTML page without scripts and without external resources."""

from collections.abc import Iterator
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, .path { font-family: ui-monospace, monospace; font-size: .92em; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; display: flex; flex-wrap: wrap; gap: .2rem .8rem; align-items: baseline; }
summary .what { opacity: .75; }
.method { display: inline-block; min-width: 4.2rem; font-weight: 700; }
.GET { color: #2a7ab0; } .POST { color: #2c8a4b; } .PATCH { color: #b07a12; } .DELETE { color: #c0392b; }
table { border-collapse: collapse; width: 100%; margin: .4rem 0; }
td, th { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-top: 1px solid var(--soft); }
h4 { margin: .8rem 0 0; }
"""
_METHODS = ("get", "post", "patch", "delete")


def render_page(document: dict[str, Any]) -> str:
    """Render an OpenAPI document as HTML."""
    info = document["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f"<h1>{title}</h1><p>{escape(info['description'])}"
        ' For programs: <a href="/openapi.json">openapi.json</a>.</p>'
        f"<h2>Requests</h2>{''.join(_operations(document))}<h2>Documents</h2>{''.join(_schemas(document))}</body></html>"
    )


def _operations(document: dict[str, Any]) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                yield _operation(method.upper(), path, operations[method])


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    heading = (
        f'<span class="path"><span class="method {method}">{method}</span>{escape(path)}</span>'
        f'<span class="what">{escape(operation["summary"])}</span>'
    )
    parts = [f"<p>{escape(operation.get('description', ''))}</p>", _parameters(operation["parameters"])]
    if "requestBody" in operation:
        parts.append(f"<h4>Body</h4><p>{_content(operation['requestBody'])}</p>")
    rows = [
        (f"<code>{status}</code> {escape(response['description'])}", _content(response))
        for status, response in operation["responses"].items()
    ]
    return f"<details><summary>{heading}</summary>{''.join(parts)}<h4>Responses</h4>{_table(rows)}</details>"


def _parameters(parameters: list[dict[str, Any]]) -> str:
    rows = [
        (
            f"<code>{escape(parameter['name'])}</code> in {parameter['in']}",
            _schema(parameter["schema"], parameter.get("description", "")),
        )
        for parameter in parameters
    ]
    return f"<h4>Parameters</h4>{_table(rows)}" if rows else ""


def _schemas(document: dict[str, Any]) -> Iterator[str]:
    for name, schema in document["components"]["schemas"].items():
        rows = [
            (f"<code>{escape(field)}</code>", _schema(field_schema))
            for field, field_schema in schema["properties"].items()
        ]
        yield (
            f'<details id="{name}"><summary><code>{name}</code></summary>'
            f"<p>{escape(schema.get('description', ''))}</p>{_table(rows)}</details>"
        )


def _content(part: dict[str, Any]) -> str:
    content = part.get("content", {})
    return ", ".join(f"{_schema(media['schema'])} <code>{escape(kind)}</code>" for kind, media in content.items())


def _schema(schema: dict[str, Any], description: str = "") -> str:
    """Describe a type and its limits."""
    words = _type(schema)
    limits = [f"{name} {schema[name]}" for name in ("minimum", "maximum", "minLength", "maxLength") if name in schema]
    if schema.get("default") not in (None, [], {}, ""):
        limits.append(f"default {schema['default']}")
    html = escape(schema.get("description", description))
    return f"{words}{' (' + escape(', '.join(limits)) + ')' if limits else ''}{'. ' + html if html else ''}"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(alternative) for alternative in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return escape(str(schema.get("type", "anything")))


def _table(rows: list[tuple[str, str]]) -> str:
    return f"<table>{''.join(f'<tr><td>{first}</td><td>{second}</td></tr>' for first, second in rows)}</table>"
