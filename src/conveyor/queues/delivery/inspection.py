"""Looking at a subscription in one partition without changing it: counts, what is next, the state of one message."""

from collections.abc import Iterator
from typing import NamedTuple

from conveyor.kernel.errors import StorageFailure
from conveyor.log.record_source import SMALL_BYTES, MessageSource, StillPacked
from conveyor.queues.delivery.subscription_queue import Queue
from conveyor.queues.queue_commands import MessageState, QueueCounts
from conveyor.records.compression import MAX_UNPACKED_BYTES
from conveyor.records.message import Message
from conveyor.records.message_attributes import read_attributes

MAX_PEEKED_BYTES = 8 << 20
"""As large are the messages of one answer, apart from the last."""

_LOOKED_AT = 10_000


class Peeked(NamedTuple):
    """An unsettled message, and what is happening to it."""

    message: Message
    state: MessageState


def count_messages(queue: Queue, source: MessageSource, high_watermark: int) -> QueueCounts:
    """How many messages of a partition are where."""
    progress, deliveries = queue.progress, queue.deliveries
    unsettled = progress.unsettled_count(high_watermark) - progress.unsettled_count(source.log_start_offset)
    waiting = 0 if deliveries.keys is None else deliveries.keys.waiting_count
    elsewhere = len(deliveries.leases) + deliveries.withheld_count + len(deliveries.doomed)
    return QueueCounts(
        unsettled=unsettled,
        available=max(0, unsettled - elsewhere - waiting),
        in_flight=len(deliveries.leases),
        withheld=deliveries.withheld_count,
        dead=progress.dead.count,
        oldest_ms=_oldest_ms(queue, source, high_watermark),
    )


def _oldest_ms(queue: Queue, source: MessageSource, high_watermark: int) -> int | None:
    try:
        oldest = next(unsettled_messages(queue, source, high_watermark, SMALL_BYTES), None)
    except StillPacked as packed:  # It is not worth the time.
        return packed.header.max_timestamp
    except StorageFailure:  # Whoever wants the message is told; the counts hold all the same.
        return None
    return None if oldest is None else oldest.timestamp_ms


def peek(
    queue: Queue, source: MessageSource, high_watermark: int, limit: int, now_ms: int, max_bytes: int = MAX_PEEKED_BYTES
) -> list[Peeked]:
    """The first unsettled messages, by offset. max_bytes: none is added once their values are that large."""
    found = []
    for message in unsettled_messages(queue, source, high_watermark):
        found.append(Peeked(message, message_state(queue, message, now_ms)))
        max_bytes -= message.weight_bytes
        if len(found) == limit or max_bytes <= 0:
            break
    return found


def unsettled_messages(
    queue: Queue, source: MessageSource, high_watermark: int, limit_bytes: int = MAX_UNPACKED_BYTES
) -> Iterator[Message]:
    """Ascending by offset, not beyond a number of them that one call may look at. limit_bytes: see `MessageSource`."""
    looked_at = 0
    progress = queue.progress
    start = max(progress.start_offset, source.log_start_offset)
    for first, end in progress.settled.gaps(start, high_watermark):
        for offset in range(first, end):
            message = source.get(offset, limit_bytes)
            if message is not None:
                yield message
            looked_at += 1
            if looked_at == _LOOKED_AT:
                return


def message_state(queue: Queue, message: Message, now_ms: int) -> MessageState:
    """What a subscription has done with one message."""
    offset, progress, deliveries = message.offset, queue.progress, queue.deliveries
    if progress.is_settled(offset):
        return MessageState(_settled_state(queue, message))
    lease, attempt = deliveries.leases.get(offset), progress.attempts.get(offset)
    if lease is not None:
        return MessageState("leased", lease.delivery_count, lease.ends_ms)
    if attempt is not None and attempt.doomed is not None:
        return MessageState("dying", attempt.deliveries)
    if attempt is not None:
        state = "retrying" if attempt.due_ms > now_ms else "available"
        return MessageState(state, attempt.deliveries, attempt.due_ms if state == "retrying" else None)
    if deliveries.keys is not None and deliveries.keys.is_behind(offset, message.key):
        return MessageState("waiting")
    due_ms = read_attributes(message.headers, message.timestamp_ms).due_ms
    return MessageState("delayed", 0, due_ms) if due_ms > now_ms else MessageState("available")


def _settled_state(queue: Queue, message: Message) -> str:
    if message.offset in queue.progress.dead:
        return "dead"
    if message.offset in queue.progress.expired:
        return "expired"
    return "acknowledged" if queue.wants(message) else "filtered"
