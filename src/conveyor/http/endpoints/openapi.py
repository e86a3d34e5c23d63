"""Makes openapi.json (OpenAPI 3.1) from the paths of the endpoints and the signatures of their functions."""

import inspect
import re
from collections.abc import Iterable
from functools import cache
from http import HTTPStatus
from itertools import chain
from typing import Any, get_args

import msgspec

from conveyor.http.endpoints.endpoint import Endpoint, Raw
from conveyor.http.endpoints.fields import field_schema
from conveyor.http.engine.problems import CONTENT_TYPE, Problem
from conveyor.kernel.access.declared_access import Access, AnyOf

_REFERENCE = "#/components/schemas/"
_NAME = {"type": "string", "minLength": 1}


class Description(msgspec.Struct, frozen=True):
    """The part of the document about the whole API. names: the meaning of each path parameter."""

    title: str
    version: str
    description: str
    names: tuple[tuple[str, str], ...]


@cache
def make_document(endpoints: tuple[Endpoint, ...], api: Description) -> dict[str, Any]:
    schemas = _Schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas, dict(api.names))
    return {
        "openapi": "3.1.0",
        "info": {"title": api.title, "version": api.version, "description": api.description},
        "paths": paths,
        "components": {"schemas": schemas.shown, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


class _Schemas:
    """The JSON schemas of all types in the signatures, made by msgspec."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        signatures = [endpoint.signature for endpoint in endpoints]
        kinds = [Problem, *(struct for sig in signatures for struct in (sig.query, sig.body, _document(sig.answer)))]
        self._kinds = [kind for kind in dict.fromkeys(kinds) if kind not in (None, bytes)]
        made, self._structs = msgspec.json.schema_components(
            self._kinds, schema_hook=field_schema, ref_template=_REFERENCE + "{name}"
        )
        self._made = list(made)
        _move_to_structs([*self._made, self._structs], self._structs)
        queries = {sig.query.__name__ for sig in signatures}
        self.shown = {name: struct for name, struct in self._structs.items() if name not in queries}

    def of(self, kind: Any) -> dict[str, Any]:
        return self._made[self._kinds.index(kind)]

    def fields(self, struct: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
        fields: dict[str, dict[str, Any]] = self._structs[struct.__name__]["properties"]
        return fields


def _move_to_structs(schema: Any, structs: dict[str, Any]) -> None:
    """Move a `oneOf` that stands beside a reference into the struct referred to: not all tools see it elsewhere."""
    if isinstance(schema, dict):
        if "$ref" in schema and "oneOf" in schema:
            structs[schema["$ref"].removeprefix(_REFERENCE)]["oneOf"] = schema.pop("oneOf")
        _move_to_structs(list(schema.values()), structs)
    elif isinstance(schema, list):
        for part in schema:
            _move_to_structs(part, structs)


def _operation(endpoint: Endpoint, schemas: _Schemas, names: dict[str, str]) -> dict[str, Any]:
    summary, _, rest = (inspect.getdoc(endpoint.function) or "").partition("\n\n")
    parameters = (_path_parameters(endpoint, names), _query_parameters(endpoint, schemas), _header_parameters(endpoint))
    operation: dict[str, Any] = {
        "operationId": "_".join(re.findall(r"\w+", f"{endpoint.method.lower()} {endpoint.path}")),
        "summary": _one_line(summary),
        "parameters": list(chain(*parameters)),
        "x-conveyor-needs": [_need(need) for need in endpoint.needs],
        "responses": _responses(endpoint, schemas),
    }
    if rest:
        operation["description"] = _one_line(rest)
    if endpoint.signature.body is not None:
        operation["requestBody"] = _request_body(endpoint.signature.body, schemas)
    if endpoint.is_public:
        operation["security"] = []
    return operation


def _need(need: Access | AnyOf) -> dict[str, Any]:
    if isinstance(need, AnyOf):
        return {"any_of": [_need(access) for access in need.alternatives], "to_create": need.to_create}
    shown = {"operation": need.operation.value, "resource": need.resource_type.value}
    return {**shown, "named_by": list(need.named_by)} if need.named_by else shown


def _path_parameters(endpoint: Endpoint, names: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "description": names[name], "schema": _NAME}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _query_parameters(endpoint: Endpoint, schemas: _Schemas) -> list[dict[str, Any]]:
    """Return the query parameters. Null is left out of their schemas: a client omits the parameter instead."""
    return [
        {"name": name, "in": "query", "required": False, "schema": _without_null(schema)}
        for name, schema in schemas.fields(endpoint.signature.query).items()
    ]


def _header_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "description": doc, "schema": {"type": "string"}}
        for name, doc in endpoint.headers
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if key != "default" or value is not None}
    kinds = [alternative for alternative in kept.pop("anyOf", []) if alternative != {"type": "null"}]
    return kept | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {})


def _request_body(body: Any, schemas: _Schemas) -> dict[str, Any]:
    if body is bytes:
        return {"content": {"*/*": {"schema": {}}}}
    schema = schemas.of(body)
    struct = schemas.shown[schema["$ref"].removeprefix(_REFERENCE)]
    required = "oneOf" in struct or bool(struct["required"])
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _responses(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    problem = {CONTENT_TYPE: {"schema": schemas.of(Problem)}}
    responses = {
        str(status): _response(status, _content(endpoint, schemas))
        for status in (endpoint.status, *endpoint.other_statuses)
    }
    return responses | {str(code): _response(code, problem) for code in sorted(_problem_statuses(endpoint))}


def _response(status: int, content: dict[str, Any] | None) -> dict[str, Any]:
    described = {"description": HTTPStatus(status).phrase}
    return described if content is None else {**described, "content": content}


def _content(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any] | None:
    answer = endpoint.signature.answer
    if answer is type(None):
        return None
    document = _document(answer)
    return {endpoint.content_type: {"schema": {"type": "string"} if document is None else schemas.of(document)}}


def _problem_statuses(endpoint: Endpoint) -> set[int]:
    """Return the error statuses common to endpoints of this kind, and those that this endpoint declares."""
    statuses = {400, 403, *endpoint.problems}
    if not endpoint.is_public:
        statuses |= {401, 503}
    if endpoint.is_limited:
        statuses.add(429)
    if "{" in endpoint.path:
        statuses |= {404, 504}  # 504: records acknowledged with acks=1 are not durable in time.
    if endpoint.signature.body is not None:
        statuses |= {413, 415}
    return statuses


def _document(answer: Any) -> Any:
    """Return the type of the JSON response; None if the response is not JSON."""
    if answer is Raw or answer is type(None):
        return None
    return (
        next((argument for argument in get_args(answer) if argument is not Raw), answer)
        if Raw in get_args(answer)
        else answer
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
