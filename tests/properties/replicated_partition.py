"""Three replicas of one partition with real logs, and a controller that elects among them, for the replication model.

Frames travel in order until their link ends; then those on the way are lost. A broker learns of the controller's
decisions only when it observes them, and an old leader leads on until then.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicPartition
from conveyor.log.log import Log
from conveyor.log.log_start import TrimJob
from conveyor.log.segments.offset_file import LOG_START, read_offset
from conveyor.records.batch import BatchHeader, iterate_batches
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Follower, Leader
from conveyor.replication.streams.follower_end import FollowerEnd
from conveyor.replication.streams.frames import Follow, FollowRefusal
from conveyor.replication.streams.leader_end import LeaderEnd
from conveyor.replication.streams.log_tasks import LogTask
from conveyor.replication.trimming import delete_records
from conveyor.testing import MemoryDisk
from tests.properties.partition_controller import MIN_ISR, NODES, Controller, Request, View
from tests.unit.log.logs import DIRECTORY, NOW_MS, TOPIC_ID, open_topic_log, read_bytes
from tests.unit.replication.parts import NO_CALLS, batch, led
from tests.unit.replication.streams.pairs import Gate, carry_out, joined

Batches = dict[int, tuple[BatchHeader, bytes]]


@dataclass
class Wire:
    """A link from a follower to a leader, with the frames on the way."""

    leader: NodeId
    follower_end: FollowerEnd
    leader_end: LeaderEnd
    up: deque[bytes] = field(default_factory=deque)
    down: deque[bytes] = field(default_factory=deque)


@dataclass(frozen=True)
class Deletion:
    """A request to delete the records below an offset, of the leader of this epoch, that is not answered yet."""

    broker_epoch: int
    leader_epoch: LeaderEpoch
    offset: int


class Broker:
    """One replica. view: the newest that it has observed since its start. trims: of the start of its log, as a leader;
    task: as a follower, which has begun. The next `settle` carries both out.
    """

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.disk = MemoryDisk()
        self.broker_epoch = 0
        self.is_alive = True
        self.view: View | None = None
        self.wire: Wire | None = None
        self.partition: Partition
        self.deletions: list[Deletion] = []
        self.open()

    @property
    def log(self) -> Log:
        return self.partition.log

    @property
    def stored_start(self) -> int:
        """The start of the log on the disk."""
        return read_offset(self.disk, DIRECTORY, LOG_START)

    def open(self) -> None:
        """Recover the log."""
        self.view = None
        self.trims: list[TrimJob] = []
        self.task: LogTask | None = None
        role = Follower(leader=None, epoch=LeaderEpoch(0))
        log = open_topic_log(self.disk)
        self.partition = Partition(TopicPartition("t", 0), log, role, NO_CALLS)

    def settle(self) -> None:
        """Write and flush."""
        self.partition.write()
        job = self.partition.begin_flush()
        if job is not None:
            job.run()
            self.partition.complete_flush(job, None)
        self.trim()

    def trim(self) -> None:
        for job in self.trims:
            job.run()
            self.log.start.complete_trim()
        self.trims = []
        task, self.task = self.task, None
        if task is not None:
            task.run()
            task.complete()
            if self.wire is not None:
                self.wire.follower_end.log_task_ended(self.partition)

    def stored(self, end: int) -> Batches:
        """The batches below an offset."""
        return {
            header.base_offset: (header, content) for header, content in self._batches() if header.next_offset <= end
        }

    def _batches(self) -> Iterator[tuple[BatchHeader, bytes]]:
        offset = int(self.log.log_start_offset)
        while content := read_bytes(self.log, offset):
            for position, header in iterate_batches(content):
                yield header, content[position : position + header.size]
                offset = header.next_offset


class ReplicatedPartition:
    """The brokers, their links, and what they have promised. Every step is a method with a number to choose by."""

    def __init__(self) -> None:
        self.controller = Controller()
        self.brokers = {node: Broker(node) for node in NODES}
        self.requests: list[Request] = []
        self.committed: Batches = {}
        self.acknowledged: dict[int, bytes] = {}
        self.deleted_offset = self.deletions = 0
        """The end of the records whose deletion was acknowledged, and the number of these deletions."""
        self.commits = self.joins = self.truncations = self.produced = 0
        self._watermarks: dict[Partition, int] = {}
        for broker in self.brokers.values():
            self.observe(broker)

    # Steps.

    def produce(self, broker: Broker, _: int) -> None:
        if broker.is_alive and broker.partition.leader_term is not None:
            self.produced += 1
            value = b"%d" % self.produced
            info = broker.partition.append(batch(value), NOW_MS)
            broker.partition.term.when_committed(
                info.last_offset + 1, lambda error: self._answer(info.first_offset, value, error)
            )

    def _answer(self, offset: int, value: bytes, error: RequestError | None) -> None:
        if error is None:
            assert self.acknowledged.setdefault(offset, value) == value, "two records acknowledged at one offset"

    def delete(self, broker: Broker, which: int) -> None:
        """Ask a leader to delete what it has committed, or a part of it."""
        partition = broker.partition
        if broker.is_alive and partition.leader_term is not None and led(partition).role.has_enough_replicas:
            offset = which % (partition.term.high_watermark + 1)
            broker.trims.append(delete_records(partition, offset))
            broker.deletions.append(Deletion(broker.broker_epoch, partition.term.epoch, offset))

    def _answer_deletions(self, broker: Broker) -> None:
        """Acknowledge what each replica has deleted that a clean election may choose, as `TrimWaits` does."""
        partition, view = broker.partition, broker.view
        if not broker.is_alive or view is None or partition.leader_term is None:
            return
        others = {*view.isr, *view.elr, *led(partition).replicas.joining} - {broker.node}
        starts = [led(partition).replicas.log_start_of(node) for node in others]
        least = min([int(broker.log.start.flushed_offset), *starts])
        term = broker.broker_epoch, partition.term.epoch
        for deletion in broker.deletions:
            if (deletion.broker_epoch, deletion.leader_epoch) == term and least >= deletion.offset:
                self.deletions += deletion.offset > self.deleted_offset
                self.deleted_offset = max(self.deleted_offset, deletion.offset)

    def settle(self, broker: Broker, _: int) -> None:
        if broker.is_alive:
            broker.settle()
            self._progressed(broker)

    def write(self, broker: Broker, _: int) -> None:
        if broker.is_alive:
            broker.partition.write()
            self._progressed(broker)

    def observe(self, broker: Broker, _: int = 0) -> None:
        """Learn of the controller's newest decision."""
        view, partition = self.controller.view, broker.partition
        if not broker.is_alive:
            return
        is_registered = view.broker_epochs.get(broker.node) == broker.broker_epoch
        broker.view = view
        if view.leader == broker.node and is_registered:
            role: Leader | Follower = Leader(
                leader=broker.node,
                epoch=view.epoch,
                isr=view.isr,
                partition_epoch=view.partition_epoch,
                min_isr=MIN_ISR,
            )
        else:
            leader = view.leader if view.leader != broker.node else None
            role = Follower(leader=leader, epoch=view.epoch)
        if partition.leader_term is None and isinstance(role, Leader) and role.epoch == partition.term.role.epoch:
            return  # It has resigned in this epoch.
        if partition.leader_term is None:
            broker.trim()
        partition.assume(role)
        self._roles_changed(broker, role)

    def _roles_changed(self, broker: Broker, role: Leader | Follower) -> None:
        for other in self.brokers.values():
            if other.wire is not None and other.wire.leader == broker.node:
                other.wire.leader_end.changed(broker.partition)
        wire = broker.wire
        if wire is None:
            return
        if isinstance(role, Leader) or role.leader != wire.leader:
            broker.wire = None
        elif not wire.follower_end.follows(broker.partition):
            wire.follower_end.follow(broker.partition, TOPIC_ID)

    def exchange(self, broker: Broker, count: int) -> None:
        """Connect if needed, and let some frames travel."""
        role = broker.partition.term.role
        if not broker.is_alive or isinstance(role, Leader) or role.leader is None:
            return
        if broker.wire is None:
            self._connect(broker, self.brokers[role.leader])
        for number in range(1 + count % 8):
            if broker.wire is not None:
                self._travel(broker, broker.wire, upwards=number % 2 == 0)

    def _connect(self, broker: Broker, leader: Broker) -> None:
        if leader.is_alive:
            end = LeaderEnd(broker.node, lambda _, follow: self._find(leader, follow), lambda *_: None, Gate())
            broker.wire = Wire(leader.node, FollowerEnd(), end)
            broker.wire.follower_end.follow(broker.partition, TOPIC_ID)

    def _find(self, leader: Broker, _: Follow) -> Partition | FollowRefusal:
        return leader.partition

    def _travel(self, broker: Broker, wire: Wire, *, upwards: bool) -> None:
        wire.up.extend(wire.follower_end.frames())
        if upwards:
            if wire.up:
                wire.leader_end.received(wire.up.popleft())
            return
        self._push(wire)
        if wire.down:
            wire.follower_end.received(wire.down.popleft())
            while wire.follower_end.step(NOW_MS):
                pass
            self._interrupt(broker, wire)

    def _push(self, wire: Wire) -> None:
        leader = self.brokers[wire.leader].partition
        wire.leader_end.written(leader)
        wire.leader_end.has_offsets(leader)
        wire.down.extend(wire.leader_end.answers())
        while (parts := wire.leader_end.data_frame() or wire.leader_end.offsets_frame()) is not None:
            wire.down.append(joined(parts))

    def _interrupt(self, broker: Broker, wire: Wire) -> None:
        interruptions, wire.follower_end.interruptions = wire.follower_end.interruptions, []
        for interruption in interruptions:
            if interruption.task is not None:
                self.truncations += 1
                broker.trim()
                carry_out(interruption.task)
            if broker.partition.offline.reason is None:
                wire.follower_end.follow(broker.partition, TOPIC_ID)
        trims, wire.follower_end.trims = wire.follower_end.trims, []
        for _, task in trims:
            if broker.task is None and task.begin(NOW_MS):
                broker.task = task
        assert broker.partition.offline.reason is None, broker.partition.offline.reason

    def disconnect(self, broker: Broker, _: int) -> None:
        broker.wire = None

    def crash(self, broker: Broker, seed: int) -> None:
        """Lose the process, or (every other time) the power."""
        if not broker.is_alive:
            return
        broker.is_alive = False
        broker.disk = broker.disk.power_cut(Random(seed)) if seed % 2 else broker.disk.process_crash()
        broker.open()
        for other in self.brokers.values():
            if other.node == broker.node or (other.wire is not None and other.wire.leader == broker.node):
                other.wire = None
        self.fence(broker, 0)

    def fence(self, broker: Broker, _: int) -> None:
        if broker.node in self.controller.view.broker_epochs:
            self.controller.fence(broker.node)

    def register(self, broker: Broker, _: int) -> None:
        """Start if needed, and register."""
        if broker.node not in self.controller.view.broker_epochs:
            broker.is_alive = True
            broker.broker_epoch += 1
            self.controller.register(broker.node, broker.broker_epoch)

    def request_join(self, broker: Broker, which: int) -> None:
        partition, view = broker.partition, broker.view
        if not broker.is_alive or view is None or partition.leader_term is None:
            return
        candidates = [node for node in NODES if node not in view.isr and node in view.broker_epochs]
        joining = [node for node in candidates if self._follows(node, partition) and led(partition).may_join(node)]
        if joining:
            node = joining[which % len(joining)]
            led(partition).replicas.join(node, view.partition_epoch)
            self.joins += 1
            self.requests.append(Request(view, (*view.isr, node), {node: view.broker_epochs[node]}))

    def _follows(self, node: NodeId, partition: Partition) -> bool:
        wire = self.brokers[node].wire
        return wire is not None and wire.leader_end.follows(partition)

    def request_leave(self, broker: Broker, which: int) -> None:
        view = broker.view
        if broker.is_alive and view is not None and broker.partition.leader_term is not None:
            others = [node for node in view.isr if node != broker.node]
            if others:
                isr = tuple(node for node in view.isr if node != others[which % len(others)])
                self.requests.append(Request(view, isr, {}))

    def decide(self, _: Broker, which: int) -> None:
        """Decide on a request, which may be an old one. The leader does not learn of it before it observes."""
        if self.requests:
            self.controller.alter(self.requests.pop(which % len(self.requests)))

    def _progressed(self, broker: Broker) -> None:
        if broker.wire is not None:
            broker.wire.follower_end.progressed(broker.partition)

    # Steps that go together. Single ones rarely occur in a row.

    def publish(self, _: Broker, which: int) -> None:
        """Let the leader take some records."""
        leader = self.controller.view.leader
        if leader is not None:
            for _number in range(1 + which % 3):
                self.produce(self.brokers[leader], 0)
            self.settle(self.brokers[leader], 0)

    def copy(self, broker: Broker, which: int) -> None:
        """Let a follower copy what there is, and report it as flushed, or only as written."""
        for _ in range(1 + which % 2):
            self.exchange(broker, 7)
            if which % 8 == 7:
                self.write(broker, 0)
            else:
                self.settle(broker, 0)
        self.exchange(broker, 0)

    def purge(self, broker: Broker, which: int) -> None:
        """Let the leader of enough replicas delete some records, and its followers with it; one of them often later."""
        for other in self.brokers.values():
            self.join(other, 1)
        leader = self.controller.view.leader
        if leader is not None:
            self.observe(self.brokers[leader])
            self.publish(broker, which)
            for other in self.brokers.values():
                self.copy(other, 1)
            self.delete(self.brokers[leader], which)
            self.settle(self.brokers[leader], 0)
            for other in self.brokers.values():
                if which % 3 or other is not broker:
                    self.copy(other, 1)
                elif which % 2:
                    self.exchange(other, 7)
                    self.write(other, 0)
                    self.exchange(other, 7)

    def join(self, broker: Broker, which: int) -> None:
        """Let a replica catch up and be asked to join. The controller may decide at once."""
        self.register(broker, 0)
        self.observe(broker)
        self.copy(broker, which)
        leader = self.controller.view.leader
        if leader is not None:
            self.request_join(self.brokers[leader], which)
            if which % 3:
                self.decide(broker, which)

    def leave(self, broker: Broker, which: int) -> None:
        """Let the leader remove a replica from the ISR."""
        leader = self.controller.view.leader
        if leader is not None:
            self.request_leave(self.brokers[leader], which)
            self.decide(broker, which)
            self.observe(self.brokers[leader])

    def fail_over(self, broker: Broker, which: int) -> None:
        """Let another replica lead; all observe it except (sometimes) the old leader, which comes back."""
        leader = self.controller.view.leader
        if leader is not None:
            self.fence(self.brokers[leader], 0)
        for other in self.brokers.values():
            if other.node != leader or which % 2:
                self.observe(other)
        if leader is not None and which % 4:
            self.register(self.brokers[leader], 0)

    # Invariants.

    def check(self) -> None:
        """Check every high watermark that has risen since the last step, and what may lead after a clean election."""
        for broker in self.brokers.values():
            self._answer_deletions(broker)
        for node in (*self.controller.view.isr, *self.controller.view.elr):
            start = self.brokers[node].stored_start
            assert start >= self.deleted_offset, f"broker {node} brings back the records from {start} on"
        for broker in self.brokers.values():
            partition = broker.partition
            before = self._watermarks.get(partition, 0)
            if partition.leader_term is not None:
                assert partition.term.high_watermark >= before, "a high watermark falls"
                if partition.term.high_watermark > before:
                    self._check_committed(broker)
            self._watermarks[partition] = partition.term.high_watermark

    def _check_committed(self, leader: Broker) -> None:
        end = leader.partition.term.high_watermark
        shown = leader.stored(end)
        for offset, stored in shown.items():
            if offset not in self.committed:
                self.commits += 1
            assert self.committed.setdefault(offset, stored) == stored, "a committed record was replaced"
        for node in self.controller.view.isr:
            member = self.brokers[node]
            assert member.log.flushes.flushed_offset >= end, f"IsrTruth: broker {node} is in sync without {end}"
            start = max(leader.log.log_start_offset, member.log.log_start_offset)
            assert _from(start, member.stored(end)) == _from(start, shown), f"IsrTruth: {node} has others below {end}"

    def check_logs_match(self) -> None:
        """Two logs with a batch of the same offset and epoch are equal up to it."""
        logs = [broker.stored(broker.log.written_offset) for broker in self.brokers.values()]
        for one in logs:
            for other in logs:
                common = [
                    at for at in one.keys() & other.keys() if one[at][0].leader_epoch == other[at][0].leader_epoch
                ]
                for offset in range(max(common, default=-1) + 1):
                    if offset >= max(min(one), min(other)):
                        assert one.get(offset) == other.get(offset), f"LogMatching: offset {offset} differs"

    def heal(self) -> None:
        """End all faults, and let everything settle: the logs are then equal, with all acknowledged records."""
        self.requests.clear()
        for _ in range(12):
            for broker in self.brokers.values():
                self.register(broker, 0)
                self.observe(broker)
            for broker in self.brokers.values():
                self.exchange(broker, 7)
                self.exchange(broker, 7)
                self.settle(broker, 0)
                self.request_join(broker, 0)
                self.decide(broker, 0)
            self.check()
        assert self.controller.view.leader is not None, "nobody leads"
        assert set(self.controller.view.isr) == set(NODES), f"not all are in sync: {self.controller.view}"
        leader = self.brokers[self.controller.view.leader]
        end = leader.log.log_end_offset
        assert leader.partition.term.high_watermark == end, "not everything is committed"
        starts = [broker.stored_start for broker in self.brokers.values()]
        assert min(starts) >= self.deleted_offset, "deleted records are back"
        start = max(starts)  # Of a deletion that has not been acknowledged, if it is not the leader's.
        logs = [_from(start, broker.stored(end)) for broker in self.brokers.values()]
        assert all(log == logs[0] for log in logs)
        assert _from(start, self.committed) == logs[0], "committed records are lost"
        assert {at for at in self.acknowledged if at >= start} <= logs[0].keys(), "acknowledged records are lost"


def _from(start: int, batches: Batches) -> Batches:
    return {offset: stored for offset, stored in batches.items() if offset >= start}
