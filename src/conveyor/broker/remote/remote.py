"""Asks other brokers, over one link to each; the link is opened for the first call and again after it has ended.

    no link -> (a call) -> dialing -> open -> (the link ends, or the broker has started again) -> no link
                                   -> (fails) -> no link; calls fail at once until a pause has passed, which doubles

Each call has a time limit, and the number and the bytes of the calls that wait for one broker are bounded. A caller
that is cancelled withdraws its call, so the other broker stops working on it.
"""

import asyncio
import logging
from collections.abc import Callable

from conveyor.broker.answers import answered
from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.remote.call_frames import Answered, Ask, Withdraw, decode_from_answerer, encode_frame
from conveyor.broker.remote.calls import MAX_PAYLOAD_BYTES
from conveyor.broker.remote.wire_errors import from_wire
from conveyor.broker.services import Services
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerAddress, PeerLink, PeerService, PeerUnreachable
from conveyor.kernel.ports import Bytes

log = logging.getLogger(__name__)

MAX_CALLS = 10_000
MAX_CALL_BYTES = 2 * MAX_PAYLOAD_BYTES
"""The most calls that wait for one broker, and the most bytes of their requests."""

_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 2_000


class AnswerLost(PeerUnreachable):
    """The call was sent and no answer has come: the other broker may have executed it."""


Respond = Callable[[bytes | RequestError | PeerUnreachable], None]


class _Waiting:
    """One call that waits for its answer."""

    __slots__ = ("respond", "size_bytes")

    def __init__(self, respond: Respond, size_bytes: int) -> None:
        self.respond = respond
        self.size_bytes = size_bytes


class AskingEnd:
    """The end of a link for calls at the broker that asks."""

    def __init__(self, link: PeerLink) -> None:
        self.link = link
        self.is_open = True
        self._waiting: dict[int, _Waiting] = {}
        self._waiting_bytes = 0
        self._last_id = 0

    def ask(self, caller: Caller, name: str, image_seq: int, payload: bytes, respond: Respond) -> int:
        """Send a call. Returns its id, for `withdraw`. Raises RequestError if too many wait, PeerUnreachable."""
        if not self.is_open:
            raise PeerUnreachable(f"the link to broker {self.link.peer.node_id} has just ended")
        waiting_bytes = max(self._waiting_bytes, self.link.unsent_bytes)  # Withdrawn calls may be unsent.
        if len(self._waiting) >= MAX_CALLS or waiting_bytes + len(payload) > MAX_CALL_BYTES:
            raise RequestError(
                ErrorKind.COORDINATOR_NOT_AVAILABLE,
                f"{len(self._waiting)} calls wait for broker {self.link.peer.node_id} already: ask again later",
            )
        self._last_id += 1
        self._waiting[self._last_id] = _Waiting(respond, len(payload))
        self._waiting_bytes += len(payload)
        self.link.send(encode_frame(Ask(self._last_id, name, image_seq, payload, caller)))
        return self._last_id

    def withdraw(self, call_id: int) -> None:
        """Wait for the answer no longer. Does nothing if it is there."""
        if self._take(call_id) is not None:
            self.link.send(encode_frame(Withdraw(call_id)))

    def received(self, frame: Bytes) -> None:
        answer = decode_from_answerer(frame)
        waiting = self._take(answer.call_id)
        if waiting is not None:  # Otherwise it was withdrawn.
            waiting.respond(answer.payload if isinstance(answer, Answered) else from_wire(answer.error))

    def ended(self, reason: str) -> None:
        self.is_open = False
        lost, self._waiting = self._waiting, {}
        self._waiting_bytes = 0
        for waiting in lost.values():
            waiting.respond(AnswerLost(f"the link to broker {self.link.peer.node_id} has ended: {reason}"))

    def _take(self, call_id: int) -> _Waiting | None:
        waiting = self._waiting.pop(call_id, None)
        if waiting is not None:
            self._waiting_bytes -= waiting.size_bytes
        return waiting


class _Peer:
    """The state of one other broker, as this broker knows it."""

    def __init__(self) -> None:
        self.end: AskingEnd | None = None
        self.dialing: asyncio.Task[AskingEnd] | None = None
        self.address: PeerAddress | None = None
        self.pause_ms = _FIRST_PAUSE_MS
        self.paused_until_ms = 0


