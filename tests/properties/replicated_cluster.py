"""A cluster of brokers in memory, for the model of the controller: logs, stale views, leaders that do not know better.

It follows the rules of replication that the controller relies on. A leader commits a record once every member of the
ISR in its own view, and every replica that it has asked to join, has reported the record in the leader's epoch; and not
while that ISR is smaller than it has to be. A replica asks to join only when it has what the leader has committed and
all from before the leader's epoch. A broker learns of changes only by the image.

With `flush.policy=ack` in its view a broker flushes, one append later, and counts what others have flushed. With `os`
it counts what is written, and notes in its directory first that its log may be unflushed; see `replica_facts`. A broker
that registers names the logs that its directory cannot prove, until the image shows it.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from uuid import UUID

from conveyor.cluster.changes import Change, fold
from conveyor.cluster.controller.alter_partition import AlterPartition, IsrMember
from conveyor.cluster.controller.bundles import bundle_policy
from conveyor.cluster.controller.partition_transition import effective_min_insync
from conveyor.cluster.controller.registrations import Doubt, Registration, doubtful_bundles
from conveyor.cluster.image import ClusterImage, PartitionImage, TopicImage
from conveyor.cluster.metadata_log import LogEntry, decode_entry, encode_entry
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from conveyor.settings.tree import Settings, topic_settings

SETTINGS = Settings()
TOPIC = "t"


@dataclass
class Term:
    """What a leader knows of its epoch. reports: by replica, the broker epoch of the reporter, and the ends of what it
    has written and flushed.
    """

    epoch: LeaderEpoch
    start: int
    reports: dict[NodeId, tuple[int, int, int]] = field(default_factory=dict)
    joining: dict[NodeId, int] = field(default_factory=dict)
    """Replicas that this leader has asked to add, with the partition epoch of the request."""
    high_watermark: int = 0


@dataclass
class DataDirectory:
    """What a broker has on its disk; flushed: how much of each log is certain to survive a power cut."""

    logs: list[list[int]]
    flushed: list[int]
    are_unflushed: list[bool]
    doubts: dict[int, Doubt] = field(default_factory=dict)
    incarnations: list[str] = field(default_factory=list)


class SimulatedBroker:
    """One broker: its data directory, and the newest image that it has seen. copy: of the directory, made earlier."""

    def __init__(self, node_id: NodeId, image: ClusterImage, partitions: int) -> None:
        self.node_id = node_id
        self.view = image
        self.epoch = 0
        self.is_alive = self.is_registered = True
        self.disk = DataDirectory([[] for _ in range(partitions)], [0] * partitions, [False] * partitions)
        self.copy = deepcopy(self.disk)
        self.terms: dict[int, Term] = {}

    @property
    def logs(self) -> list[list[int]]:
        return self.disk.logs

    def registration(self) -> Registration:
        topic_id = self.view.topics[TOPIC].topic_id
        return Registration(
            node_id=self.node_id,
            host="h",
            port=1,
            rack="ab"[self.node_id % 2],
            incarnation=self.incarnation,
            broker_epoch=self.epoch,
            boot_id="",
            data_id="",
            past_incarnations=tuple(self.disk.incarnations),
            doubts=doubtful_bundles({(topic_id, number): doubt for number, doubt in sorted(self.disk.doubts.items())}),
        )

    @property
    def incarnation(self) -> str:
        return f"{self.node_id}.{self.epoch}"

    @property
    def is_soft(self) -> bool:
        """Whether `flush.policy=os` in this broker's view."""
        return keeps_unflushed(self.view.topics[TOPIC])

    def seen(self, number: int) -> PartitionImage:
        return self.view.topics[TOPIC].partitions[number]

    def is_in_force(self) -> bool:
        """Whether this broker has seen its own registration, and so may follow and lead."""
        registered = self.view.brokers.get(self.node_id)
        return self.is_alive and registered is not None and registered.broker_epoch == self.epoch

    def term(self, number: int) -> Term | None:
        """The term of this broker, if by its view it leads."""
        state = self.seen(number)
        if not self.is_in_force() or state.leader != self.node_id:
            return None
        term = self.terms.get(number)
        if term is None or term.epoch != state.leader_epoch:
            term = self.terms[number] = Term(state.leader_epoch, len(self.logs[number]))
        return term

    def append(self, number: int, records: list[int]) -> None:
        if self.is_soft:
            self.disk.are_unflushed[number] = True
        else:
            self.disk.flushed[number] = len(self.logs[number])
        self.logs[number] += records

    def durable(self, number: int) -> tuple[int, int]:
        """The ends of what this broker reports as written and as flushed."""
        flushed = self.disk.flushed[number]
        return (len(self.logs[number]) if self.is_soft else flushed), flushed

    def flush(self) -> None:
        self.disk.flushed = [len(records) for records in self.logs]
        if not self.is_soft:
            self.disk.are_unflushed = [False] * len(self.logs)

    def crash(self, *, loses_memory: bool) -> None:
        """What a dead process has written is flushed when its log is opened again."""
        self.is_alive = self.is_registered = False
        self.terms.clear()
        for number, records in enumerate(self.logs):
            if loses_memory:
                del records[self.disk.flushed[number] :]
                if self.disk.are_unflushed[number]:
                    self.disk.doubts.setdefault(number, Doubt.UNPROVEN)
            self.disk.flushed[number] = len(records)

    def stop_cleanly(self) -> None:
        self.crash(loses_memory=False)

    def lose_directory(self) -> None:
        self.crash(loses_memory=True)
        self.disk = DataDirectory([[] for _ in self.logs], [0] * len(self.logs), [False] * len(self.logs))

    def lose_log(self, number: int) -> None:
        """The log begins again, empty, once it is withdrawn."""
        self.crash(loses_memory=False)
        self.logs[number].clear()
        self.disk.flushed[number] = 0
        self.disk.doubts[number] = Doubt.LOST

    def restore_copy(self) -> None:
        """Unless the copy is of the present registration: its directory then cannot tell."""
        self.crash(loses_memory=False)
        if self.disk.incarnations != self.copy.incarnations:
            self.disk = deepcopy(self.copy)


