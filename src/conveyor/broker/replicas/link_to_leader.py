"""The link over which this broker copies partitions from one leader.

    partitions to follow -> dial -> connected -> ended -> a pause, or the next image -> dial

While it is connected, records are appended in bounded steps, and reported at the end of the tick in which they were
written. A partition that the leader has refused is followed again after a pause that doubles, or with the next image.
"""

import asyncio
import logging

import msgspec

from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.partitions.log_task_runner import LogTaskRunner
from conveyor.broker.partitions.loop_tick import LoopTick
from conveyor.broker.services import Services
from conveyor.broker.timed_signal import Pauses, TimedSignal
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.ids import NodeId, TopicId
from conveyor.kernel.peers import PeerLink, PeerService, PeerUnreachable
from conveyor.kernel.ports import Bytes
from conveyor.replication.partition import Partition
from conveyor.replication.streams.follower_end import FollowerEnd, Interruption

log = logging.getLogger(__name__)

_FIRST_DIAL_PAUSE_MS = 5
"""Two dials that are refused prove that a leader was killed, so both follow soon after the link has ended."""

_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 5_000
_LONGEST_REFUSAL_MS = 1_000


class LinkParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that all links of a broker use."""

    services: Services
    cluster: ClusterLinks
    tick: LoopTick
    log_tasks: LogTaskRunner


class _Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The time at which a refused partition is followed again, and the pause before it. None: no pause is running."""

    due_ms: int | None
    pause_ms: int


