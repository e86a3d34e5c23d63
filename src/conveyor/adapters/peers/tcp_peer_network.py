"""The links of one broker over TCP: listens for other brokers, and dials them. See `conveyor.kernel.peers`.

Limits: a handshake takes at most HANDSHAKE_LIMIT_S. Of the connections that have not finished theirs, the oldest is
closed if there are more than UNPROVED_CONNECTIONS, so that strangers who open many of them keep no broker out. A link
ends if more than MAX_UNSENT_BYTES wait in memory for a peer that does not read; slices of files take no memory.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable

from conveyor.adapters.peers.handshake import NONCE_BYTES, AcceptorHandshake, DialerHandshake
from conveyor.adapters.peers.link_certificate import LinkCertificate
from conveyor.adapters.peers.peer_connection import PeerConnection
from conveyor.adapters.tls.tls_transport import TlsTransport
from conveyor.kernel.access.refusal_log import RefusalLog
from conveyor.kernel.peers import (
    PEER_SILENCE_LIMIT_S,
    Accept,
    PeerAddress,
    PeerCredentials,
    PeerEnd,
    PeerLink,
    PeerService,
    PeerUnreachable,
)

log = logging.getLogger(__name__)

HANDSHAKE_LIMIT_S = 3.0
UNPROVED_CONNECTIONS = 64
MAX_UNSENT_BYTES = 512 << 20
_MIN_SECRET_BYTES = 16
_BACKLOG = 256
_CHECK_S = PEER_SILENCE_LIMIT_S / 4


class TcpPeerNetwork:
    """See the module's docstring. host, port: the address for other brokers. Call `start`, and `stop` at the end.

    certificate: returns that for links which begin now, by which TLS encrypts them.
    """

    dials_from: tuple[str, int] | None = None
    """The local address of dialled links; None lets the system choose it."""

    def __init__(self, host: str, port: int, certificate: Callable[[], LinkCertificate]) -> None:
        self.host = host
        self.port = port
        self.max_unsent_bytes = MAX_UNSENT_BYTES
        self._certificate = certificate
        self._loop = asyncio.get_running_loop()
        self._credentials: PeerCredentials | None = None
        self._accept: Accept | None = None
        self._server: asyncio.Server | None = None
        self._links: set[PeerConnection] = set()
        self._unproved: dict[PeerConnection, asyncio.TimerHandle] = {}
        self._refusals, self._distrusted_dials = RefusalLog(), RefusalLog()
        self._checked_s = self._loop.time()
        self._check: asyncio.TimerHandle | None = None
        self._has_stopped = False

    async def start(self, bound: socket.socket | None) -> None:
        """Listen on a bound socket; None: dial only."""
        if bound is not None:
            self._server = await self._loop.create_server(self._accepted, sock=bound, backlog=_BACKLOG)
        self._check_later()

    def stop(self) -> None:
        """End all links, and accept and dial no more."""
        self._has_stopped = True
        if self._server is not None:
            self._server.close()
        if self._check is not None:
            self._check.cancel()
        for connection in (*self._unproved, *self._links):
            connection.close("this broker stops")

    def open(self, credentials: PeerCredentials) -> None:
        assert len(credentials.secret) >= _MIN_SECRET_BYTES, "the secret of the cluster is too short"
        self._credentials = credentials

    def accept(self, accept: Accept) -> None:
        self._accept = accept

    async def dial(self, address: PeerAddress, service: PeerService, answer: Callable[[PeerLink], PeerEnd]) -> PeerLink:
        if self._credentials is None or self._has_stopped:
            raise PeerUnreachable("this broker has no links to others before it has joined its cluster, or as it stops")
        handshake = DialerHandshake(self._credentials, address.identity, service, _nonce())
        outcome: asyncio.Future[str] = self._loop.create_future()
        dialled = _Dialled(self, outcome)
        certificate = self._certificate()
        connection = PeerConnection(dialled, handshake, lambda link, _: answer(link), certificate.check_peer)
        name = f"broker {address.identity.node_id} at {address.host}:{address.port}"
        try:
            encrypted = _dialing(certificate, connection, address.host)
            async with asyncio.timeout(HANDSHAKE_LIMIT_S):
                await self._loop.create_connection(
                    lambda: encrypted, address.host, address.port, local_addr=self.dials_from
                )
                failure = await outcome
        except TimeoutError as error:
            connection.close("no answer in time")
            raise PeerUnreachable(f"{name} does not answer") from error
        except (OSError, ValueError) as error:  # ValueError: of a host that cannot be the name of one.
            is_gone = isinstance(error, ConnectionRefusedError)
            raise PeerUnreachable(f"{name} cannot be reached: {error}", is_gone=is_gone) from error
        except asyncio.CancelledError:
            connection.close("the dial was cancelled")
            raise
        if failure:
            if connection.is_distrusted:
                level, failed = self._distrusted_dials.level(self._loop.time()), self._distrusted_dials.count
                log.log(level, "peer not dialled %s failed=%d reason=%s", name, failed, failure)
            raise PeerUnreachable(f"{name}: {failure}")
        return connection

    def opened(self, connection: PeerConnection) -> None:
        """Limit the time of a handshake, and the number of handshakes."""
        if self._has_stopped:
            return connection.refuse("this broker stops")
        if len(self._unproved) >= UNPROVED_CONNECTIONS:
            next(iter(self._unproved)).refuse(f"more than {UNPROVED_CONNECTIONS} connections in their handshake")
        self._unproved[connection] = self._loop.call_later(
            HANDSHAKE_LIMIT_S, connection.refuse, f"the handshake has taken {HANDSHAKE_LIMIT_S:g} s"
        )

    def linked(self, connection: PeerConnection) -> None:
        self._prove(connection)
        self.add_link(connection)
        log.info("peer accepted node=%d address=%s", connection.peer.node_id, connection.address)

    def add_link(self, connection: PeerConnection) -> None:
        """Watch a link for silence."""
        self._links.add(connection)
        if self._has_stopped:
            connection.close("this broker stops")

    def remove_link(self, connection: PeerConnection) -> None:
        self._links.discard(connection)

    def closed(self, connection: PeerConnection, reason: str) -> None:
        self._prove(connection)
        self.remove_link(connection)
        if not connection.is_linked and not self._has_stopped:
            level, refused = self._refusals.level(self._loop.time()), self._refusals.count
            log.log(level, "peer refused address=%s refused=%d reason=%s", connection.address, refused, reason)

    def _accepted(self) -> TlsTransport:
        credentials = None if self._accept is None else self._credentials
        certificate = self._certificate()
        handshake = AcceptorHandshake(credentials, certificate.der, _nonce())
        connection = PeerConnection(self, handshake, self._answer, certificate.check_peer)
        return TlsTransport(certificate.acceptor, connection, is_server=True)

    def _answer(self, link: PeerLink, service: PeerService) -> PeerEnd:
        assert self._accept is not None
        return self._accept(link, service)

    def _prove(self, connection: PeerConnection) -> None:
        limit = self._unproved.pop(connection, None)
        if limit is not None:
            limit.cancel()

    def _check_later(self) -> None:
        self._check = self._loop.call_later(_CHECK_S, self._check_links)

    def _check_links(self) -> None:
        """End the links of silent peers. After a pause of this process the bytes that have arrived are read first."""
        now_s = self._loop.time()
        was_paused = now_s - self._checked_s > 2 * _CHECK_S
        self._checked_s = now_s
        for connection in list(self._links):
            if was_paused:
                connection.heard_s = now_s
            connection.check_silence(now_s)
        self._check_later()


class _Dialled:
    """Reports the outcome of one dial: an empty string, or the reason of its failure."""

    def __init__(self, network: TcpPeerNetwork, outcome: "asyncio.Future[str]") -> None:
        self.max_unsent_bytes = network.max_unsent_bytes
        self._network = network
        self._outcome = outcome

    def opened(self, connection: PeerConnection) -> None:
        """The time limit of the dial covers the handshake."""

    def linked(self, connection: PeerConnection) -> None:
        self._network.add_link(connection)
        self._settle("")

    def closed(self, connection: PeerConnection, reason: str) -> None:
        self._network.remove_link(connection)
        self._settle(reason)

    def _settle(self, failure: str) -> None:
        if not self._outcome.done():
            self._outcome.set_result(failure)


def _dialing(certificate: LinkCertificate, connection: PeerConnection, host: str) -> TlsTransport:
    """Return the transport of a dial. Raises ValueError for a host that no certificate can name."""
    context = certificate.dialer
    return TlsTransport(context, connection, is_server=False, host=host if context.check_hostname else None)


def _nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)
