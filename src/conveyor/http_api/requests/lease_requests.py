"""Requests that lease messages, at once or once some arrive, whatever the form of their documents."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from conveyor.http.endpoints.endpoint import Responder
from conveyor.http_api.http_call import HttpCall
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.response_budget import SMALL_BYTES
from conveyor.queues.queue_commands import LeasedMessage

LeaseDocuments = TypeVar("LeaseDocuments")


class LeaseOptions(NamedTuple):
    """What a client asks for. wait_ms: the longest wait for the first message. visibility_ms: None for the policy's.

    client_id: what the client calls itself.
    """

    subscription: str
    max_messages: int
    wait_ms: int = 0
    visibility_ms: int | None = None
    client_id: str = ""


class LeaseTaking(Generic[LeaseDocuments]):
    """One request. show: makes the document of leases; it may run in a thread. check: raises RequestError if the client
    does not get leases any more that the request has waited for.

    A client that disconnects while it waits leases nothing. Leases are given back if the client is gone, or does not
    get them.
    """

    def __init__(
        self,
        call: HttpCall[Any, Any],
        options: LeaseOptions,
        show: Callable[[list[LeasedMessage]], LeaseDocuments],
        check: Callable[[], None] | None = None,
    ) -> None:
        self._call = call
        self._options = options
        self._show = show
        self._check = check

    def take(self, reply: Responder[LeaseDocuments]) -> None:
        """Reply with the leases. Raises RequestError."""
        options, leases = self._options, self._call.broker.queues.leases

        def taken(leased: list[LeasedMessage] | RequestError) -> None:
            is_unled = isinstance(leased, RequestError) and leased.kind is ErrorKind.NOT_LEADER
            if options.wait_ms and (not leased or is_unled):
                reply(self._wait())
            else:
                reply(leased, make=self._document)

        leases.take(
            self._call.caller,
            options.subscription,
            options.max_messages,
            options.visibility_ms,
            taken,
            client_id=options.client_id,
        )

    async def _wait(self) -> LeaseDocuments | Coroutine[Any, Any, LeaseDocuments]:
        call, options = self._call, self._options
        work = partial(
            call.broker.queues.leases.lease,
            call.caller,
            options.subscription,
            options.max_messages,
            options.wait_ms,
            options.visibility_ms,
            client_id=options.client_id,
        )
        leased = await call.door.long_polls.wait(work, list[LeasedMessage](), call.exchange)
        return self._document(leased, has_waited=True)

    def _document(
        self, leased: list[LeasedMessage], *, has_waited: bool = False
    ) -> LeaseDocuments | Coroutine[Any, Any, LeaseDocuments]:
        call = self._call
        give_back = partial(call.broker.queues.leases.give_back, call.caller, self._options.subscription, leased)
        if call.exchange.is_gone:
            give_back()
            leased = []
        elif leased:
            call.exchange.until_gone(give_back)
            if call.exchange.meter is not None:
                call.count_shown(lease.message for lease in leased)
        if has_waited and self._check is not None:
            self._check()
        weight_bytes = sum([lease.message.weight_bytes for lease in leased])
        if weight_bytes > SMALL_BYTES:
            return call.show(weight_bytes, partial(self._show, leased))
        return self._show(leased)
