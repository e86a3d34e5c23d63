"""Notices that the disk does not finish a flush.

A flush that is pending at each check, and makes no record durable between two checks, is not progressing. The time is
the sum of the times between checks. A time longer than two checks is counted as two: the process was paused then,
rather than its disk.
"""

import msgspec

from conveyor.broker.partitions.flusher import Flusher
from conveyor.kernel.ports import Clock
from conveyor.log.flush import FlushJob
from conveyor.replication.partition import Partition

CHECK_MS = 1_000


class _Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A flush at the last check. stalled_ms: how long it has not progressed."""

    job: FlushJob | None
    flushed_offset: int
    stalled_ms: int


class FlushStalls:
    """See the module's docstring. Call `longest_ms` every CHECK_MS."""

    def __init__(self, flusher: Flusher, clock: Clock) -> None:
        self._flusher = flusher
        self._clock = clock
        self._waiting: dict[Partition, _Waiting] = {}
        self._checked_ms = clock.steady_ms()

    def longest_ms(self) -> int:
        """Return how long the flush that waits longest has not progressed; 0 if none waits."""
        now_ms = self._clock.steady_ms()
        passed_ms = min(now_ms - self._checked_ms, 2 * CHECK_MS)
        self._checked_ms = now_ms
        self._waiting = {
            partition: self._next(partition, job, passed_ms) for partition, job in self._flusher.pending.items()
        }
        return max((waiting.stalled_ms for waiting in self._waiting.values()), default=0)

    def _next(self, partition: Partition, job: FlushJob | None, passed_ms: int) -> _Waiting:
        before, flushed_offset = self._waiting.get(partition), partition.log.flushes.flushed_offset
        is_same = before is not None and before.job is job and before.flushed_offset == flushed_offset
        stalled_ms = before.stalled_ms + passed_ms if before is not None and is_same else 0
        return _Waiting(job=job, flushed_offset=flushed_offset, stalled_ms=stalled_ms)
