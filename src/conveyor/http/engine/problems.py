"""Errors as problem documents (RFC 9457): the kinds of `conveyor.kernel.errors`, and those of HTTP itself.

    {"type": "urn:conveyor:problem:lease-lost", "title": "Lease lost", "status": 409, "detail": "...",
     "kind": "lease_lost", "retriable": false}

`detail` says what to do. `retriable`: the unchanged request may succeed later; the first one may have had an effect.
"""

from collections.abc import Mapping

import msgspec

from conveyor.http.engine.http_response import Response
from conveyor.kernel.errors import ERRORS, RequestError

CONTENT_TYPE = "application/problem+json"
_encode = msgspec.json.Encoder().encode


class Problem(msgspec.Struct):
    """A problem document (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    kind: str
    retriable: bool = False


def make_problem(kind: str, status: int, detail: str, *, retriable: bool = False) -> Problem:
    """Make a problem document. detail: may quote a request header, whose bytes need not be UTF-8."""
    words = kind.replace("_", " ")
    return Problem(
        type=f"urn:conveyor:problem:{kind.replace('_', '-')}",
        title=words[:1].upper() + words[1:],
        status=status,
        detail=detail.encode("utf-8", "backslashreplace").decode(),
        kind=kind,
        retriable=retriable,
    )


def no_path(path: str) -> Problem:
    """Return the problem document for a request to a path that no endpoint has."""
    return make_problem("not_found", 404, f"no endpoint has the path {path}: GET /docs lists the endpoints")


def problem_of(error: RequestError) -> Problem:
    """Return the problem document of an expected error."""
    face = ERRORS[error.kind]
    return make_problem(error.kind.name.lower(), face.http_status, error.message, retriable=face.retriable)


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None, *, closes: bool = False) -> Response:
    return Response(problem.status, _encode(problem), CONTENT_TYPE, headers, closes=closes)
