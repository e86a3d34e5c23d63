"""Read-only views of a subscription in one partition: counts, the next messages, the state of one message."""

from typing import NamedTuple

from conveyor.kernel.errors import StorageFailure
from conveyor.log.record_source import MessageSource, StillPacked
from conveyor.queues.delivery.subscription_queue import SubscriptionQueue
from conveyor.queues.queue_commands import MessageState, SubscriptionCounts
from conveyor.records.message import Message
from conveyor.records.message_attributes import read_attributes

MAX_PEEKED_BYTES = 8 << 20
"""The size limit of one peek response. The message that reaches it is still included."""

_MAX_EXAMINED = 10_000


class Peeked(NamedTuple):
    """An unsettled message and its state."""

    message: Message
    state: MessageState


def count_messages(queue: SubscriptionQueue, source: MessageSource, stable_offset: int) -> SubscriptionCounts:
    """Count the messages of a partition by state."""
    progress, deliveries = queue.progress, queue.deliveries
    unsettled = progress.unsettled_count(stable_offset) - progress.unsettled_count(source.log_start_offset)
    withheld = len(deliveries.withheld) - len(deliveries.withheld.cancelled)
    held = len(deliveries.leases) + len(progress.pending)
    elsewhere = held + withheld + len(deliveries.dead_lettering) + deliveries.ordering.waiting_count
    return SubscriptionCounts(
        unsettled=unsettled,
        available=max(0, unsettled - elsewhere),
        in_flight=len(deliveries.leases),
        pending=len(progress.pending),
        withheld=withheld,
        dead=progress.dead.count,
        oldest_ms=_oldest_ms(queue, source, stable_offset),
    )


def _oldest_ms(queue: SubscriptionQueue, source: MessageSource, stable_offset: int) -> int | None:
    try:
        oldest = next(UnsettledMessages(queue, source, stable_offset), None)
    except StillPacked as packed:  # The batch's timestamp is close enough; unpacking would take too long.
        return packed.header.max_timestamp
    except StorageFailure:  # A lease of the message reports the failure; the counts are valid without it.
        return None
    return None if oldest is None else oldest.timestamp_ms


class UnsettledMessages:
    """An iterator of unsettled messages by offset, up to a limit of examined offsets. After StillPacked, it continues
    at the same offset once the source has the batch. Raises StorageFailure.
    """

    def __init__(self, queue: SubscriptionQueue, source: MessageSource, stable_offset: int) -> None:
        self._progress = queue.progress
        self._source = source
        self._offset = max(queue.progress.start_offset, source.log_start_offset)
        self._stable_offset = stable_offset
        self._examined = 0

    def __iter__(self) -> "UnsettledMessages":
        return self

    def __next__(self) -> Message:
        for first, end in self._progress.settled.gaps(self._offset, self._stable_offset):
            for offset in range(first, end):
                if self._examined == _MAX_EXAMINED:
                    raise StopIteration
                self._offset = offset
                message = self._source.get(offset)
                self._offset += 1
                self._examined += 1
                if message is not None:
                    return message
        raise StopIteration


class Peek:
    """Finds the first unsettled messages of a partition by offset.

    max_bytes: no message is added once their values reach this size.
    """

    def __init__(
        self,
        queue: SubscriptionQueue,
        source: MessageSource,
        stable_offset: int,
        limit: int,
        now_ms: int,
        max_bytes: int = MAX_PEEKED_BYTES,
    ) -> None:
        self._queue = queue
        self._messages = UnsettledMessages(queue, source, stable_offset)
        self._limit = limit
        self._now_ms = now_ms
        self._max_bytes = max_bytes
        self._found: list[Peeked] = []

    def go_on(self) -> list[Peeked]:
        """Return the messages. After StillPacked, call again once the source has the batch. Raises StorageFailure."""
        for message in self._messages:
            self._found.append(Peeked(message, message_state(self._queue, message, self._now_ms)))
            self._max_bytes -= message.weight_bytes
            if len(self._found) == self._limit or self._max_bytes <= 0:
                break
        return self._found


def message_state(queue: SubscriptionQueue, message: Message, now_ms: int) -> MessageState:
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
    if deliveries.ordering.is_behind(offset, message.key):
        return MessageState("waiting")
    due_ms = read_attributes(message.headers, message.timestamp_ms).due_ms
    return MessageState("delayed", 0, due_ms) if due_ms > now_ms else MessageState("available")


def _settled_state(queue: SubscriptionQueue, message: Message) -> str:
    if message.offset in queue.progress.dead:
        return "dead"
    if message.offset in queue.progress.expired:
        return "expired"
    return "acknowledged" if queue.selection.wants(message) else "filtered"
