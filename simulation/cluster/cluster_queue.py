"""Queue clients of a simulated cluster, and the promises made to them.

    NoDoubleLease      two leases of a message that one load of the queue grants do not overlap; a leader grants none
                       once another one has granted leases in a later epoch. A queue is loaded in each leader epoch, and
                       again when its partition comes back after a full disk: it has forgotten its leases then
    NoResurrectedAck   a message is not leased again after its ack was confirmed
    NotBeforeItIsDue   a delayed message is not leased before it is due
    NoMessageForgotten a message that was acknowledged to its producer is leased at least once before the queue is empty

A lease may arrive late, after others that were granted later. So the ledger compares the times at which leases were
granted and ended at their leader, and not those at which they arrived. Nothing is promised about a queue whose records
may be lost; see `replica_ledger`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.queues.leasing.lease import Lease
from conveyor.kernel.errors import RequestError
from conveyor.queues.delivery.ack_id import decode_ack_id
from simulation.actors import QUEUE_TOPIC, SUBSCRIPTION
from simulation.callers import CALLER
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.ledger import InvariantBroken
from simulation.simulated_broker import Disconnected
from simulation.story_schedule import Step

_NO_REPLY = (Disconnected, RequestError)
_EPOCH_SHIFT = 32


@dataclass(slots=True)
class _Granted:
    """incarnation: of the loaded queue; see `ack_id`. granted_ms, ends_ms: in steady time, the earliest and the latest
    moments at which the lease may have been granted, and may have ended: it expired, or its settlement began.
    """

    incarnation: int
    granted_ms: tuple[int, int]
    ends_ms: tuple[int, int]

    @property
    def epoch(self) -> int:
        """The leader epoch."""
        return self.incarnation >> _EPOCH_SHIFT


class ClusterQueueLedger:
    """The messages of one subscription; see the module's docstring. Times without another word are in steady time.

    is_excused: returns whether records of the queue may be lost. latest_at: returns the latest time that the wall clock
    of any broker had shown at a moment.
    """

    def __init__(self, is_excused: Callable[[], bool], latest_at: Callable[[int], int]) -> None:
        self._is_excused = is_excused
        self._latest_at = latest_at
        self.published: dict[str, int] = {}
        """The due times of acknowledged messages, of a wall clock, by message id."""
        self.leased: set[str] = set()
        self._leases: dict[str, dict[str, _Granted]] = {}
        """The leases of each message, by ack id."""
        self._acked_ms: dict[str, int] = {}
        self._epochs: dict[int, list[_Granted]] = {}
        """The first lease of each epoch, by partition."""

    def lease(self, lease: Lease, partition: int, granted: _Granted) -> None:
        """Check and note a lease."""
        name = lease.message.message_id
        if not self._is_excused():
            self._check(name, granted)
            self._check_epoch(partition, granted)
        self._leases.setdefault(name, {})[lease.ack_id] = granted
        self.leased.add(name)

    def release(self, lease: Lease, now_ms: int) -> None:
        """Note that a worker is about to settle its lease."""
        granted = self._leases[lease.message.message_id][lease.ack_id]
        earliest_ms, latest_ms = granted.ends_ms
        granted.ends_ms = min(earliest_ms, now_ms), min(latest_ms, now_ms)

    def ack(self, lease: Lease, now_ms: int) -> None:
        """Note that an ack was confirmed."""
        self._acked_ms.setdefault(lease.message.message_id, now_ms)

    def check_drained(self) -> None:
        """Check, once the queue is empty, that every message was leased."""
        forgotten = sorted(set(self.published) - self.leased)
        if forgotten and not self._is_excused():
            raise InvariantBroken(
                "NoMessageForgotten", f"messages {forgotten[:5]} of {len(forgotten)} were never leased"
            )

    def _check(self, name: str, granted: _Granted) -> None:
        earliest_ms, latest_ms = granted.granted_ms
        if earliest_ms > self._acked_ms.get(name, earliest_ms):
            raise InvariantBroken("NoResurrectedAck", f"message {name} was acknowledged")
        if (shown_ms := self._latest_at(latest_ms)) < self.published.get(name, 0):
            raise InvariantBroken("NotBeforeItIsDue", f"message {name} at {shown_ms}")
        for other in self._leases.get(name, {}).values():
            is_apart = latest_ms >= other.ends_ms[0] or other.granted_ms[1] >= granted.ends_ms[0]
            if other.incarnation == granted.incarnation and not is_apart:
                raise InvariantBroken("NoDoubleLease", f"message {name} has the leases {other} and {granted}")

    def _check_epoch(self, partition: int, granted: _Granted) -> None:
        firsts = self._epochs.setdefault(partition, [])
        for first in firsts:
            if first.epoch > granted.epoch and first.granted_ms[1] < granted.granted_ms[0]:
                raise InvariantBroken(
                    "NoDoubleLease",
                    f"partition {partition}: epoch {granted.epoch} grants a lease at {granted.granted_ms}, and epoch"
                    f" {first.epoch} has granted one at {first.granted_ms}",
                )
        firsts.append(granted)


class ClusterWorker:
    """Leases messages of the subscription through any broker, and settles its leases through any other."""

    def __init__(self, ledger: ClusterQueueLedger, cluster: SimulatedCluster) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._leases: list[Lease] = []

    async def execute(self, step: Step, _: object) -> None:
        await (self.lease(step.number) if step.action == "lease" else self._settle(step.number))

    async def lease(self, number: int) -> int:
        """Lease a few messages. Returns the number of leases."""
        visibility_ms, wait_ms = 1_000 + number % 20_000, number % 3_000

        async def request(inside: BrokerNode) -> tuple[UUID, list[Lease]]:
            subscription = inside.cluster.subscriptions.existing(SUBSCRIPTION)
            return subscription.id, await inside.queues.leases.lease(
                CALLER, SUBSCRIPTION, 1 + number % 8, wait_ms, visibility_ms
            )

        broker, asked_ms = await self._cluster.any(), self._cluster.clock.steady_ms()
        try:
            subscription, leases = await broker.ask(request)
        except _NO_REPLY:
            return 0
        for lease in leases:
            lease_id = decode_ack_id(subscription, lease.ack_id)
            assert lease_id is not None, f"{lease.ack_id} is not of this subscription"
            granted = self._granted(lease, lease_id.partition, lease_id.incarnation, visibility_ms, asked_ms)
            self._ledger.lease(lease, lease_id.partition, granted)
        self._leases += leases
        return len(leases)

    def _granted(self, lease: Lease, partition: int, incarnation: int, visibility_ms: int, asked_ms: int) -> _Granted:
        """Find when a lease was granted: it expires by the wall clock of its leader, which may have been set since."""
        topic, arrived_ms = self._cluster.tree.image.topics[QUEUE_TOPIC], self._cluster.clock.steady_ms()
        leader = self._cluster.leaders.of(topic.topic_id, partition, incarnation >> _EPOCH_SHIFT)
        moments = sorted(
            moment
            for node_id, broker in self._cluster.brokers.items()
            if leader in (None, node_id)
            for moment in broker.clock.shown_at(lease.expires_ms - visibility_ms, asked_ms, arrived_ms)
        )
        earliest_ms, latest_ms = (moments[0], moments[-1]) if moments else (asked_ms, arrived_ms)
        return _Granted(incarnation, (earliest_ms, latest_ms), (earliest_ms + visibility_ms, latest_ms + visibility_ms))

    async def settle_all(self) -> None:
        """Ack all current leases."""
        while self._leases:
            await self._ack(self._taken(len(self._leases)))

    async def _settle(self, number: int) -> None:
        chosen = self._taken(1 + number % 4)
        if number % 3:
            return await self._ack(chosen)
        await self._ask_to_settle(chosen, number % 5_000)

    async def _ack(self, chosen: Sequence[Lease]) -> None:
        if not chosen:
            return
        errors = await self._ask_to_settle(chosen, None)
        for lease, error in zip(chosen, errors, strict=False):
            if error is None:
                self._ledger.ack(lease, self._cluster.clock.steady_ms())

    async def _ask_to_settle(self, chosen: Sequence[Lease], delay_ms: int | None) -> Sequence[RequestError | None]:
        """Nack leases with a delay, or ack them if it is None. Returns nothing if there is no reply."""
        for lease in chosen:
            self._ledger.release(lease, self._cluster.clock.steady_ms())
        ack_ids = [lease.ack_id for lease in chosen]
        broker = await self._cluster.any()
        try:
            if delay_ms is None:
                return await broker.ask(lambda inside: inside.queues.settlements.ack(CALLER, SUBSCRIPTION, ack_ids))
            return await broker.ask(
                lambda inside: inside.queues.settlements.nack(CALLER, SUBSCRIPTION, ack_ids, delay_ms)
            )
        except _NO_REPLY:
            return ()

    def _taken(self, count: int) -> list[Lease]:
        chosen, self._leases = self._leases[:count], self._leases[count:]
        return chosen