class LinkToLeader:
    """See the module's docstring. leader: the broker to copy from."""

    def __init__(self, leader: NodeId, parts: LinkParts) -> None:
        self.leader = leader
        self._clock, self._tasks = parts.services.clock, parts.services.tasks
        self._cluster = parts.cluster
        self._tick = parts.tick
        self._log_tasks = parts.log_tasks
        self._wanted: dict[Partition, TopicId] = {}
        self._stream: FollowerEnd | None = None
        self._link: PeerLink | None = None
        self._ended_bytes = 0
        self._retries: dict[Partition, _Retry] = {}
        self._retry = Alarm(self._clock, self._follow_again)
        self._wake = TimedSignal(self._clock)
        self._has_ended = asyncio.Event()
        self._has_ended.set()
        self._dialing: asyncio.Task[None] | None = None
        self._pauses = Pauses(_FIRST_DIAL_PAUSE_MS, _LONGEST_PAUSE_MS)
        self._is_stepping = self._is_pushing = False

    @property
    def received_bytes(self) -> int:
        """The bytes of records received over all links to the leader."""
        return self._ended_bytes + (0 if self._stream is None else self._stream.received_bytes)

    def follow(self, partition: Partition, topic_id: TopicId) -> None:
        """Copy a partition from now on, in the epoch of its role."""
        self._wanted[partition] = topic_id
        self._retries.pop(partition, None)
        self._begin(partition)
        if self._dialing is None:
            self._dialing = self._tasks.start(self._keep_connected())

    def unfollow(self, partition: Partition) -> None:
        """Stop copying a partition. Without partitions the link ends."""
        if self._wanted.pop(partition, None) is None:
            return
        self._retries.pop(partition, None)
        if self._stream is not None:
            self._stream.unfollow(partition)
            self._push_soon()
        if not self._wanted:
            self.stop("no partition is followed any more")

    def stop(self, reason: str) -> None:
        self._retry.cancel()
        if self._dialing is not None:
            self._dialing.cancel()
            self._dialing = None
        if self._link is not None:
            self._link.close(reason)

    def progressed(self, partition: Partition) -> None:
        """A followed partition was written or flushed."""
        if self._stream is not None and self._stream.progressed(partition):
            self._retries.pop(partition, None)
            self._push_soon()

    def image_changed(self) -> None:
        """Try again at once whatever waits: the image may show another address, leader or epoch."""
        self._pauses.reset()
        self._wake.set()
        if self._retries:
            self._retries = {partition: _Retry(due_ms=0, pause_ms=0) for partition in self._retries}
            self._follow_again()

    def resume(self, partition: Partition) -> None:
        """Follow a partition again after a task, unless the pause after a refusal is still running. After a task that
        has not interrupted it, go on.
        """
        if self._stream is not None and self._stream.log_task_ended(partition):
            self._start_trims(self._stream)
            return self._push_soon()
        retry = self._retries.get(partition)
        if partition in self._wanted and (retry is None or retry.due_ms is None):
            self._begin(partition)

    def received(self, frame: Bytes) -> None:
        if self._stream is not None:
            self._stream.received(frame)
            self._pauses.reset()
            self._step()

    def ended(self, reason: str) -> None:
        log.info("replication link ended leader=%d reason=%s", self.leader, reason)
        if self._stream is not None:
            self._stream.close()
            self._ended_bytes += self._stream.received_bytes
        self._link = self._stream = None
        self._has_ended.set()
        if self._wanted:
            self._cluster.leader_lost.emit(self.leader)

    async def _keep_connected(self) -> None:
        while True:
            await self._dial()
            await self._has_ended.wait()
            await self._wake.wait(self._pauses.next_ms())

    async def _dial(self) -> None:
        address = self._cluster.address(self.leader)
        if address is None:
            return
        try:
            await self._cluster.dial(address, PeerService.REPLICATION, self._opened)
        except PeerUnreachable as failure:
            log.info("leader unreachable leader=%d reason=%s", self.leader, failure)

    def _opened(self, link: PeerLink) -> "LinkToLeader":
        self._link, self._stream = link, FollowerEnd()
        self._has_ended.clear()
        self._cluster.leader_linked.emit(self.leader)
        self._retries.clear()
        for partition in list(self._wanted):
            self._begin(partition)
        return self

    def _begin(self, partition: Partition) -> None:
        """Follow a partition if the link is open and the log can be changed."""
        stream = self._stream
        if stream is None or self._log_tasks.is_busy(partition) or partition.offline.reason is not None:
            return
        if stream.follows(partition):
            return
        stream.follow(partition, self._wanted[partition])
        self._push_soon()

    def _step(self) -> None:
        """Append a bounded part of what was received; the rest in later iterations of the event loop."""
        self._is_stepping = False
        stream = self._stream
        if stream is None:
            return
        has_more = stream.step(self._clock.now_ms())
        interruptions, stream.interruptions = stream.interruptions, []
        for interruption in interruptions:
            self._interrupted(interruption)
        self._start_trims(stream)
        self._push_soon()
        if has_more and not self._is_stepping:
            self._is_stepping = True
            asyncio.get_running_loop().call_soon(self._step)

    def _start_trims(self, stream: FollowerEnd) -> None:
        trims, stream.trims = stream.trims, []
        for partition, task in trims:
            if not self._log_tasks.is_busy(partition):
                self._log_tasks.start(partition, task)

    def _interrupted(self, interruption: Interruption) -> None:
        partition = interruption.partition
        if interruption.task is not None:
            self._log_tasks.start(partition, interruption.task)
        elif partition in self._wanted:
            before = self._retries.get(partition)
            pause_ms = _FIRST_PAUSE_MS if before is None else min(2 * before.pause_ms, _LONGEST_REFUSAL_MS)
            pause_ms = max(pause_ms, _FIRST_PAUSE_MS)
            self._retries[partition] = _Retry(due_ms=self._clock.steady_ms() + pause_ms, pause_ms=pause_ms)
            self._retry_later()

    def _follow_again(self) -> None:
        now_ms = self._clock.steady_ms()
        for partition, retry in list(self._retries.items()):
            if retry.due_ms is not None and retry.due_ms <= now_ms:
                self._retries[partition] = _Retry(due_ms=None, pause_ms=retry.pause_ms)
                self._begin(partition)
        self._retry_later()

    def _retry_later(self) -> None:
        due_ms = [retry.due_ms for retry in self._retries.values() if retry.due_ms is not None]
        if due_ms:
            self._retry.after(max(1, min(due_ms) - self._clock.steady_ms()))

    def _push_soon(self) -> None:
        if not self._is_pushing:
            self._is_pushing = True
            self._tick.add_output(self._push)

    def _push(self) -> None:
        self._is_pushing = False
        if self._stream is not None and self._link is not None:
            for frame in self._stream.frames():
                self._link.send(frame)
