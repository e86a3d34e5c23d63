"""Read-only views of a subscription in one partition: counts, the next messages, the state of one message."""

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
"""The size limit of one peek response. The message that reaches it is still included."""

_MAX_EXAMINED = 10_000


class Peeked(NamedTuple):
    """An unsettled message and its state."""

    message: Message
    state: MessageState


def count_messages(queue: Queue, source: MessageSource, stable_offset: int) -> QueueCounts:
    """Count the messages of a partition by state."""
    progress, deliveries = queue.progress, queue.deliveries
    unsettled = progress.unsettled_count(stable_offset) - progress.unsettled_count(source.log_start_offset)
    waiting = 0 if deliveries.keys is None else deliveries.keys.waiting_count
    held = len(deliveries.leases) + len(progress.pending)
    elsewhere = held + deliveries.withheld_count + len(deliveries.dead_lettering)
    return QueueCounts(
        unsettled=unsettled,
        available=max(0, unsettled - elsewhere - waiting),
        in_flight=len(deliveries.leases),
        pending=len(progress.pending),
        withheld=deliveries.withheld_count,
        dead=progress.dead.count,
        oldest_ms=_oldest_ms(queue, source, stable_offset),
    )


def _oldest_ms(queue: Queue, source: MessageSource, stable_offset: int) -> int | None:
    try:
        oldest = next(unsettled_messages(queue, source, stable_offset, SMALL_BYTES), None)
    except StillPacked as packed:  # The batch's timestamp is close enough; unpacking would take too long.
        return packed.header.max_timestamp
    except StorageFailure:  # A lease of the message reports the failure; the counts are valid without it.
        return None
    return None if oldest is None else oldest.timestamp_ms


def peek(
    queue: Queue, source: MessageSource, stable_offset: int, limit: int, now_ms: int, max_bytes: int = MAX_PEEKED_BYTES
) -> list[Peeked]:
    """Return the first unsettled messages by offset. max_bytes: no message is added once their values reach this
    size.
    """
    peeked = []
    for message in unsettled_messages(queue, source, stable_offset):
        peeked.append(Peeked(message, message_state(queue, message, now_ms)))
        max_bytes -= message.weight_bytes
        if len(peeked) == limit or max_bytes <= 0:
            break
    return peeked


def unsettled_messages(
    queue: Queue, source: MessageSource, stable_offset: int, limit_bytes: int = MAX_UNPACKED_BYTES
) -> Iterator[Message]:
    """Yield unsettled messages by offset, up to a limit of examined offsets per call. limit_bytes: see
    `MessageSource`.
    """
    examined = 0
    progress = queue.progress
    start = max(progress.start_offset, source.log_start_offset)
    for first, end in progress.settled.gaps(start, stable_offset):
        for offset in range(first, end):
            message = source.get(offset, limit_bytes)
            if message is not None:
                yield message
            examined += 1
            if examined == _MAX_EXAMINED:
                return


def message_state(queue: Queue, message: Message, now_ms: int) -> MessageState:
    """Return a message's state in a subscription."""
    offset, progress, deliveries = message.offset, queue.progress, queue.deliveries
    if progress.is_settled(offset):
        return MessageState(_settled_state(queue, message), None)
    lease, attempt = deliveries.leases.get(offset), progress.attempts.get(offset)
    if offset in progress.pending:
        return MessageState("pending", 1 if attempt is None else attempt.deliveries + 1)
    if lease is not None:
        return MessageState("leased", lease.delivery_count, lease.ends_ms)
    if attempt is not None and attempt.dead_letter_reason is not None:
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
    return "acknowledged" if queue.selection.wants(message) else "filtered"
