"""A connection of aiohttp that answers with a problem document where aiohttp itself refuses a request."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import web
from aiohttp.http import RawRequestMessage

from conveyor.http_api.engine.problems import make_problem, no_path, problem_response


class Connection(web.RequestHandler):
    """One client's connection. opened, closed: called when the socket opens and closes; the owner sets them before."""

    __slots__ = ("closed", "opened")

    opened: "Callable[[Connection], None]"
    closed: "Callable[[Connection], None]"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.closed(self)

    def finish(self) -> None:
        """Accept no more requests, and close the connection after the response to the current one, if any."""
        is_waiting = self._waiter is not None and not self._waiter.done()
        if is_waiting or not self._request_count:
            self.force_close()
        else:
            self.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and not isinstance(self._messages[-1][0], RawRequestMessage):
            self._loop.call_soon(self._end_body)  # By then a preceding request has begun.

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # It logs, and raises if a response has begun.
        if status >= 500:
            problem = make_problem("internal_error", status, "a bug: see the traceback in the broker's log")
        else:
            detail = f"not a valid HTTP request: {_reason(message or '')}"
            problem = make_problem("malformed_request", status, detail)
        response = problem_response(problem)
        response.force_close()
        return response

    def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> Coroutine[Any, Any, tuple[web.StreamResponse, bool]]:
        """Send a response. aiohttp itself refuses targets without a path: those of CONNECT and of `OPTIONS *`."""
        sent = _refused(request, resp) if isinstance(resp, web.HTTPException) else resp
        return super().finish_response(request, sent, start_time)

    def _end_body(self) -> None:
        """Fail the reader that waits for the rest of a body. aiohttp would let it wait forever."""
        request = self._current_request
        if request is None or request.content.is_eof() or not self._messages:
            return
        error, _ = self._messages.pop()
        request.content.set_exception(web.RequestPayloadError(_reason(getattr(error, "message", ""))))
        request.content.feed_eof()
        self.close()


def _refused(request: web.BaseRequest, refusal: web.HTTPException) -> web.Response:
    problem = no_path(request.raw_path)
    if refusal.status != problem.status:
        problem = make_problem(refusal.reason.lower().replace(" ", "_"), refusal.status, f"{refusal.text}")
    response = problem_response(problem)
    response.force_close()
    return response


def _reason(message: str) -> str:
    return message.partition("\n")[0].rstrip(".:")
