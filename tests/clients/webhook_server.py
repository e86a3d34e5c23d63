"""A push target on a real socket: it records requests, and answers them as a test says."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Received:
    """A request. headers: by lower-case name."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def webhook_id(self) -> str:
        return self.headers["webhook-id"]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


Respond = Callable[[Received], "Reply | None"]
"""Returns the answer to a request; None hangs until the server closes."""


class WebhookServer:
    """Use it as a context manager. respond: called for each request, in a thread of it; it may be replaced."""

    def __init__(self, respond: Respond = lambda _: Reply()) -> None:
        self.respond = respond
        self.received: list[Received] = []
        self.taken: list[Received] = []
        """Those that were answered with success, in order."""
        self.open_count = self.most_open = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on what was received is met."""
        with self._changed:
            assert self._changed.wait_for(condition, _PATIENCE_S), f"received {len(self.received)}: not met"

    def wait_taken(self, count: int) -> list[Received]:
        """Wait until as many requests were answered with success."""
        self.wait(lambda: len(self.taken) >= count)
        return self.taken

    def _receive(self, request: Received) -> Reply | None:
        with self._changed:
            self.received.append(request)
            self.open_count += 1
            self.most_open = max(self.most_open, self.open_count)
            self._changed.notify_all()
        reply = self.respond(request)
        if reply is None:
            self._closing.wait()
        with self._changed:
            self.open_count -= 1
            if reply is not None and reply.status < 300:
                self.taken.append(request)
            self._changed.notify_all()
        return reply

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = server._receive(Received(self.path, headers, body))
                if reply is None:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if reply.status != 204:
                    self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
                """Be silent."""

        return Handler


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition is met that nothing tells of."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "not met in time"
        time.sleep(0.01)
