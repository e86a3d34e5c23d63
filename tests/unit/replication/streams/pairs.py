"""A leader and a follower of some partitions, in memory, connected by the two ends of a replication stream."""

from collections.abc import Sequence

from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicPartition
from conveyor.kernel.ports import FileSlice
from conveyor.log.log import Log
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Follower, Leader, Role
from conveyor.replication.streams.follower_end import FollowerEnd
from conveyor.replication.streams.frames import Follow, FollowRefusal
from conveyor.replication.streams.leader_end import LeaderEnd, Parts
from conveyor.replication.streams.log_tasks import LogTask
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, TOPIC_ID, open_topic_log
from tests.unit.replication.parts import NO_CALLS, batch

ONE, TWO = NodeId(1), NodeId(2)
EPOCH = LeaderEpoch(4)
LEADS = Leader(leader=ONE, epoch=EPOCH, isr=(ONE, TWO))
FOLLOWS = Follower(leader=ONE, epoch=EPOCH)


class Replica:
    """One broker's replica of a partition, whose writes and flushes end at once."""

    def __init__(self, role: Role, topic: TopicSettings | None = None, number: int = 0) -> None:
        self.disk, self.topic = MemoryDisk(), topic or TopicSettings()
        self.number = number
        self.open(role)

    def open(self, role: Role) -> None:
        """Open the partition, also again."""
        self.log: Log = open_topic_log(self.disk, self.topic)
        self.partition = Partition(TopicPartition("t", self.number), self.log, role, NO_CALLS)

    def append(self, *values: bytes) -> None:
        self.partition.append(batch(*values), NOW_MS)
        self.settle()

    def settle(self, *, flushes: bool = True) -> None:
        self.partition.write()
        job = self.partition.begin_flush() if flushes else None
        if job is not None:
            job.run()
            self.partition.complete_flush(job, None)


class Gate:
    """A throttle that is open or not. portions: after so many it closes."""

    def __init__(self) -> None:
        self.is_open = True
        self.taken_bytes = 0
        self.portions: int | None = None

    def take(self, length: int) -> None:
        self.taken_bytes += length
        if self.portions is not None:
            self.portions -= 1
            self.is_open = self.portions > 0


class Pair:
    """The link between a leader and a follower, broker `node`, of the same partitions."""

    def __init__(self, leaders: Sequence[Replica], followers: Sequence[Replica], node: NodeId = TWO) -> None:
        self.leaders, self.followers, self.node = leaders, followers, node
        self.refusal: FollowRefusal | None = None
        self.frames: list[list[int]] = []
        self.reported: list[NodeId] = []
        self.throttle = Gate()
        self.connect()

    def connect(self) -> None:
        """Begin a new link; nothing of an earlier one remains."""
        self.leader = LeaderEnd(self.node, self.find, lambda node, _: self.reported.append(node), self.throttle)
        self.follower = FollowerEnd()
        for replica in self.followers:
            self.follower.follow(replica.partition, TOPIC_ID)

    def find(self, node: NodeId, follow: Follow) -> Partition | FollowRefusal:
        return self.refusal or self.leaders[follow.partition].partition

    def exchange(self, *, flushes: bool = True) -> None:
        """Send frames until both ends are silent, and run what interrupts the follower."""
        is_busy = True
        while is_busy:
            is_busy = self.to_leader()
            for frame in self.leader.answers():
                self.follower.received(frame)
            while (parts := self.leader.data_frame() or self.leader.offsets_frame()) is not None:
                self.deliver(parts)
                is_busy = True
            while self.follower.step(NOW_MS):
                pass
            is_busy = self.interrupted() or is_busy
            for replica in self.followers:
                replica.settle(flushes=flushes)
                self.follower.progressed(replica.partition)
            is_busy = self.to_leader() and is_busy

    def to_leader(self) -> bool:
        frames = self.follower.frames()
        for frame in frames:
            self.leader.received(frame)
        return bool(frames)

    def deliver(self, parts: Parts) -> None:
        slices = [part for part in parts if isinstance(part, FileSlice)]
        self.frames.append([part.length for part in slices])
        self.follower.received(joined(parts))

    def interrupted(self) -> bool:
        interruptions, self.follower.interruptions = self.follower.interruptions, []
        for interruption in interruptions:
            if interruption.task is not None:
                carry_out(interruption.task)
                if interruption.partition.offline.reason is None:
                    self.follower.follow(interruption.partition, TOPIC_ID)
        trims, self.follower.trims = self.follower.trims, []
        for partition, task in trims:
            carry_out(task)
            self.follower.log_task_ended(partition)
        return bool(interruptions)


def joined(parts: Parts) -> bytes:
    """The bytes of a frame, as the receiver gets them."""
    return b"".join(
        part.file.read(part.position, part.length) if isinstance(part, FileSlice) else part for part in parts
    )


def carry_out(task: LogTask) -> None:
    assert task.begin(NOW_MS)
    task.run()
    task.complete()
