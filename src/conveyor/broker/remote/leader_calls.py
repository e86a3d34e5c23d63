"""Asks the leader of a partition, which is this broker or another one.

    leader by the newest image -> ask it -> (NOT_LEADER, or out of reach) -> wait for a newer image -> ask once more

The second refusal is the caller's. If an answer is lost, only a call that may be executed twice is sent again.
"""

from collections import Counter
from typing import NamedTuple, TypeVar

from conveyor.broker.answers import all_answered, emitted
from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.remote.answering import CallAnswerer
from conveyor.broker.remote.calls import Call, CallHandlers
from conveyor.broker.remote.remote import AnswerLost, Remote
from conveyor.broker.services import Services
from conveyor.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, NotLeader, ProtocolViolation, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerService, PeerUnreachable
from conveyor.kernel.signal import Signal

Request = TypeVar("Request")
Reply = TypeVar("Reply")

CALL_TIMEOUT_MS = 30_000
_NEWER_IMAGE_MS = 5_000
_REACHABLE_MS = 500
"""The longest waits for a newer image: of a broker that does not lead, and of one that cannot be reached."""


class TopicLeaders(NamedTuple):
    """led_count: the partitions of the topic that this broker leads. others: the other brokers that lead some, in
    order.
    """

    led_count: int
    others: tuple[NodeId, ...]

    @property
    def is_here(self) -> bool:
        """Whether this broker leads partitions of the topic."""
        return self.led_count > 0


