"""Every expected error has a problem document."""

import json

import pytest

from conveyor.http.engine.problems import make_problem, problem_of, problem_response
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError


@pytest.mark.parametrize("kind", ErrorKind)
def test_problem_has_the_status_of_the_table(kind: ErrorKind) -> None:
    problem = problem_of(RequestError(kind, "do this"))
    assert (problem.status, problem.retriable) == (ERRORS[kind].http_status, ERRORS[kind].retriable)
    assert 400 <= problem.status < 600
    assert (problem.detail, problem.kind) == ("do this", kind.name.lower())


def test_problem_response_follows_rfc_9457() -> None:
    response = problem_response(make_problem("lease_lost", 409, "lease it again"), {"X-More": "1"})
    assert (response.status, response.headers) == (409, {"X-More": "1"})
    assert response.content_type == "application/problem+json"
    assert json.loads(response.body) == {
        "type": "urn:conveyor:problem:lease-lost",
        "title": "Lease lost",
        "status": 409,
        "detail": "lease it again",
        "kind": "lease_lost",
        "retriable": False,
    }
