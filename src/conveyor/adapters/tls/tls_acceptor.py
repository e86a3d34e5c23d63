"""Accepts connections by TLS, and bounds those whose handshake has not ended: in time, and in number.

Above MAX_HANDSHAKES the oldest is closed, because refusing new ones would let strangers keep clients out.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable

from conveyor.adapters.tls.tls_channel import TlsFailed
from conveyor.adapters.tls.tls_transport import TlsTransport
from conveyor.kernel.access.caller import Principal
from conveyor.kernel.access.refusal_log import RefusalLog
from conveyor.kernel.attempts import attempt

log = logging.getLogger(__name__)

MAX_HANDSHAKES = 256
HANDSHAKE_S = 10.0

Known = Callable[[Principal], None]
"""Takes the principal of a client."""


class TlsAcceptor:
    """See the module's docstring.

    context: returns the context for a connection that is accepted now. principal_of: returns the principal of a client
    by its certificate (DER), whose signature was checked, or by None if it has shown none. May raise TlsFailed; any
    other exception is logged as a bug, and ends the connection alone.
    refused: called for each connection that is closed because of TLS.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        principal_of: Callable[[bytes | None], Principal],
        refused: Callable[[], None],
    ) -> None:
        self.principal_of = principal_of
        self._context = context
        self._refused = refused
        self._refusals = RefusalLog()
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[TlsTransport, asyncio.TimerHandle] = {}

    def accept(self, user: asyncio.Protocol, known: Known) -> asyncio.Protocol:
        """Return the protocol of a connection that was accepted.

        user: the protocol that receives the plain bytes. known: called before the first of them.
        """
        return _Accepted(self, user, self._context(), known)

    def begin(self, transport: TlsTransport) -> None:
        """Note that a handshake begins."""
        if len(self._handshakes) >= MAX_HANDSHAKES:
            self._drop(next(iter(self._handshakes)), f"more than {MAX_HANDSHAKES} handshakes of TLS at once")
        late = f"no handshake of TLS within {HANDSHAKE_S:g} s"
        self._handshakes[transport] = self._loop.call_later(HANDSHAKE_S, self._drop, transport, late)

    def refuse(self, transport: TlsTransport, reason: object) -> None:
        """Note that a connection is closed because of TLS."""
        self._refused()
        level = self._refusals.level(self._loop.time())
        host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        log.log(level, "connection closed peer=%s:%d reason=%s", host, port, reason)

    def end(self, transport: TlsTransport) -> None:
        """Note that a handshake has ended, or its connection."""
        timer = self._handshakes.pop(transport, None)
        if timer is not None:
            timer.cancel()

    def _drop(self, transport: TlsTransport, reason: str) -> None:
        self.end(transport)
        self.refuse(transport, reason)
        transport.abort()


class _Accepted(TlsTransport):
    def __init__(self, acceptor: TlsAcceptor, user: asyncio.Protocol, context: ssl.SSLContext, known: Known) -> None:
        super().__init__(context, user, is_server=True)
        self._acceptor = acceptor
        self._known = known

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._acceptor.begin(self)
        super().connection_made(transport)

    def handshake_ended(self) -> None:
        self._acceptor.end(self)
        principal = attempt(self._not_named, self._acceptor.principal_of, self._channel.peer_certificate)
        if principal is not None:
            self._known(principal)

    def _not_named(self, error: Exception) -> None:
        if not isinstance(error, TlsFailed):
            log.error("client not named", exc_info=error)
            error = TlsFailed("the client could not be named: a bug, see the log")
        self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._acceptor.end(self)
        if self._failure is not None:
            self._acceptor.refuse(self, self._failure)
        super().connection_lost(exc)