class LeaderCalls:
    """See the module's docstring. handlers: the rooms register what they answer."""

    def __init__(self, services: Services, links: ClusterLinks) -> None:
        self.node_id = services.me
        self.handlers: CallHandlers[Caller] = CallHandlers()
        self._metadata = services.metadata
        self._remote = Remote(services, links)
        services.serving.callback(self._remote.stop)
        links.serve(PeerService.CALLS, CallAnswerer(services, self.handlers).accept)
        self._clock = services.clock
        self._observed: Signal[None] = Signal()
        """A newer image was observed."""
        self._leaders: dict[str, tuple[TopicImage, TopicLeaders]] = {}
        self._metadata.listen(self._observe)

    def leads_here(self, topic: str, number: int) -> bool:
        """Return whether this broker leads a partition by the newest image. Raises RequestError (UNKNOWN_TOPIC)."""
        return self.partition(topic, number).leader == self.node_id

    def partition(self, topic: str, number: int) -> PartitionImage:
        """Return a partition in the newest image. Raises RequestError (UNKNOWN_TOPIC)."""
        partition = self._metadata.image.partition(topic, number)
        if partition is None:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic}' has no partition {number}")
        return partition

    async def ask(
        self,
        caller: Caller,
        call: Call[Request, Reply],
        topic: str,
        number: int,
        request: Request,
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> Reply:
        """Return the answer of the leader of a partition.

        Raises RequestError: that of the leader; NOT_LEADER if no leader was found; REQUEST_TIMED_OUT if its answer was
        lost, so that the call may have been executed.
        """
        before = self.partition(topic, number)
        try:
            return await self._ask_once(caller, call, topic, number, request, timeout_ms)
        except NotLeader as error:
            patience_ms = _REACHABLE_MS if isinstance(error, _LeaderUnreachable) else _NEWER_IMAGE_MS
        await self.newer_leader(topic, number, before, patience_ms)
        return await self._ask_once(caller, call, topic, number, request, timeout_ms)

    def leaders(self, topic: str) -> TopicLeaders:
        """Return the brokers that lead partitions of a topic by the newest image. Raises RequestError."""
        topic_image = self._topic(topic)
        cached = self._leaders.get(topic)
        if cached is None or cached[0] is not topic_image:
            led_counts = Counter(partition.leader for partition in topic_image.partitions)
            others = tuple(sorted(led_counts.keys() - {NO_LEADER, self.node_id}))
            cached = self._leaders[topic] = topic_image, TopicLeaders(led_counts[self.node_id], others)
        return cached[1]

    async def ask_others(self, caller: Caller, call: Call[Request, Reply], topic: str, request: Request) -> list[Reply]:
        """Return the answers of all other brokers that lead partitions of a topic.

        Raises RequestError: that of any of them; NOT_LEADER if a leader is missing or cannot be reached.
        """
        image = self._metadata.image.topics.get(topic)
        for number, partition in enumerate(() if image is None else image.partitions):
            if partition.leader == NO_LEADER:
                raise NotLeader(f"no broker leads {topic}-{number} at the moment", None, partition.leader_epoch)
        asks = [self._ask_reachable(caller, call, node_id, request) for node_id in self.leaders(topic).others]
        return await all_answered(asks) if asks else []

    async def _ask_reachable(
        self, caller: Caller, call: Call[Request, Reply], node_id: NodeId, request: Request
    ) -> Reply:
        try:
            return await self.ask_node(caller, call, node_id, request, CALL_TIMEOUT_MS)
        except PeerUnreachable as failure:
            raise RequestError(ErrorKind.NOT_LEADER, f"a leader cannot be reached: {failure}") from failure

    async def ask_node(
        self,
        caller: Caller,
        call: Call[Request, Reply],
        node_id: NodeId,
        request: Request,
        timeout_ms: int,
        *,
        image_seq: int | None = None,
    ) -> Reply:
        """Return the answer of another broker. Raises RequestError as the other broker has, PeerUnreachable.

        image_seq: see `Remote.ask`.
        """
        payload = await self._remote.ask(
            caller, node_id, call.name, call.encode_request(request), timeout_ms, image_seq=image_seq
        )
        try:
            return call.decode_reply(payload)
        except ProtocolViolation as violation:
            message = f"broker {node_id} has sent an answer that this version cannot read: {violation}"
            raise RequestError(ErrorKind.UNSUPPORTED_VERSION, message) from violation

    async def newer_leader(
        self, topic: str, number: int, before: PartitionImage, patience_ms: int = _NEWER_IMAGE_MS
    ) -> None:
        """Wait until the image shows another leader or leader epoch than before, or the time is up.

        If the newest image says that this broker leads, wait until this broker has applied it.
        """

        if await self._applied_here(topic, number):
            return

        def is_newer() -> bool:
            present = self._metadata.image.partition(topic, number)
            return present is None or (present.leader, present.leader_epoch) != (before.leader, before.leader_epoch)

        deadline_ms = self._clock.steady_ms() + patience_ms
        while not is_newer() and await emitted(self._observed, self._clock, deadline_ms - self._clock.steady_ms()):
            pass
        await self._applied_here(topic, number)

    def _topic(self, topic: str) -> TopicImage:
        image = self._metadata.image.topics.get(topic)
        if image is None:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic}' does not exist")
        return image

    async def _applied_here(self, topic: str, number: int) -> bool:
        """If this broker leads by the newest image, return True once it has applied the image."""
        is_here = self.leads_here(topic, number)
        if is_here:
            await self._metadata.applied.settled(self._metadata.image.seq)
        return is_here

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        self._observed.emit(None)

    async def _ask_once(
        self, caller: Caller, call: Call[Request, Reply], topic: str, number: int, request: Request, timeout_ms: int
    ) -> Reply:
        partition = self.partition(topic, number)
        leader = partition.leader
        if leader == self.node_id:
            await self._metadata.applied.settled(self._metadata.image.seq)
            return await self.handlers.answer(caller, call, request)
        if leader == NO_LEADER:
            raise NotLeader(f"no broker leads {topic}-{number} at the moment", None, partition.leader_epoch)
        try:
            return await self.ask_node(caller, call, leader, request, timeout_ms)
        except PeerUnreachable as failure:
            if isinstance(failure, AnswerLost) and not call.is_repeatable(request):
                message = f"{topic}-{number}: {failure}; the request may have been executed"
                raise RequestError(ErrorKind.REQUEST_TIMED_OUT, message) from failure
            message = f"the leader of {topic}-{number} cannot be reached: {failure}"
            raise _LeaderUnreachable(message, leader, partition.leader_epoch) from failure


class _LeaderUnreachable(NotLeader):
    """The broker that leads by the newest image does not answer."""
