"""The promises about topics that are repeatedly made, changed and deleted under a few names.

Invariants, by the names that failures report:

    NoLostTopic           a topic whose creation or change was acknowledged stays, with its partitions, settings,
                          subscriptions and schedules, until a client asks for its deletion
    NoResurrectedTopic    a topic whose deletion was acknowledged does not come back, and no topic of its name shows its
                          records

The stored image decides what has become of a request without a reply, which may still be executed later.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from conveyor.cluster.image import ClusterImage
from conveyor.kernel.ids import TopicPartition
from simulation.clients.cluster_queue import ClusterQueueLedger
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.ledger import DelayLedger, InvariantBroken, LogLedger, Place

PLAIN, QUEUED, DELAYED = "churned", "churned-queue", "churned-delay"
CHURNED = (PLAIN, QUEUED, DELAYED)
"""The names of the topics."""
DUE = "churned-due"
"""The target of DELAYED. It stays."""
SETTING = "max.message.bytes"
"""The setting that changes."""


@dataclass(slots=True)
class _Kept:
    """A topic that must exist, with at least so many partitions. setting: its value, if one was acknowledged."""

    topic_id: UUID
    partitions: int
    setting: str | None = None


@dataclass(slots=True)
class _Owned:
    """Names of things that must exist as long as their topics do."""

    kind: str
    present: Callable[[ClusterImage], Mapping[str, UUID]]
    topics: dict[str, UUID] = field(default_factory=dict)


class ChurnLedger:
    """See the module's docstring. Changes of one name do not overlap. Adds to the cluster's `broken`."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.logs = LogLedger(has_failovers=True)
        self.delays: dict[UUID, DelayLedger] = {}
        self.queues: dict[str, ClusterQueueLedger] = {}
        """By subscription. Names of subscriptions are never used again."""
        self.subscriptions = _Owned("subscription", _subscribed)
        self.schedules = _Owned("schedule", _scheduled)
        self._cluster = cluster
        self._kept: dict[str, _Kept] = {}
        self._deleted: set[UUID] = set()
        self._attempted: dict[str, set[str]] = {name: set() for name in CHURNED}
        """The values whose changes may still be executed, by name of the topic."""
        cluster.tree.observe(self._stored)

    def keep(self, name: str, topic_id: UUID, partitions: int) -> None:
        """Note that a topic was created, or has grown."""
        before = self._kept.get(name)
        is_same = before is not None and before.topic_id == topic_id
        self._kept[name] = _Kept(topic_id, partitions, before.setting if is_same and before is not None else None)
        self._check(name, self._cluster.tree.image)

    def attempt_setting(self, name: str, value: str) -> None:
        self._attempted[name].add(value)

    def confirm_setting(self, name: str, value: str) -> None:
        """Note that a setting was changed."""
        self._attempted[name].discard(value)
        if name in self._kept:
            self._kept[name].setting = value
            self._check(name, self._cluster.tree.image)

    def attempt_deletion(self, name: str, topic_id: UUID) -> None:
        """Note that a topic may be gone from now on."""
        if name in self._kept and self._kept[name].topic_id == topic_id:
            del self._kept[name]

    def confirm_deletion(self, topic_id: UUID) -> None:
        self._deleted.add(topic_id)
        self._check_deleted(self._cluster.tree.image)

    def own(self, owned: _Owned, name: str, topic: str) -> None:
        """Note that a subscription or schedule of a topic was created. Its topic may be gone already."""
        image = self._cluster.tree.image
        if (topic_id := owned.present(image).get(name)) is not None:
            owned.topics[name] = topic_id
        elif (kept := self._kept.get(topic)) is not None:
            self._break("NoLostTopic", f"image {image.seq}: {owned.kind} {name} of topic {kept.topic_id} is not there")

    def newest_subscription(self) -> str | None:
        """Return the last subscription whose topic must exist."""
        names = self._cluster.tree.image.names_by_id
        present = [name for name, topic_id in self.subscriptions.topics.items() if topic_id in names]
        return present[-1] if present else None

    def of_subscription(self, name: str) -> ClusterQueueLedger:
        return self.queues.setdefault(
            name, ClusterQueueLedger(lambda: self.is_excused(QUEUED), self._cluster.latest_at)
        )

    def place(self, name: str, topic_id: UUID, partition: int) -> Place:
        """Return the place of a partition in the ledger of logs, after noting whether its records may be lost."""
        place, is_present = (f"{name} {topic_id}", partition), topic_id in self._cluster.tree.image.names_by_id
        if is_present and self._cluster.replicas.is_excused(TopicPartition(name, partition)):
            self.logs.excuse(place)
        return place

    def is_excused(self, *names: str) -> bool:
        """Return whether records of one of these topics may be lost."""
        topics = self._cluster.tree.image.topics
        return any(
            self._cluster.replicas.is_excused(TopicPartition(name, number))
            for name in names
            for number in range(len(topics[name].partitions) if name in topics else 0)
        )

    def check_record(self, topic_id: UUID, value: bytes) -> None:
        """Check a record that a topic has shown. Its value names the topic that it was sent to, `?` if any."""
        sent_to = value.partition(b"|")[0]
        if sent_to not in (b"?", topic_id.hex.encode()):
            raise InvariantBroken("NoResurrectedTopic", f"{topic_id} shows {value!r}")

    def _stored(self, old: ClusterImage, new: ClusterImage) -> None:
        if (old.topics, old.subscriptions, old.schedules) == (new.topics, new.subscriptions, new.schedules):
            return
        self._check_deleted(new)
        for name in self._kept:
            self._check(name, new)
        for owned in (self.subscriptions, self.schedules):
            self._check_owned(owned, new)

    def _check_deleted(self, image: ClusterImage) -> None:
        returned = self._deleted & image.names_by_id.keys()
        if returned:
            self._break("NoResurrectedTopic", f"image {image.seq} has deleted topics {returned}")

    def _check(self, name: str, image: ClusterImage) -> None:
        kept, topic = self._kept[name], image.topics.get(name)
        if topic is None or topic.topic_id != kept.topic_id or len(topic.partitions) < kept.partitions:
            return self._break("NoLostTopic", f"image {image.seq}: {name} is {topic}, and should be {kept}")
        values: Iterable[str | None] = {kept.setting, *self._attempted[name]}
        if kept.setting is not None and topic.config.get(SETTING) not in values:
            self._break("NoLostTopic", f"image {image.seq}: {name} has {topic.config}, and should be {kept}")

    def _check_owned(self, owned: _Owned, image: ClusterImage) -> None:
        present = owned.present(image)
        for name, topic_id in owned.topics.items():
            if topic_id in image.names_by_id and present.get(name) != topic_id:
                self._break("NoLostTopic", f"image {image.seq}: {owned.kind} {name} of topic {topic_id} is lost")

    def _break(self, invariant: str, detail: str) -> None:
        self._cluster.broken.append(InvariantBroken(invariant, detail))


def _subscribed(image: ClusterImage) -> Mapping[str, UUID]:
    return {subscription.name: subscription.topic_id for subscription in image.subscriptions.values()}


def _scheduled(image: ClusterImage) -> Mapping[str, UUID]:
    return {schedule.name: schedule.topic_id for schedule in image.schedules.values()}
