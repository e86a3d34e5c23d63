"""A connection of aiohttp's, where what is no request gets a problem document, too."""

import msgspec
from aiohttp import web
from aiohttp.http import RawRequestMessage

from conveyor.http_api.problems import CONTENT_TYPE, make_problem, problem_response


class Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and not isinstance(self._messages[-1][0], RawRequestMessage):
            self._loop.call_soon(self._end_body)  # By then the request before has begun, if there is one.

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # It logs, and raises if an answer has begun.
        if status >= 500:
            problem = make_problem("internal_error", status, "a bug: the broker's log has its trace")
        else:
            detail = f"this is no HTTP request that can be read: {_reason(message or '')}"
            problem = make_problem("malformed_request", status, detail)
        response = problem_response(problem)
        response.force_close()
        return response

    def _end_body(self) -> None:
        """Tell who still waits for a body that the rest of it cannot be read: aiohttp would let him wait."""
        request = self._current_request
        if request is None or request.content.is_eof() or not self._messages:
            return
        error, _ = self._messages.pop()
        request.content.set_exception(web.RequestPayloadError(_reason(getattr(error, "message", ""))))
        request.content.feed_eof()
        self.close()


def _reason(message: str) -> str:
    return message.partition("\n")[0].rstrip(".:")


def refusal(limit: int) -> bytes:
    """The whole answer to a connection too many."""
    detail = f"more than {limit} connections (network.max_http_connections): close some, or try again later"
    body = msgspec.json.encode(make_problem("too_many_connections", 503, detail, retriable=True))
    head = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    return f"{head}Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
