"""Read your own writes: a reader waits until all records acknowledged under acks=1 are committed.

With `flush.policy=ack` a producer with acks=1 is answered once the record is in the page cache, but readers see the
record only once it is on the disk. A reader in between would receive an end offset before that record. Readers do not
wait if no record was acknowledged ahead of the high watermark, as with acks=all or `flush.policy=os`.
"""

import asyncio
from collections.abc import Callable, Iterable

from conveyor.broker.answers import answered
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Clock
from conveyor.replication.partition import Partition

COMMIT_TIMEOUT_MS = 5_000
"""The default time that a reader waits."""

_MAX_TIMEOUT_MS = 60_000


def is_behind(partition: Partition) -> bool:
    """Return whether the partition has acknowledged records that readers do not see yet."""
    return partition.high_watermark < partition.acknowledged_offset


async def wait_for_commit(partition: Partition, clock: Clock, timeout_ms: int = COMMIT_TIMEOUT_MS) -> None:
    """Wait until every record acknowledged before this call is committed.

    Raises RequestError: REQUEST_TIMED_OUT, PARTITION_OFFLINE.
    """
    target = partition.acknowledged_offset
    timeout_ms = min(timeout_ms, _MAX_TIMEOUT_MS)
    deadline_ms = clock.steady_ms() + timeout_ms
    late = RequestError(
        ErrorKind.REQUEST_TIMED_OUT,
        f"{partition.identity}: acknowledged records up to offset {target} are not on the disk yet",
    )

    def wait(answer: Callable[[RequestError | None], None]) -> Callable[[], None]:
        alarm = Alarm(clock, lambda: answer(late))

        def look() -> None:
            if partition.high_watermark >= target:
                answer(None)
            elif partition.offline_reason is not None:
                answer(partition.offline_error())
            elif clock.steady_ms() >= deadline_ms:
                answer(late)
            else:
                partition.watch(look)

        def end() -> None:
            alarm.cancel()
            partition.unwatch(look)

        alarm.after(timeout_ms)
        look()
        return end

    await answered(wait)


async def wait_for_commits(partitions: Iterable[Partition], clock: Clock) -> None:
    """Wait as `wait_for_commit`, for several partitions at once. Raises RequestError for the first that fails."""
    behind = [partition for partition in partitions if is_behind(partition)]
    if behind:
        await asyncio.gather(*(wait_for_commit(partition, clock) for partition in behind))
