"""Checks single partitions of a simulated cluster, in the image and in the brokers.

The checks run when an image is stored, when a leader's high watermark rises, and when a log was opened or truncated.
Invariants, by the names that failures report:

    EligibleLeads        a partition has a leader as long as an in-sync or eligible replica is live and not stopping
    CommittedInEpoch     a high watermark rises only once all replicas of the leader's ISR are in its leader epoch
    ForwardedIsNoted     no record that a forwarder appends is committed before the intent to append it is
    ForwarderIsFollowed  a forwarder begins only once all replicas of its target's ISR are in the target's leader epoch:
                         none has a batch of an intent that the forwarder takes for not carried out
    ProducersMatchLog    a log remembers the producers and the open transactions that it contains
    TombstonesWait       compaction removes a tombstone or a marker only once all replicas with records have flushed it,
                         except those that have begun, empty, to copy after their leader had removed it
"""

from collections.abc import Callable, Iterator, Mapping
from weakref import WeakSet

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators.forwarder import Forwarder
from conveyor.cluster.controller.bundles import owners
from conveyor.cluster.controller.liveness import liveness_of
from conveyor.cluster.image import DELAY_STATE, NO_LEADER, ClusterImage, companion
from conveyor.delay.forwarding_records import Intent, decode
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.kernel.state_machine import LogRecord
from conveyor.log.batch_reading import batches_between
from conveyor.log.log import Log
from conveyor.log.producers.producer_state import ProducerState, RememberedProducer
from conveyor.log.replay import replay_headers
from conveyor.records.record import decode_records
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.partition import Partition
from conveyor.testing.memory_disk import MemoryDisk
from simulation.cluster.replica_ledger import ReplicaLedger
from simulation.ledger import InvariantBroken
from simulation.simulated_broker import SimulatedBroker


class PartitionWatch:
    """See the module's docstring. brokers: of the cluster. replicas: learns when a high watermark rises. note: counts
    an event by its name.
    """

    def __init__(
        self, brokers: Mapping[NodeId, SimulatedBroker], replicas: ReplicaLedger, note: Callable[[str], None]
    ) -> None:
        self.broken: list[BaseException] = []
        self._brokers = brokers
        self._replicas = replicas
        self._note = note
        self._image = ClusterImage()
        self._ends: dict[Partition, int] = {}
        self._unchecked: dict[Partition, None] = {}
        """The partitions whose logs were opened or truncated since they were last checked."""
        self._forwarders: WeakSet[Forwarder] = WeakSet()

    def stored(self, image: ClusterImage) -> None:
        """Check an image at the moment at which it is stored."""
        self._image = image
        ready = liveness_of(image.brokers).ready
        for topic in owners(image):
            for number, partition in enumerate(topic.partitions):
                if partition.leader == NO_LEADER and not ready.isdisjoint((*partition.isr, *partition.elr)):
                    self._break("EligibleLeads", f"{topic.name}-{number}: {sorted(ready)} are ready: {partition}")

    def look(self, broker: SimulatedBroker, node: BrokerNode) -> None:
        """Check the partitions of a broker that are new or compacted, and watch them from now on."""
        disk = broker.disk
        for forwarder in node.coordinators.forwarders.list():
            if forwarder not in self._forwarders:
                self._forwarders.add(forwarder)
                self._check_target(forwarder.partitions.target)
        for partition in node.partitions.table:
            if self._replicas.is_rotten(NodeId(node.settings.broker.node_id), partition.identity):
                continue  # It contains what no broker has written.
            end = partition.log.log_end_offset
            if partition not in self._ends:
                self._watch(partition, disk)
            if end < self._ends.get(partition, end + 1):
                self._unchecked[partition] = None
            self._ends[partition] = end
            if partition in self._unchecked and _is_at_rest(partition):
                del self._unchecked[partition]
                with disk.faults.observed():
                    self._check_producers(partition)
            compacted = broker.compactions.get(partition.log.place.path)
            if compacted is not None and compacted.cleaned_offset <= partition.log.compaction.cleaned_offset:
                del broker.compactions[partition.log.place.path]
                self._check_tombstones(partition.identity, compacted.removed_tombstones_end_offset)

    def _watch(self, partition: Partition, disk: MemoryDisk) -> None:
        high_watermark = partition.term.high_watermark

        def changed(_: None) -> None:
            nonlocal high_watermark
            if partition.offline.reason is not None:
                leave()
                if partition.offline.is_diverged:
                    self._note("log diverged")
                return
            has_risen, high_watermark = partition.term.high_watermark > high_watermark, partition.term.high_watermark
            if has_risen and partition.leader_term is not None:
                nodes = self._nodes()
                self._replicas.rose(partition, nodes)
                # A copy that began again at its leader's start has raised its high watermark there while it followed.
                if high_watermark > partition.log.log_start_offset:
                    self._check_epochs("CommittedInEpoch", partition, partition.leader_term, nodes)
                with disk.faults.observed():
                    self._check_forwarded(partition, nodes)

        leave = partition.changed.listen(changed)

    def _check_target(self, target: Partition) -> None:
        if target.leader_term is not None and target.offline.reason is None:
            self._check_epochs("ForwarderIsFollowed", target, target.leader_term, self._nodes())

    def _nodes(self) -> list[BrokerNode]:
        return [broker.node for broker in self._brokers.values() if broker.node is not None]

    def _check_epochs(self, invariant: str, led: Partition, term: LeaderTerm, nodes: list[BrokerNode]) -> None:
        for node in nodes:
            partition, node_id = node.partitions.table.get(*led.identity), node.settings.broker.node_id
            if partition is not None and node_id in term.role.isr and partition.term.epoch < term.epoch:
                detail = (
                    f"broker {node_id} is in epoch {partition.term.epoch}: {term.role} commits {term.high_watermark}"
                )
                self._break(invariant, f"{led.identity}: {detail}")

    def _check_forwarded(self, target: Partition, nodes: list[BrokerNode]) -> None:
        """Earlier leaders may have committed the intents from before this epoch. With fewer replicas than the topic
        demands, intents are carried out before they are committed; replicas that join may then report the target first.
        A broker that is elected leads the target a moment before the forwarder's state.
        """
        topic, number = target.identity
        leader = next((node for node in nodes if node.partitions.table.get(topic, number) is target), None)
        for name in () if leader is None else self._image.delayed_topics.get(topic, ()):
            identity = TopicPartition(companion(DELAY_STATE, name), number)
            assert leader is not None
            state = leader.partitions.table.get(*identity)
            term = None if state is None else state.leader_term
            if state is None or state.offline.reason is not None or term is None:
                continue
            isr = term.role.isr
            copies = [node.partitions.table.get(*identity) for node in nodes if node.settings.broker.node_id in isr]
            flushed = [copy.log.flushes.flushed_offset for copy in copies if copy is not None]
            durable = 0 if len(flushed) < len(isr) else min(flushed, default=0)
            start = max(term.high_watermark, term.epoch_start_offset, durable)
            for intent in _intents(state.log, start):
                if (offset := _forwarded_offset(target, intent)) is not None:
                    detail = f"{target.identity} has committed offset {offset}, and {intent} is not committed"
                    self._break("ForwardedIsNoted", detail)

    def _check_producers(self, partition: Partition) -> None:
        log, expected = partition.log, partition.log.producers.empty()
        replay_headers(log.segments.all, log.segments.all[0].base_offset, expected, 0)
        expected.transactions.forget_below(log.compaction.cleaned_offset)
        difference = _difference(log, expected)
        if difference is not None:
            self._break("ProducersMatchLog", f"{log.place.path}: {difference}")

    def _check_tombstones(self, identity: TopicPartition, removed_end_offset: int) -> None:
        """Check a removal of at most some moments ago. A replica that does not run continues with what it had.

        A log that begins on a new disk learns what its leader has removed, and copies neither these tombstones nor what
        they have deleted. Another follower may remove them later, by what the old disk had flushed.
        """
        stored = self._image.partition(*identity)
        for node_id in () if stored is None or self._replicas.is_excused(identity) else stored.replicas:
            node = self._brokers[node_id].node or self._brokers[node_id].last_node
            partition = None if node is None else node.partitions.table.get(*identity)
            if partition is None or partition.log.log_end_offset == partition.log.log_start_offset:
                continue
            known_end_offset = max(partition.log.flushes.flushed_offset, partition.log.compaction.removed_end_offset)
            if known_end_offset < removed_end_offset:
                detail = (
                    f"{removed_end_offset} is gone, broker {node_id} ends at {partition.log.flushes.flushed_offset}"
                )
                self._break("TombstonesWait", f"{identity}: the tombstone below {detail}")

    def _break(self, invariant: str, detail: str) -> None:
        self.broken.append(InvariantBroken(invariant, detail))


