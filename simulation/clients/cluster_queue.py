"""Queue clients of a simulated cluster, and the promises made to them.

    NoDoubleLease      two leases of a message that one load of the queue grants do not overlap; a leader grants none
                       once another one has granted leases in a later epoch. A queue is loaded in each leader epoch, and
                       again when its partition comes back after a full disk: it has forgotten its leases then
    NoResurrectedAck   a message is not leased again after its ack was confirmed
    NotBeforeItIsDue   a delayed message is not leased before it is due
    NoMessageForgotten a message that was acknowledged to its producer is leased at least once before the queue is empty
    NoneSettledUnseen  a message that the log has once the queue is empty was leased, also in the place of a lost one

A lease may arrive late, after others that were granted later. So the ledger compares the times at which leases were
granted and ended at their leader, and not those at which they arrived. Nothing else is promised about
a queue whose records may be lost; see `replica_ledger`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from conveyor.kernel.errors import RequestError
from conveyor.queues.delivery.ack_id import decode_ack_id
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.rest_requests import ClientLease, lease_messages, settle
from simulation.ledger import InvariantBroken
from simulation.story_schedule import Step
from simulation.story_topics import QUEUE_TOPIC, SUBSCRIPTION

_NO_REPLY = (Disconnected, RequestError)
_EPOCH_SHIFT = 32


@dataclass(slots=True)
class Granted:
    """A lease as its leader has granted it.

    incarnation: of the loaded queue; see `ack_id`. granted_ms, ends_ms: in steady time, the earliest and the latest
    moments at which the lease may have been granted, and may have ended: it expired, or its settlement began.
    """

    incarnation: int
    granted_ms: tuple[int, int]
    ends_ms: tuple[int, int]

    @property
    def epoch(self) -> int:
        """The leader epoch."""
        return self.incarnation >> _EPOCH_SHIFT

    def is_apart(self, earlier: "Granted") -> bool:
        """Return whether this lease may have been granted after the end of another one, or have ended before it."""
        return self.granted_ms[1] >= earlier.ends_ms[0] or earlier.granted_ms[1] >= self.ends_ms[0]


class ClusterQueueLedger:
    """The messages of one subscription; see the module's docstring. Times without another word are in steady time.

    is_excused: returns whether records of the queue may be lost. latest_at: returns the latest time that the wall clock
    of any broker had shown at a moment.
    """

    def __init__(self, is_excused: Callable[[], bool], latest_at: Callable[[int], int]) -> None:
        self.is_excused = is_excused
        self._latest_at = latest_at
        self.published: dict[str, int] = {}
        """The due times of acknowledged messages, of a wall clock, by message id."""
        self.leased: set[str] = set()
        self._payloads: set[str] = set()
        """Of all leased messages. No two messages have the same."""
        self._leases: dict[str, dict[str, Granted]] = {}
        """The leases of each message, by ack id."""
        self._acked_ms: dict[str, int] = {}
        self._epochs: dict[int, list[Granted]] = {}
        """The first lease of each epoch, by partition."""

    @property
    def acked(self) -> Collection[str]:
        """The ids of the messages whose acks were confirmed."""
        return self._acked_ms

    def lease(self, lease: ClientLease, partition: int, granted: Granted) -> None:
        """Check and note a lease."""
        name = lease.message_id
        if not self.is_excused():
            self._check(name, granted)
            self._check_epoch(partition, granted)
        self._leases.setdefault(name, {})[lease.ack_id] = granted
        self.leased.add(name)
        self._payloads.add(lease.payload)

    def leases_of(self, message_id: str) -> Mapping[str, Granted]:
        """Return the leases of a message by ack id."""
        return self._leases.get(message_id, {})

    def release(self, lease: ClientLease, now_ms: int) -> None:
        """Note that a worker is about to settle its lease."""
        granted = self._leases[lease.message_id][lease.ack_id]
        earliest_ms, latest_ms = granted.ends_ms
        granted.ends_ms = min(earliest_ms, now_ms), min(latest_ms, now_ms)

    def ack(self, lease: ClientLease, now_ms: int) -> None:
        """Note that an ack was confirmed."""
        self._acked_ms.setdefault(lease.message_id, now_ms)

    def check_drained(self) -> None:
        """Check, once the queue is empty, that every message was leased."""
        forgotten = sorted(set(self.published) - self.leased)
        if forgotten and not self.is_excused():
            raise InvariantBroken(
                "NoMessageForgotten", f"messages {forgotten[:5]} of {len(forgotten)} were never leased"
            )

    def check_seen(self, payloads: Iterable[str]) -> None:
        """Check, once the queue is empty, that every message was leased which its log has."""
        unseen = sorted(set(payloads) - self._payloads)
        if unseen:
            raise InvariantBroken("NoneSettledUnseen", f"{unseen[0]} and {len(unseen) - 1} others were never leased")

    def _check(self, name: str, granted: Granted) -> None:
        earliest_ms, latest_ms = granted.granted_ms
        if earliest_ms > self._acked_ms.get(name, earliest_ms):
            raise InvariantBroken("NoResurrectedAck", f"message {name} was acknowledged")
        if (shown_ms := self._latest_at(latest_ms)) < self.published.get(name, 0):
            raise InvariantBroken("NotBeforeItIsDue", f"message {name} at {shown_ms}")
        for other in self._leases.get(name, {}).values():
            if other.incarnation == granted.incarnation and not granted.is_apart(other):
                raise InvariantBroken("NoDoubleLease", f"message {name} has the leases {other} and {granted}")

    def _check_epoch(self, partition: int, granted: Granted) -> None:
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
    """Leases messages of a subscription through any broker, and settles its leases through any other."""

    def __init__(
        self,
        ledger: ClusterQueueLedger,
        cluster: SimulatedCluster,
        topic: str = QUEUE_TOPIC,
        subscription: str = SUBSCRIPTION,
    ) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._topic = topic
        self._subscription = subscription
        self._leases: list[ClientLease] = []

    async def execute(self, step: Step, door: ClientDoor) -> None:
        if step.action == "nack_messages":
            return await self._nack_messages(door)
        await (self.lease(door, step.number) if step.action == "lease" else self._settle(door, step.number))

    async def lease(self, door: ClientDoor, number: int) -> int:
        """Lease a few messages. Returns the number of leases."""
        visibility_ms, wait_ms = 1_000 + number % 20_000, number % 3_000
        asked_ms = self._cluster.clock.steady_ms()
        try:
            leases = await lease_messages(door.any(), self._subscription, 1 + number % 8, wait_ms, visibility_ms)
        except _NO_REPLY:
            return 0
        subscription = self._cluster.tree.image.subscriptions.get(self._subscription)
        if subscription is None:  # It is gone with its topic.
            return 0
        for lease in leases:
            lease_id = decode_ack_id(subscription.subscription_id, lease.ack_id)
            assert lease_id is not None, f"{lease.ack_id} is not of this subscription"
            granted = self._granted(lease, lease_id.partition, lease_id.incarnation, visibility_ms, asked_ms)
            self._ledger.lease(lease, lease_id.partition, granted)
        self._leases += leases
        return len(leases)

    def _granted(
        self, lease: ClientLease, partition: int, incarnation: int, visibility_ms: int, asked_ms: int
    ) -> Granted:
        """Find when a lease was granted: it expires by the wall clock of its leader, which may have been set since."""
        topic, arrived_ms = self._cluster.tree.image.topics[self._topic], self._cluster.clock.steady_ms()
        leader = self._cluster.leaders.of(topic.topic_id, partition, incarnation >> _EPOCH_SHIFT)
        moments = sorted(
            moment
            for node_id, broker in self._cluster.brokers.items()
            if leader in (None, node_id)
            for moment in broker.clock.shown_at(lease.expires_ms - visibility_ms, asked_ms, arrived_ms)
        )
        earliest_ms, latest_ms = (moments[0], moments[-1]) if moments else (asked_ms, arrived_ms)
        return Granted(incarnation, (earliest_ms, latest_ms), (earliest_ms + visibility_ms, latest_ms + visibility_ms))

    async def settle_all(self, door: ClientDoor) -> None:
        """Ack all current leases."""
        while self._leases:
            await self.ack(door, self.take_all())

    async def _settle(self, door: ClientDoor, number: int) -> None:
        chosen = self._taken(1 + number % 4)
        if number % 3:
            await self.ack(door, chosen)
        else:
            await self.settle(door, "nack", chosen, delay=f"{number % 5_000}ms")

    async def ack(self, door: ClientDoor, chosen: Sequence[ClientLease], **fields: object) -> list[ClientLease]:
        """Ack leases. Returns those whose acks were confirmed."""
        errors = await self.settle(door, "ack", chosen, **fields)
        confirmed = [lease for lease, error in zip(chosen, errors, strict=False) if error is None]
        self.acknowledged(confirmed)
        return confirmed

    async def settle(
        self, door: ClientDoor, verb: str, chosen: Sequence[ClientLease], **fields: object
    ) -> Sequence[RequestError | None]:
        """Ack or nack leases. Returns nothing if there is no reply."""
        self.release(chosen)
        ack_ids = [lease.ack_id for lease in chosen]
        if not ack_ids:
            return ()
        try:
            return await settle(door.any(), self._subscription, verb, ack_ids, "ack_ids", **fields)
        except _NO_REPLY:
            return ()

    async def _nack_messages(self, door: ClientDoor) -> None:
        """Nack all leased messages by their own ids. The leases must outlast the request: it may otherwise end those of
        another worker.
        """
        chosen = self.take_all()
        self.release(chosen)
        with suppress(*_NO_REPLY):
            ids = [lease.message_id for lease in chosen]
            await settle(door.any(), self._subscription, "nack", ids, "message_ids", delay="0ms")

    @property
    def leases(self) -> Sequence[ClientLease]:
        """The leases that are not settled."""
        return self._leases

    def take_all(self) -> list[ClientLease]:
        """Return all current leases, which something else settles."""
        return self._taken(len(self._leases))

    def release(self, leases: Sequence[ClientLease]) -> None:
        """Note that leases are about to be settled."""
        for lease in leases:
            self._ledger.release(lease, self._cluster.clock.steady_ms())

    def acknowledged(self, leases: Sequence[ClientLease]) -> None:
        """Note that acks were confirmed."""
        for lease in leases:
            self._ledger.ack(lease, self._cluster.clock.steady_ms())

    def _taken(self, count: int) -> list[ClientLease]:
        chosen, self._leases = self._leases[:count], self._leases[count:]
        return chosen
