"""Notifies hosts of state machines which partitions this broker leads, after each round of the reconciler.

Listeners receive a topic's partition also when the partition of the same number of one of the broker's own companions
of the topic was opened, including a reopened one (another `Partition`). A delayed topic is received as any topic.
"""

from typing import NamedTuple, Protocol

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.cluster.image import owner_of
from conveyor.kernel.ids import LeaderEpoch, TopicPartition
from conveyor.replication.partition import Partition


class LeadershipListener(Protocol):
    """Receives, on the event loop, the changes of leadership of this broker."""

    def gained(self, partition: Partition) -> None:
        """The broker now leads a partition, or leads it in a new epoch; or a partition of its bundle was reopened."""
        ...

    def lost(self, partition: Partition) -> None:
        """The broker no longer leads a partition in that epoch: it has resigned, or the topic is deleted."""
        ...


class _Led(NamedTuple):
    """The state of one bundle as last reported to the listeners."""

    partition: Partition
    epoch: LeaderEpoch


class LeadershipChanges:
    """See the module's docstring. Collects the changes of a round until `notify`."""

    def __init__(self, partitions: PartitionTable) -> None:
        self._partitions = partitions
        self._listeners: list[LeadershipListener] = []
        self._led: dict[TopicPartition, _Led] = {}
        self._closed: list[Partition] = []
        self._changed: dict[TopicPartition, None] = {}

    def listen(self, *listeners: LeadershipListener) -> None:
        self._listeners += listeners

    def changed(self, identity: TopicPartition) -> None:
        """A partition of a topic or of a companion was opened or reopened, or its role or epoch has changed."""
        self._changed[TopicPartition(owner_of(identity.topic), identity.partition)] = None

    def closed(self, identity: TopicPartition) -> None:
        """A partition was closed. Before `notify`, another partition may have taken its name."""
        led = self._led.pop(identity, None)
        if led is not None:
            self._closed.append(led.partition)

    def notify(self) -> list[Partition]:
        """Notify the listeners: first of all lost partitions, then of all gained ones. Returns the lost ones."""
        lost, self._closed = self._closed, []
        changed, self._changed = self._changed, {}
        gained = []
        for identity in changed:
            before, led = self._led.pop(identity, None), self._leader(identity)
            if before is not None and (led is None or led.epoch != before.epoch):
                lost.append(before.partition)
            if led is not None:
                self._led[identity] = led
                gained.append(led.partition)
        for listener in self._listeners:
            for partition in lost:
                listener.lost(partition)
            for partition in gained:
                listener.gained(partition)
        return lost

    def _leader(self, identity: TopicPartition) -> _Led | None:
        partition = self._partitions.get(*identity)
        term = None if partition is None else partition.leader_term
        return None if partition is None or term is None else _Led(partition, term.epoch)
