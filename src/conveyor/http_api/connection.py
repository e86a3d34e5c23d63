"""A connection of aiohttp's, where what is no request gets a problem document, too."""

import msgspec
from aiohttp import web

from conveyor.http_api.problems import CONTENT_TYPE, make_problem, problem_response


class Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # It logs, and raises if an answer has begun.
        if status >= 500:
            problem = make_problem("internal_error", status, "a bug: the broker's log has its trace")
        else:
            reason = (message or "").partition("\n")[0].rstrip(".:")
            problem = make_problem("malformed_request", status, f"this is no HTTP request that can be read: {reason}")
        response = problem_response(problem)
        response.force_close()
        return response


def refusal(limit: int) -> bytes:
    """The whole answer to a connection too many."""
    detail = f"more than {limit} connections (network.max_http_connections): close some, or try again later"
    body = msgspec.json.encode(make_problem("too_many_connections", 503, detail, retriable=True))
    head = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    return f"{head}Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
