"""One request and the way to its response, and what serves requests."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from conveyor.http.engine.cross_origin import Origins
from conveyor.http.engine.exchange_memory import ExchangeMemory
from conveyor.http.engine.http_request import Request
from conveyor.http.engine.http_response import DateHeader, Response
from conveyor.http.engine.websocket_handler import WebSocketHandler
from conveyor.kernel.access.caller import Caller, Principal
from conveyor.kernel.request_budget import BEFORE_SHARE_BYTES, RequestBudget
from conveyor.kernel.response_budget import ResponseBudget
from conveyor.kernel.signal import Signal


class Application(Protocol):
    """Serves requests. Neither method raises."""

    @property
    def max_receive_ms(self) -> int:
        """The longest time in which the body of a request may arrive."""

    def open(self, exchange: "Exchange") -> None:
        """Refuse a request by its head, with a reply, or set the limits of its body. The body may be arriving.

        An application that has to wait for its decision sets `is_admitted` to False, and later admits or replies.
        """

    def serve(self, exchange: "Exchange") -> None:
        """Reply to a complete request, now or later, exactly once."""

    async def close(self) -> None:
        """End the requests in progress. Their connections are closed."""


class Service:
    """The parts that all connections of a site share.

    idle_s: a connection that sends no complete head for this long is closed. connection_numbers: an id for each new
    connection. in_progress: requests without a response.
    quiet: emitted when no request is in progress, after `is_stopping` is set. origins: those of other sites whose pages
    may read the responses; None if there are none.
    """

    __slots__ = (
        "application",
        "connection_numbers",
        "date",
        "idle_s",
        "in_progress",
        "is_stopping",
        "origins",
        "quiet",
        "request_budget",
        "response_budget",
    )

    def __init__(
        self,
        application: Application,
        request_budget: RequestBudget,
        date: DateHeader,
        idle_s: float,
        connection_numbers: Iterator[int],
        origins: Origins | None = None,
    ) -> None:
        self.application = application
        self.connection_numbers = connection_numbers
        self.origins = origins
        self.request_budget = request_budget
        self.response_budget = ResponseBudget()
        self.date = date
        self.idle_s = idle_s
        self.in_progress = 0
        self.is_stopping = False
        self.quiet: Signal[None] = Signal()


class _Connection(Protocol):
    """The connection of an exchange."""

    service: Service
    caller: Caller
    current: "Exchange | None"
    has_ended: bool

    def reply(self, exchange: "Exchange", response: Response) -> None:
        """Send the response of the current request."""

    def admitted(self, exchange: "Exchange") -> None:
        """Go on with the current request."""

    def known(self) -> None:
        """Note that the client has proved who it is: the connection does not make room for others."""

    def upgrade(self, exchange: "Exchange", handler: WebSocketHandler, max_message_bytes: int) -> None:
        """Answer the current request by WebSocket."""

    def release(self, exchange: "Exchange") -> None:
        """End an exchange."""


class BodyLimits(Struct):
    """What the body of one request may take, in bytes.

    most_bytes: of the body. share_bytes: the memory that a large body needs; 0 for the body's own size. free_bytes: of
    the body that may arrive without that share; they are counted.
    """

    most_bytes: int = 0
    share_bytes: int = 0
    free_bytes: int = BEFORE_SHARE_BYTES


class Exchange:
    """One request, and the way to its response.

    limits: those of its body, which the application sets. route: the application's own.
    meter: the application's own, which counts the work for the client; None if nothing counts it.
    caller: the client. when_gone: see `until_gone`. The reply to a client that is gone is ignored, but is still due.
    is_admitted: False while the application decides; see `Application.open`.
    is_logged_out: see `HttpConnection.log_out`.
    """

    __slots__ = (
        "_connection",
        "caller",
        "is_admitted",
        "is_logged_out",
        "limits",
        "memory",
        "meter",
        "request",
        "route",
        "when_gone",
    )

    def __init__(self, connection: "_Connection", request: Request) -> None:
        self._connection = connection
        self.caller = connection.caller
        self.request = request
        self.is_admitted = True
        self.is_logged_out = False
        self.limits = BodyLimits()
        self.memory = ExchangeMemory(connection.service.request_budget, connection.service.response_budget)
        self.route: object = None
        self.meter: Any = None
        self.when_gone: Callable[[], object] | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the client has disconnected, or sends no more, which looks the same until it is written to."""
        connection = self._connection
        return connection.has_ended or connection.current is not self

    def until_gone(self, gone: Callable[[], object]) -> None:
        """Call a function if the client disconnects before the reply, also if it already has, or gets a problem."""
        if self.is_gone:
            gone()
        else:
            self.when_gone = gone

    def withdraw(self) -> None:
        """The client does not get the answer: call what `until_gone` has set."""
        gone, self.when_gone = self.when_gone, None
        if gone is not None:
            gone()

    @property
    def is_over(self) -> bool:
        """Whether the request has its response, or its connection is lost."""
        return self._connection.current is not self

    def has_logged_in(self, users: Collection[str]) -> bool:
        """Return whether the client is one of these users by the credential of this request."""
        return self.caller is not self._connection.caller and self.caller.principal.name in users

    def known(self) -> None:
        """Note that the client is one of those who may connect."""
        self._connection.known()

    def authenticated(self, principal: Principal) -> None:
        """Note who the client is, for this request."""
        self.caller = replace(self.caller, principal=principal)
        self.known()

    def admit(self) -> None:
        """Let a request go on whose admission the application has delayed. Without effect if it is over."""
        self.is_admitted = True
        self._connection.admitted(self)

    def reply(self, response: Response) -> None:
        self._connection.reply(self, response)

    def upgrade(self, handler: WebSocketHandler, max_message_bytes: int) -> None:
        """Answer a complete request by WebSocket, in place of `reply`. One that cannot be answered so gets a problem,
        and its handler is not called. max_message_bytes: limit of a message that the client sends.
        """
        self._connection.upgrade(self, handler, max_message_bytes)

    def end(self) -> None:
        """The WebSocket is over, which was the response."""
        self._connection.release(self)
