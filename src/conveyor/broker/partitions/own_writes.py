"""Reading one's own writes: a reader waits until what acks=1 has acknowledged is committed.

With `flush.policy=ack` a producer with acks=1 has its answer once the record is in the page cache, and readers see the
record once it is on the disk. A reader in between would be told an end of the log that lies before that record.
Nothing waits where nothing was acknowledged ahead of the high watermark: acks=all, or `flush.policy=os`.
"""

import asyncio
from collections.abc import Iterable

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Clock
from conveyor.replication.partition import Partition

COMMIT_TIMEOUT_MS = 5_000
"""How long a reader waits that names no time of its own."""

_MAX_TIMEOUT_MS = 60_000


def is_behind(partition: Partition) -> bool:
    """Whether something was acknowledged that readers do not see yet."""
    return partition.high_watermark < partition.acknowledged_offset


async def wait_for_commit(partition: Partition, clock: Clock, timeout_ms: int = COMMIT_TIMEOUT_MS) -> None:
    """Wait until everything that was acknowledged before this call is committed.

    Raises RequestError: REQUEST_TIMED_OUT, PARTITION_OFFLINE.
    """
    target = partition.acknowledged_offset
    deadline_ms = clock.steady_ms() + min(timeout_ms, _MAX_TIMEOUT_MS)
    moved = asyncio.Event()
    cancel_alarm = clock.call_later(min(timeout_ms, _MAX_TIMEOUT_MS), moved.set)
    try:
        while partition.high_watermark < target:
            partition.check_online()
            if clock.steady_ms() >= deadline_ms:
                raise RequestError(
                    ErrorKind.REQUEST_TIMED_OUT,
                    f"{partition.identity}: what was acknowledged up to offset {target} is not on the disk yet",
                )
            moved.clear()
            partition.watch(moved.set)
            await moved.wait()
    finally:
        cancel_alarm()
        partition.unwatch(moved.set)


async def wait_for_commits(partitions: Iterable[Partition], clock: Clock) -> None:
    """The same for several partitions at once. Raises RequestError for the first that fails."""
    behind = [partition for partition in partitions if is_behind(partition)]
    if behind:
        await asyncio.gather(*(wait_for_commit(partition, clock) for partition in behind))
