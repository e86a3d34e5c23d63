"""Answers the calls of other brokers: one task for each call, cancelled when the call is withdrawn or its link ends.

A call carries its caller: a client of the broker that asks, or that broker on its own account. What the frame says of a
client is trusted, because the link has proved that the peer is a broker of this cluster, and that broker has checked
who its client is. A call without a caller, or in the name of another broker than the peer, ends the link.

A call also carries the number of its asker's image. It is answered once this broker has applied that image or a later
one, so an asker that knows of a new leader, topic or subscription never meets a broker that does not.
"""

import asyncio
import logging

from conveyor.broker.remote.call_frames import Answered, Ask, Refused, Withdraw, decode_from_asker, encode_frame
from conveyor.broker.remote.calls import MAX_PAYLOAD_BYTES, CallHandlers
from conveyor.broker.remote.remote import MAX_CALLS
from conveyor.broker.remote.wire_errors import to_wire
from conveyor.broker.services import Services
from conveyor.kernel.access.caller import Caller, PrincipalType
from conveyor.kernel.errors import ErrorKind, InconsistentState, ProtocolViolation, RequestError
from conveyor.kernel.peers import PeerLink
from conveyor.kernel.ports import Bytes

log = logging.getLogger(__name__)

_MAX_UNSENT_BYTES = 2 * MAX_PAYLOAD_BYTES


class CallAnswerer:
    def __init__(self, services: Services, handlers: CallHandlers[Caller]) -> None:
        self.handlers = handlers
        self.tasks = services.tasks
        self.applied = services.metadata.applied

    def accept(self, link: PeerLink) -> "AnsweringEnd":
        """Answer the calls that arrive on a link."""
        return AnsweringEnd(link, self)


class AnsweringEnd:
    """The end of a link for calls at the broker that answers."""

    def __init__(self, link: PeerLink, answerer: CallAnswerer) -> None:
        self._link = link
        self._answerer = answerer
        self._peer = Caller.broker(link.peer.node_id).principal
        self._running: dict[int, asyncio.Task[None]] = {}

    def received(self, frame: Bytes) -> None:
        call = decode_from_asker(frame)
        if isinstance(call, Withdraw):
            task = self._running.get(call.call_id)
            if task is not None:
                task.cancel()
            return
        caller = call.caller
        if caller is None or (caller.principal.type is PrincipalType.BROKER and caller.principal != self._peer):
            raise ProtocolViolation(f"{self._peer} asks for {caller or 'nobody'}")
        if call.call_id in self._running:
            raise ProtocolViolation(f"call id {call.call_id} is used already")
        if len(self._running) >= MAX_CALLS or self._link.unsent_bytes > _MAX_UNSENT_BYTES:
            return self._refuse(call.call_id, _busy())
        task = self._running[call.call_id] = self._answerer.tasks.start(self._answer(caller, call))
        task.add_done_callback(lambda _: self._running.pop(call.call_id, None))

    def ended(self, reason: str) -> None:
        running, self._running = self._running, {}
        for task in running.values():
            task.cancel()

    async def _answer(self, caller: Caller, call: Ask) -> None:
        try:
            await self._answerer.applied.settled(call.image_seq)
            payload = await self._answerer.handlers.answer_encoded(caller, call.name, call.payload)
            self._link.send(encode_frame(Answered(call.call_id, payload)))
        except RequestError as error:
            self._refuse(call.call_id, error)
        except ProtocolViolation as violation:
            self._link.close(str(violation))
        except InconsistentState:
            raise
        except Exception:
            log.exception("call failed name=%s peer=%d caller=%s", call.name, self._link.peer.node_id, caller)
            self._refuse(call.call_id, _bug(call.name))

    def _refuse(self, call_id: int, error: RequestError) -> None:
        self._link.send(encode_frame(Refused(call_id, to_wire(error))))


def _bug(name: str) -> RequestError:
    return RequestError(ErrorKind.UNKNOWN_SERVER_ERROR, f"call '{name}': a bug: see the traceback in the broker's log")


def _busy() -> RequestError:
    return RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, "this broker has too many calls of another one: ask again")