class Remote:
    def __init__(self, services: Services, links: ClusterLinks) -> None:
        self._links = links
        self._metadata = services.metadata
        self._clock = services.clock
        self._peers: dict[NodeId, _Peer] = {}
        self._is_stopped = False

    async def ask(
        self,
        caller: Caller,
        node_id: NodeId,
        name: str,
        payload: bytes,
        timeout_ms: int,
        *,
        image_seq: int | None = None,
    ) -> bytes:
        """Return the answer of another broker.

        caller: the client for which this broker asks, or this broker itself.
        image_seq: the image that the other broker must have applied; None for this broker's newest, 0 for none.

        Raises RequestError as the other broker has raised it; PeerUnreachable if the call was not sent; AnswerLost if
        no answer has come within the time.
        """
        deadline_ms = self._clock.steady_ms() + timeout_ms
        end = await self._opened(node_id, timeout_ms)
        left_ms = deadline_ms - self._clock.steady_ms()
        lost = AnswerLost(f"broker {node_id} has not answered '{name}' within {timeout_ms} ms")

        def send(respond: Respond) -> int:
            seq = self._metadata.image.seq if image_seq is None else image_seq
            return end.ask(caller, name, seq, payload, respond)

        def submit(respond: Respond) -> Callable[[], None]:
            return self._submit(end, send, left_ms, lost, respond)

        answer: bytes | PeerUnreachable = await answered(submit)
        if isinstance(answer, PeerUnreachable):
            raise answer
        return answer

    def stop(self) -> None:
        """End all links. Calls that wait fail."""
        self._is_stopped = True
        for peer in self._peers.values():
            if peer.dialing is not None:
                peer.dialing.cancel()
            if peer.end is not None:
                peer.end.link.close("the broker stops")

    def _submit(
        self, end: AskingEnd, send: Callable[[Respond], int], timeout_ms: int, lost: AnswerLost, respond: Respond
    ) -> Callable[[], None]:
        try:
            call_id = send(respond)
        except (RequestError, PeerUnreachable) as error:
            respond(error)
            return lambda: None

        def give_up() -> None:
            end.withdraw(call_id)
            respond(lost)

        cancel = self._clock.time_out(max(0, timeout_ms), give_up)

        def leave() -> None:
            cancel()
            end.withdraw(call_id)

        return leave

    async def _opened(self, node_id: NodeId, timeout_ms: int) -> AskingEnd:
        """Return an open link to the present start of a broker. Raises PeerUnreachable."""
        address = self._links.address(node_id)
        if address is None or self._is_stopped:
            raise PeerUnreachable(f"broker {node_id} has no address for other brokers")
        peer = self._peers.setdefault(node_id, _Peer())
        if peer.address != address:
            self._forget(peer, address)
        if peer.end is not None and peer.end.is_open:
            return peer.end
        if peer.dialing is None:
            if self._clock.steady_ms() < peer.paused_until_ms:
                raise PeerUnreachable(f"broker {node_id} could not be reached a moment ago")
            peer.dialing = asyncio.ensure_future(self._dial(peer, address))
            peer.dialing.add_done_callback(_retrieve)
        return await self._dialed(peer.dialing, node_id, timeout_ms)

    async def _dialed(self, dialing: "asyncio.Task[AskingEnd]", node_id: NodeId, timeout_ms: int) -> AskingEnd:
        """Wait for a dial that other callers may wait for as well. Raises PeerUnreachable."""

        def submit(over: Callable[[None], None]) -> Callable[[], None]:
            cancel = self._clock.time_out(timeout_ms, lambda: over(None))

            def done(_: object) -> None:
                over(None)

            dialing.add_done_callback(done)

            def leave() -> None:
                cancel()
                dialing.remove_done_callback(done)

            return leave

        await answered(submit)
        if not dialing.done() or dialing.cancelled():
            raise PeerUnreachable(f"broker {node_id} could not be reached within {timeout_ms} ms")
        failure = dialing.exception()
        if failure is not None:
            raise PeerUnreachable(str(failure)) if isinstance(failure, PeerUnreachable) else failure
        return dialing.result()

    async def _dial(self, peer: _Peer, address: PeerAddress) -> AskingEnd:
        made: list[AskingEnd] = []

        def answer(link: PeerLink) -> AskingEnd:
            made.append(AskingEnd(link))
            return made[0]

        try:
            await self._links.dial(address, PeerService.CALLS, answer)
        except PeerUnreachable as failure:
            if peer.address == address:
                peer.paused_until_ms = self._clock.steady_ms() + peer.pause_ms
                peer.pause_ms = min(2 * peer.pause_ms, _LONGEST_PAUSE_MS)
                log.info("broker not reached node=%d reason=%s", address.identity.node_id, failure)
            raise
        finally:
            if peer.address == address:
                peer.dialing = None
        if peer.address != address:
            made[0].link.close("the broker has started again")
            raise PeerUnreachable(f"broker {address.identity.node_id} has started again")
        peer.pause_ms = _FIRST_PAUSE_MS
        peer.end = made[0]
        return made[0]

    def _forget(self, peer: _Peer, address: PeerAddress) -> None:
        """The broker has registered again: its earlier link leads to a process that is gone or will be."""
        end, peer.end, peer.dialing, peer.address = peer.end, None, None, address
        peer.pause_ms, peer.paused_until_ms = _FIRST_PAUSE_MS, 0
        if end is not None:
            end.link.close("the broker has started again")


def _retrieve(dialing: "asyncio.Task[AskingEnd]") -> None:
    """Every caller may have given up before the dial failed."""
    if not dialing.cancelled():
        dialing.exception()