def keeps_unflushed(topic: TopicImage) -> bool:
    return topic_settings(SETTINGS.topics, topic.config).flush_policy == "os"


def shared(one: list[int], other: list[int]) -> int:
    """The length of the longest common prefix."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class ReplicatedCluster:
    """The brokers, the controller's image, and the committed records of each partition."""

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.topic_id: TopicId = image.topics[TOPIC].topic_id
        self.count = len(image.topics[TOPIC].partitions)
        self.brokers = {node: SimulatedBroker(node, image, self.count) for node in image.brokers}
        self.committed: list[list[int]] = [[] for _ in range(self.count)]
        self.next_record = 0
        self.next_epoch = 100
        for broker in self.brokers.values():
            broker.epoch = image.brokers[broker.node_id].broker_epoch
            broker.disk.incarnations.append(broker.incarnation)

    def partition(self, number: int) -> PartitionImage:
        return self.image.topics[TOPIC].partitions[number]

    def topic(self) -> TopicImage:
        return self.image.topics[TOPIC]

    def write(self, changes: list[Change]) -> None:
        """One more entry, through its stored form."""
        if changes:
            stored = encode_entry(LogEntry(controller_epoch=1, batch=UUID(int=1), changes=tuple(changes)))
            self.image = fold(self.image, decode_entry(1, stored).changes, self.image.seq + 1)

    def register(self, broker: SimulatedBroker) -> None:
        self.next_epoch += 1
        broker.epoch = self.next_epoch
        broker.disk.incarnations.append(broker.incarnation)
        broker.terms.clear()
        broker.is_alive = broker.is_registered = True

    def produce(self, node: NodeId, number: int) -> None:
        broker = self.brokers[node]
        if broker.term(number) is not None:
            broker.append(number, [self.next_record])
            self.next_record += 1

    def replicate(self, node: NodeId, number: int, count: int) -> None:
        """A follower takes some records of the leader that it has seen, cuts off those of its own, and reports."""
        broker, state = self.brokers[node], self.brokers[node].seen(number)
        leader = self.brokers.get(state.leader)
        if leader is None or node not in state.replicas or node == state.leader or not broker.is_in_force():
            return
        term = leader.term(number)
        if term is None or term.epoch != state.leader_epoch:
            return
        log, source = broker.logs[number], leader.logs[number]
        common = shared(log, source)
        del log[common:]
        broker.disk.flushed[number] = min(broker.disk.flushed[number], common)
        broker.append(number, source[common : common + count])
        term.reports[node] = (broker.epoch, *broker.durable(number))

    def commit(self, node: NodeId, number: int) -> None:
        """The leader raises its high watermark, as far as its own view allows."""
        broker = self.brokers[node]
        term, state = broker.term(number), broker.seen(number)
        if term is None:
            return
        term.joining = {node: epoch for node, epoch in term.joining.items() if epoch >= state.partition_epoch}
        policy = bundle_policy(broker.view.topics[TOPIC], SETTINGS)
        if len(state.isr) < effective_min_insync(state, policy.min_insync):
            return
        waited_for = {*state.isr, *term.joining} - {node}
        which = 0 if broker.is_soft else 1
        ends = [term.reports.get(replica, (0, 0, 0))[1 + which] for replica in waited_for]
        term.high_watermark = max(term.high_watermark, min([*ends, broker.durable(number)[which]]))
        if term.epoch >= self.partition(number).unclean_epoch:
            records = broker.logs[number][: term.high_watermark]
            if len(records) > len(self.committed[number]):
                self.committed[number] = records

    def isr_request(self, node: NodeId, number: int, *, joins: bool, which: int) -> AlterPartition | None:
        """The leader's request to add or to remove one replica, if there is one."""
        broker = self.brokers[node]
        term, state = broker.term(number), broker.seen(number)
        if term is None:
            return None
        members = {member: broker.view.brokers[member].broker_epoch for member in state.isr}
        if joins:
            least = max(term.start, term.high_watermark)
            found = [
                (replica, reporter_epoch)
                for replica, (reporter_epoch, written, flushed) in term.reports.items()
                if replica not in state.isr
                and replica in state.replicas
                and (written if broker.is_soft else flushed) >= least
            ]
        else:
            found = [(replica, 0) for replica in state.isr if replica != node]
        if not found:
            return None
        replica, epoch = found[which % len(found)]
        if joins:
            members[replica] = epoch
            term.joining[replica] = state.partition_epoch
        else:
            del members[replica]
        return AlterPartition(
            leader=IsrMember(node, broker.epoch),
            topic_id=self.topic_id,
            partition=number,
            leader_epoch=term.epoch,
            partition_epoch=state.partition_epoch,
            isr=tuple(IsrMember(*member) for member in members.items()),
        )
