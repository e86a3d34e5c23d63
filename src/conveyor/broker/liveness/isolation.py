"""Decides whether this broker is cut off from its cluster, so that its clients must use other brokers.

    registered, holds its lease                                  part of the cluster
    not registered, or fenced in the newest image                cut off
    registered, its lease has expired:
      a broker that holds its lease says that the registration has ended  cut off
      no other live broker has answered for a session timeout             cut off: they may have replaced this one
      otherwise                                                           as before

Only the answer of a broker that is itself part of the cluster counts. One that has lost its registration answers with
an error, and an error, a lost answer and an unreachable broker are the same: none of them shows that the metadata store
is away for all. An answer does not wait for the asker's image, because a broker without the store may never get it.

A gateway has no place in the image. It is cut off if, for a session timeout, its lease has expired and those of other
brokers have not (its image is old), or it reaches none of them.

A broker that loses its metadata store learns that its session has ended only when it is connected again. Until then it
asks the other brokers. When no broker reaches the store, all leases expire, and all brokers continue to serve.

Metadata of a broker that is cut off is stale for as long as that lasts. Kafka clients send their next request to any
broker that they are connected to, so they would ask the same one forever: the doors close their connections instead.
"""

import asyncio
import logging
from enum import Enum, auto

import msgspec

from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, is_gateway
from conveyor.kernel.peers import PeerUnreachable
from conveyor.kernel.signal import Signal

log = logging.getLogger(__name__)

_CHECKS_PER_TIMEOUT = 3

UNREGISTERED = "this broker has lost its place in the cluster, and waits until it is registered again"
REPLACED = "this broker cannot reach the metadata store, and the other brokers have ended its registration"
OUTDATED = "this gateway cannot reach the metadata store, and brokers can"
ALONE = "this broker can reach neither the metadata store nor any other broker of the cluster"


class AskedRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """The registration of the broker that asks."""

    node_id: int
    incarnation: str
    image_seq: int
    """The number of the asker's image. An older image may show an earlier incarnation."""


HAS_ENDED: Call[AskedRegistration, bool] = Call("registration-has-ended", AskedRegistration, bool, is_repeatable=True)
"""The reply is True if the asked broker holds its lease and its image no longer shows the asker's registration."""


class _Answer(Enum):
    ENDED = auto()
    NOT_KNOWN_TO_HAVE_ENDED = auto()
    NONE = auto()
    """The other broker is not known to be part of the cluster."""


class Isolation:
    """See the module's docstring. reason: why this broker is cut off; None while it is part of the cluster. cut_off:
    emitted each time this broker is cut off.
    """

    def __init__(self, services: Services, calls: LeaderCalls) -> None:
        self.reason: str | None = None
        self.cut_off: Signal[None] = Signal()
        self._metadata = services.metadata
        self._own_caller = services.own_caller
        self._session = services.metadata.session
        self._calls = calls
        self._clock = clock = services.clock
        self._tasks = services.tasks
        self._alarm = Alarm(clock, self._on_alarm)
        self._is_gateway = is_gateway(calls.node_id)
        self._is_asking = self._is_stopped = False
        self._connected_ms = clock.steady_ms()
        """The last time (steady clock) when this broker held its lease or another broker of the cluster answered."""
        self._leased_ms = self._connected_ms
        calls.handlers.register(HAS_ENDED, self._answer)

    def start(self) -> None:
        """Watch from now on; this broker is registered. With an embedded store there is nothing to watch."""
        if self._session.is_embedded:
            return
        self._session.lost.listen(lambda _: self._check())
        self._session.lease_renewed.listen(lambda _: self._check())
        self._metadata.listen(lambda _old, _new: self._check())
        self._on_alarm()

    def stop(self) -> None:
        """Watch no more: the registration ends with the broker."""
        self._is_stopped = True
        self._alarm.end()

    def _on_alarm(self) -> None:
        self._alarm.after(max(1, self._session.timeout_ms // _CHECKS_PER_TIMEOUT))
        self._check()

    def _check(self) -> None:
        if self._is_stopped:
            return
        if not self._has_place():
            self._decide(UNREGISTERED)
        elif self._session.holds_lease():
            self._leased_ms = self._connected_ms = self._clock.steady_ms()
            self._decide(None)
        elif not self._is_asking:
            self._is_asking = True
            self._tasks.start(self._ask_others())

    def _decide(self, reason: str | None) -> None:
        before, self.reason = self.reason, reason
        if before == reason:
            return
        if reason is None:
            log.info("broker is part of the cluster again")
            return
        log.warning("broker cut off reason=%s", reason)
        if before is None:
            self.cut_off.emit(None)

    async def _ask_others(self) -> None:
        try:
            image = self._metadata.image
            own = AskedRegistration(
                node_id=self._calls.node_id, incarnation=self._session.incarnation, image_seq=image.seq
            )
            others = [node.node_id for node in image.live_brokers if node.node_id != own.node_id]
            answers = await asyncio.gather(*(self._ask(node_id, own) for node_id in others))
            has_lost_lease = self._has_place() and not self._session.holds_lease()
            if has_lost_lease and own.incarnation == self._session.incarnation:
                self._judge(answers)
        finally:
            self._is_asking = False

    def _judge(self, answers: list[_Answer]) -> None:
        if _Answer.ENDED in answers and not self._is_gateway:
            self._decide(REPLACED)
        elif self.reason == REPLACED:
            return  # A registration that has ended does not come back when the broker that has said so is out of reach.
        elif _Answer.ENDED in answers and self._has_passed(self._leased_ms):
            self._decide(OUTDATED)
        elif not answers or {_Answer.ENDED, _Answer.NOT_KNOWN_TO_HAVE_ENDED} & {*answers}:
            self._connected_ms = self._clock.steady_ms()
            self._decide(None)
        elif self._has_passed(self._connected_ms):
            self._decide(ALONE)

    def _has_place(self) -> bool:
        return self._is_gateway or self._session.may_lead(self._metadata.image)

    def _has_passed(self, since_ms: int) -> bool:
        return self._clock.steady_ms() - since_ms >= self._session.timeout_ms

    async def _ask(self, node_id: NodeId, own: AskedRegistration) -> _Answer:
        try:
            has_ended = await self._calls.ask_node(
                self._own_caller, HAS_ENDED, node_id, own, self._session.timeout_ms, image_seq=0
            )
        except (RequestError, PeerUnreachable):
            return _Answer.NONE
        return _Answer.ENDED if has_ended else _Answer.NOT_KNOWN_TO_HAVE_ENDED

    async def _answer(self, _: Caller, asked: AskedRegistration) -> bool:
        """By an image that is not older than the asker's, so another incarnation in it is a newer one.

        Raises RequestError if this broker has no place in the cluster. One that was alone is no longer: it was reached.
        """
        if self.reason is not None and self.reason != ALONE:
            raise RequestError(ErrorKind.METADATA_UNAVAILABLE, self.reason)
        image = self._metadata.image
        broker = image.brokers.get(NodeId(asked.node_id))
        is_current = broker is not None and not broker.is_fenced and broker.incarnation == asked.incarnation
        return self._session.holds_lease() and image.seq >= asked.image_seq and not is_current