def _is_at_rest(partition: Partition) -> bool:
    return (
        partition.offline.reason is None
        and partition.log.written_offset == partition.log.log_end_offset
        and not partition.log.truncation.is_pending
    )


def _intents(log: Log, offset: int) -> Iterator[Intent]:
    """Yield the intents that a forwarder has logged in its state from an offset on."""
    for header, _, content in batches_between(log, offset, log.written_offset):
        for record in decode_records(content) if header.base_offset >= offset else ():
            decoded = decode(LogRecord(record.key, record.value))
            if isinstance(decoded, Intent):
                yield decoded


def _forwarded_offset(target: Partition, intent: Intent) -> int | None:
    """Return the offset of a committed batch of an intent, if there is any."""
    for header, _, _ in batches_between(target.log, intent.target_offset, target.term.high_watermark):
        if header.producer_id == intent.producer_id and header.base_offset >= intent.target_offset:
            return header.base_offset
    return None


def _difference(log: Log, expected: ProducerState) -> str | None:
    """Return what a log's producers lack that the log contains, or what they have that it does not."""
    entries, contained = log.producers.entries(), expected.entries()
    known = dict(zip(entries.producer_ids, entries.producers, strict=True))
    for producer_id, producer in zip(contained.producer_ids, contained.producers, strict=True):
        remembered = known.get(producer_id)
        if remembered is None or not _has_all(remembered, producer, log):
            return f"producer {producer_id} is {remembered}, and {producer} in the log"
    opened, open_in_log = dict(entries.opened), {producer_id for producer_id, _ in contained.opened}
    start = log.segments.all[0].base_offset
    surplus = {producer_id for producer_id, begun in opened.items() if begun.first_offset >= start} - open_in_log
    if open_in_log <= opened.keys() and not surplus:
        return None
    return f"the transactions of {sorted(opened)} are open, and those of {sorted(open_in_log)} in the log"


def _has_all(remembered: RememberedProducer, contained: RememberedProducer, log: Log) -> bool:
    """Return whether a producer has the batches that the log contains.

    The start of the log may have been trimmed. Compaction keeps the last batch of each producer.
    """
    if remembered.epoch != contained.epoch:
        return remembered.epoch > contained.epoch
    batches, found = ([batch[:4] for batch in producer.batches] for producer in (remembered, contained))
    found = found[-1:] if log.compaction.cleaned_offset or log.copying.gap_offset else found
    return batches[len(batches) - len(found) :] == found
