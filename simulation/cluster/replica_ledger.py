"""Compares the logs of replicas with the records that they must hold, at every change of the metadata.

Invariants, by the names that failures report:

    IsrTruth             every in-sync or eligible replica has made durable everything that any replica has ever shown
                         as committed, unless its machine has lost it and has not come back; there is at least one other
    LosersLeave          a broker that registers after it has lost records is neither in sync nor eligible
    LoneLeaderIsSure     a leader that is alone in its ISR, and waits for no joining replica, acknowledges nothing once
                         another leader is stored

Some failures are too much for a promise: the power of all machines that hold unflushed records of a topic with
`flush.policy=os` is cut, or their disks fail to sync them, or an unclean election is held. It is too much, too, that
`min.insync.replicas` machines lose their records and that the other replicas leave the ISR before the controller knows
of the losses. A disk that fails counts as lost: a leader that cannot read or write its log leaves the ISR and the ELR.
Only replicas count that are in sync or eligible at their loss or before they are back, because no other has all
acknowledged records. The partition is then excused, and nothing is promised about its records any more.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.controller.bundles import owners
from conveyor.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.ids import NodeId, TopicId, TopicPartition
from conveyor.replication.partition import Partition
from conveyor.settings.tree import Settings
from simulation.cluster.policies import Policies
from simulation.ledger import InvariantBroken, LogLedger

_NEVER = 1 << 62
"""Broker epochs from here on are reached by no broker."""


class Loss(NamedTuple):
    """A broker's records of a partition are lost. broker_epoch: the highest then; it returns with a higher one.
    is_certain: otherwise the broker may find that it has them.
    """

    node_id: NodeId
    broker_epoch: int
    is_certain: bool = True


class ReplicaLedger:
    """See the module's docstring. settings: of all brokers. note: counts an event by its name."""

    def __init__(self, logs: LogLedger, settings: Settings, note: Callable[[str], None]) -> None:
        self.broken: list[BaseException] = []
        self._image = ClusterImage()
        self._logs = logs
        self.policies = Policies(settings)
        self._note = note
        self._committed: dict[TopicPartition, int] = {}
        self._lost_machines: dict[Loss, bool] = {}
        """For each machine that is not back: True if its disk is lost."""
        self._failing: dict[NodeId, int] = {}
        """The broker epochs of the brokers whose disks fail."""
        self._losses: dict[TopicPartition, set[Loss]] = {}
        self._losers: dict[TopicPartition, set[NodeId]] = {}
        """The brokers with losses or failing disks that are in sync or eligible, or were since that began."""
        self._excused: set[TopicPartition] = set()
        self._ends: dict[Partition, int] = {}
        self._topic_ids: dict[Partition, TopicId] = {}
        """Brokers may still have partitions of topics that are deleted."""

    def is_excused(self, identity: TopicPartition) -> bool:
        return self._owner(identity) in self._excused

    def stored(self, old: ClusterImage, new: ClusterImage) -> None:
        """Note a new image at the moment at which it is stored."""
        self._image = new
        if old.names_by_id is not new.names_by_id:
            self._forget({name for topic_id, name in old.names_by_id.items() if topic_id not in new.names_by_id})
        switched = self.policies.stored(old, new)
        for identity, topic, after in _bundles(new):
            before = old.partition(*identity)
            if before is None or topic.name in switched:
                for loss, is_wiped in self._lost_machines.items():
                    known = loss._replace(is_certain=is_wiped and before is None)
                    self._note_loss(identity, topic, after, known, is_wiped=is_wiped)
            if before is not None and before is not after:
                self._changed(identity, topic, before, after)
        self._lost_machines = {loss: wiped for loss, wiped in self._lost_machines.items() if not self._is_back(loss)}
        for node_id, epoch in list(self._failing.items()):
            if new.brokers[node_id].broker_epoch > epoch:
                del self._failing[node_id]
        for identity, losses in self._losses.items():
            back = {loss for loss in losses if self._is_back(loss)}
            self._check_losers(identity, {loss.node_id for loss in back if loss.is_certain})
            self._losses[identity] = losses - back | {loss._replace(is_certain=False) for loss in back}
        for identity, losers in self._losers.items():
            losers &= self._failing.keys() | {loss.node_id for loss in self._losses.get(identity, ())}

    def note_failing_disk(self, node_id: NodeId) -> None:
        """Note that a live broker's disk fails from now on. It heals before the broker registers again."""
        self._failing[node_id] = self._image.brokers[node_id].broker_epoch
        for identity, _, partition in _bundles(self._image):
            self._note_losers(identity, partition)

    def lose(self, loss: Loss, unflushed: Iterable[TopicPartition], *, is_wiped: bool) -> None:
        """Note that a machine loses its power, and perhaps its disk.

        unflushed: the logs for which `flush.policy=os` was in force there. It has certainly lost records of these only.
        """
        self._lost_machines[loss] = is_wiped or self._lost_machines.get(loss, False)
        certain = {self._owner(identity) for identity in unflushed}
        for identity, topic, partition in _bundles(self._image):
            known = loss._replace(is_certain=is_wiped or identity in certain)
            self._note_loss(identity, topic, partition, known, is_wiped=is_wiped)

    def lose_logs(self, loss: Loss, lost: Collection[TopicPartition] | None) -> None:
        """Note that a broker, which does not run, has lost logs of its disk, or parts of them; by default, all."""
        for identity, topic, partition in self._bundles_of(loss.node_id, lost):
            self._note_loss(identity, topic, partition, loss, is_wiped=True)

    def note_rot(self, node_id: NodeId, rotten: TopicPartition) -> None:
        """Note that a log of a broker has damaged records. The broker may not know it."""
        self.lose_logs(_rot(node_id), [rotten])

    def note_stale(self, node_id: NodeId, stale: TopicPartition) -> None:
        """Note that a log of a broker becomes an older one, and that its broker cannot know it."""
        self.lose_logs(_stale(node_id), [stale])

    def has_lost(self, node_id: NodeId, identity: TopicPartition) -> bool:
        """Return whether a broker may have lost records of a partition."""
        return any(loss.node_id == node_id for loss in self._losses.get(self._owner(identity), ()))

    def is_rotten(self, node_id: NodeId, identity: TopicPartition) -> bool:
        return _rot(node_id) in self._losses.get(self._owner(identity), ())

    def replace(self, loss: Loss, removed: TopicPartition) -> None:
        """Note that an operator removes a damaged or older log of a broker, which does not run."""
        self._losses.get(self._owner(removed), set()).difference_update({_rot(loss.node_id), _stale(loss.node_id)})
        self.lose_logs(loss, [removed])

    def may_be_wiped(self, node_id: NodeId, lost: Collection[TopicPartition] | None = None) -> bool:
        """Return whether every partition survives the loss of this broker's disk. lost: if not the disk, these logs."""
        return all(
            self._intact(identity, partition) - {node_id} for identity, _, partition in self._bundles_of(node_id, lost)
        )

    def is_trusted(self, node_id: NodeId, partition: Partition) -> bool:
        """Return whether a live replica must have all that was acknowledged."""
        owner = self._owner(partition.identity)
        stored = self._image.partition(*owner)
        if stored is None or partition.offline.reason is not None or owner in self._excused:
            return False
        if not self._is_present(partition):
            return False
        return node_id in self._intact(owner, stored)

    def check(self, nodes: Iterable[BrokerNode]) -> None:
        """Compare the logs of all live replicas with what was committed. Adds to `broken`."""
        brokers = list(nodes)
        self.policies.look(brokers)
        self._end_losses(brokers)
        for broker in brokers:
            topics = broker.metadata.image.topics
            for partition in broker.partitions.table:
                if partition not in self._topic_ids and partition.identity.topic in topics:
                    self._topic_ids[partition] = topics[partition.identity.topic].topic_id
                self._see(partition)
        for broker in brokers:
            node_id = NodeId(broker.settings.broker.node_id)
            for partition in broker.partitions.table:
                self._check_replica(node_id, partition)

    def rose(self, risen: Partition, nodes: Iterable[BrokerNode]) -> None:
        """Compare the replicas of one partition at the moment at which its leader commits more. Adds to `broken`."""
        self._see(risen)
        for broker in nodes:
            partition = broker.partitions.table.get(*risen.identity)
            if partition is not None:
                self._check_replica(NodeId(broker.settings.broker.node_id), partition)

    def acknowledged(self, node_id: NodeId, partition: Partition) -> None:
        """Check a leader that has just acknowledged records. Raises InvariantBroken."""
        term, stored = partition.leader_term, self._image.partition(*partition.identity)
        if term is None or stored is None or len(term.role.replicas) == 1:
            return  # Only this leader can add another replica to the ISR.
        is_alone = term.role.isr == (node_id,) and not term.replicas.joining
        is_replaced = stored.leader_epoch > term.epoch and stored.leader != node_id
        if is_alone and is_replaced:
            raise InvariantBroken(
                "LoneLeaderIsSure",
                f"{partition.identity}: broker {node_id} acknowledges alone in epoch {term.epoch}, broker"
                f" {stored.leader} leads in epoch {stored.leader_epoch}",
            )

    def _changed(
        self, identity: TopicPartition, topic: TopicImage, before: PartitionImage, after: PartitionImage
    ) -> None:
        if after.leader not in (before.leader, NO_LEADER):
            self._note("leader elected")
        if set(after.isr) - set(before.isr):
            self._note("replica joined")
        if set(before.isr) - set(after.isr):
            self._note("replica left")
        if after.origin and not before.origin:
            self._note("reassignment begun")
        if after.unclean_epoch > before.unclean_epoch:
            self._note("unclean election")
            self._excuse(identity)
            losses = self._losses.get(identity, set())
            losses -= {loss for loss in losses if loss.node_id == after.leader}  # What it has left is the truth now.
        if after.leader_epoch > before.leader_epoch and _stale(after.leader) in self._losses.get(identity, ()):
            self._note("older log leads")
            self._excuse(identity)  # What other replicas do not know to be committed yet may be lost.
        self._note_losers(identity, after)
        if self._losses.get(identity) and not self._intact(identity, after) and identity not in self._excused:
            lost = {loss.node_id for loss in self._losses[identity] if loss.is_certain}
            is_known = {*after.isr, *after.elr} <= lost  # A broker may trust what has been damaged.
            if is_known and len(self._losers[identity]) < self.policies.of(topic).min_insync:
                detail = f"no replica with all committed records is in the ISR or eligible: {after}"
                self._break("IsrTruth", f"{identity}: {detail}")
            self._excuse(identity)

    def _end_losses(self, brokers: Iterable[BrokerNode]) -> None:
        """Forget the losses of brokers that are back, and whose directories know that: they would leave again."""
        sure = {
            broker.settings.broker.node_id
            for broker in brokers
            if broker.partitions.logs.checkpoint.has_stored_settlement
        }
        for identity, losses in self._losses.items():
            if losses:
                kept = {loss for loss in losses if loss.node_id not in sure or not self._is_back(loss)}
                self._losses[identity] = kept

    def _check_losers(self, identity: TopicPartition, losers: set[NodeId]) -> None:
        """Check brokers that have just registered. A broker with the only replica stays."""
        after = self._image.partition(*identity)
        if after is None or len(after.replicas) == 1:
            return
        if not losers.isdisjoint((*after.isr, *after.elr)):
            self._break("LosersLeave", f"{identity}: brokers {sorted(losers)} have lost records: {after}")

    def _note_loss(
        self, identity: TopicPartition, topic: TopicImage, partition: PartitionImage, loss: Loss, *, is_wiped: bool
    ) -> None:
        if not is_wiped and not self.policies.is_soft(topic):
            loss = loss._replace(is_certain=False)
        is_affected = is_wiped or self.policies.keeps_unflushed(identity, topic, loss.node_id)
        if loss.node_id in partition.replicas and is_affected:
            self._losses.setdefault(identity, set()).add(loss)
            self._note_losers(identity, partition)
            if not self._intact(identity, partition):
                self._excuse(identity)

    def _note_losers(self, identity: TopicPartition, partition: PartitionImage) -> None:
        lost = self._failing.keys() | {loss.node_id for loss in self._losses.get(identity, ())}
        self._losers.setdefault(identity, set()).update(lost & {*partition.isr, *partition.elr})

    def _owner(self, identity: TopicPartition) -> TopicPartition:
        return TopicPartition(self._image.bundle_owner(identity.topic), identity.partition)

    def _excuse(self, identity: TopicPartition) -> None:
        self._excused.add(identity)
        self._logs.excuse(identity)

    def _bundles_of(
        self, node_id: NodeId, logs: Collection[TopicPartition] | None
    ) -> Iterator[tuple[TopicPartition, TopicImage, PartitionImage]]:
        """Return a broker's bundles; only those with one of these logs, if any are given."""
        wanted = None if logs is None else {self._owner(identity) for identity in logs}
        for identity, topic, partition in _bundles(self._image):
            if node_id in partition.replicas and (wanted is None or identity in wanted):
                yield identity, topic, partition

    def _is_back(self, loss: Loss) -> bool:
        """Return whether the broker has registered after its loss. Its ISRs are to be trusted once its data directory
        knows that.
        """
        broker = self._image.brokers.get(loss.node_id)
        return broker is not None and not broker.is_fenced and broker.broker_epoch > loss.broker_epoch

    def _intact(self, identity: TopicPartition, partition: PartitionImage) -> set[NodeId]:
        """Return the replicas that must hold all committed records."""
        return {*partition.isr, *partition.elr} - {loss.node_id for loss in self._losses.get(identity, ())}

    def _is_present(self, partition: Partition) -> bool:
        """Return whether a partition is of the topic that has its name in the stored image."""
        topic = self._image.topics.get(partition.identity.topic)
        return topic is not None and self._topic_ids.get(partition) == topic.topic_id

    def _forget(self, names: Collection[str]) -> None:
        """Forget deleted topics. The next ones of their names have nothing to do with them."""
        for by_partition in (self._committed, self._losses, self._losers):
            for identity in [identity for identity in by_partition if identity.topic in names]:
                del by_partition[identity]
        self._excused = {identity for identity in self._excused if identity.topic not in names}
        self.policies.forget(names)

    def _see(self, partition: Partition) -> None:
        """Note what a replica shows: its high watermark, and the end of its log."""
        identity, end = partition.identity, partition.log.log_end_offset
        if not self._is_present(partition):
            return
        if partition.term.high_watermark > self._committed.get(identity, 0):
            self._committed[identity] = partition.term.high_watermark
        if end < self._ends.get(partition, 0):
            self._note("log truncated")
        self._ends[partition] = end

    def _check_replica(self, node_id: NodeId, partition: Partition) -> None:
        identity, committed = partition.identity, self._committed.get(partition.identity, 0)
        if partition.log.flushes.flushed_offset >= committed or not self.is_trusted(node_id, partition):
            return
        durable, stored = self._durable(node_id, partition), self._image.partition(*self._owner(identity))
        if durable < committed and stored is not None:
            self._break(
                "IsrTruth",
                f"{identity}: broker {node_id} has {durable}, {committed} are committed, the ISR is"
                f" {stored.isr}, eligible are {stored.elr}",
            )

    def _durable(self, node_id: NodeId, partition: Partition) -> int:
        """Return the end of what a replica must not lose."""
        identity, log = partition.identity, partition.log
        topic = self._image.topics.get(identity.topic)
        is_late = topic is not None and self.policies.keeps_unflushed(identity, topic, node_id)
        return log.written_offset if is_late or log.topic.flush_policy == "os" else log.flushes.flushed_offset

    def _break(self, invariant: str, detail: str) -> None:
        self.broken.append(InvariantBroken(invariant, detail))


def _rot(node_id: NodeId) -> Loss:
    """Return a loss after which no registration is a sign that the broker has the records again."""
    return Loss(node_id, _NEVER, is_certain=False)


def _stale(node_id: NodeId) -> Loss:
    """Return another such loss."""
    return Loss(node_id, _NEVER + 1, is_certain=False)


def _bundles(image: ClusterImage) -> Iterator[tuple[TopicPartition, TopicImage, PartitionImage]]:
    for topic in owners(image):
        for number, partition in enumerate(topic.partitions):
            yield TopicPartition(topic.name, number), topic, partition
