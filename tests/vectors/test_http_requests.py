"""The engine's parser makes of each vector what is expected, in whatever pieces the bytes arrive."""

import pytest

from conveyor.http.engine.request_parser import RequestParser
from tests.vectors.http_request_vectors import VECTORS, Expected, Vector


def outcome(data: bytes, piece_bytes: int) -> tuple[Vector, str | None]:
    """Parse bytes in pieces. Returns what came of them, and the whole reason of a refusal."""
    parser = RequestParser()
    for begin in range(0, len(data), piece_bytes):
        if parser.error is None:
            parser.feed(data[begin : begin + piece_bytes])
    requests = tuple(
        Expected(
            request.method,
            request.target.decode(),
            tuple((name, value) for name, value in request.headers() if name != "host"),
            request.body,
            request.keeps_alive,
        )
        for request in parser.complete
    )
    is_partial = parser.error is None and (parser.is_in_head or parser.receiving is not None)
    return Vector(data, requests, parser.error, is_partial), parser.error


@pytest.mark.parametrize("piece_bytes", [10_000, 7, 1])
@pytest.mark.parametrize("name", VECTORS)
def test_request_has_the_expected_outcome(name: str, piece_bytes: int) -> None:
    expected = VECTORS[name]
    actual, reason = outcome(expected.data, piece_bytes)
    assert (actual.requests, actual.is_partial) == (expected.requests, expected.is_partial)
    if expected.refusal is None:
        assert reason is None
    else:
        assert reason is not None
        assert expected.refusal in reason
