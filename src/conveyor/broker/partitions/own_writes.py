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
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.partition import Partition

COMMIT_TIMEOUT_MS = 5_000
"""The default time that a reader waits."""

MAX_TIMEOUT_MS = 60_000
"""The longest time that a request waits, whatever its client permits."""


def is_behind(term: LeaderTerm) -> bool:
    """Return whether the leader has acknowledged records that readers do not see yet."""
    return term.high_watermark < term.acknowledged_offset


async def wait_for_commit(partition: Partition, clock: Clock, timeout_ms: int = COMMIT_TIMEOUT_MS) -> None:
    """Wait until every record acknowledged before this call is committed.

    Raises RequestError: REQUEST_TIMED_OUT, PARTITION_OFFLINE.
    """
    term = partition.leader_term
    if term is None:
        return  # A follower has acknowledged nothing.
    target = term.acknowledged_offset
    timeout_ms = min(timeout_ms, MAX_TIMEOUT_MS)
    deadline_ms = clock.steady_ms() + timeout_ms
    late = RequestError(
        ErrorKind.REQUEST_TIMED_OUT,
        f"{partition.identity}: acknowledged records up to offset {target} are not on the disk yet",
    )

    def wait(answer: Callable[[RequestError | None], None]) -> Callable[[], None]:
        def look() -> None:
            if partition.term.high_watermark >= target:
                finish(None)
            elif partition.offline.reason is not None:
                finish(partition.offline.error())
            elif clock.steady_ms() >= deadline_ms:
                finish(late)

        def finish(result: RequestError | None) -> None:
            end()
            answer(result)

        def end() -> None:
            alarm.cancel()
            leave()

        alarm = Alarm(clock, lambda: finish(late))
        alarm.after(timeout_ms)
        leave = partition.changed.listen(lambda _: look())
        look()
        return end

    await answered(wait)


async def wait_for_commits(partitions: Iterable[Partition], clock: Clock) -> None:
    """Wait as `wait_for_commit`, for several partitions at once. Raises RequestError for the first that fails."""
    led = [(partition, partition.leader_term) for partition in partitions]
    behind = [partition for partition, term in led if term is not None and is_behind(term)]
    if behind:
        await asyncio.gather(*(wait_for_commit(partition, clock) for partition in behind))
