"""Read-only views of a subscription in one partition: counts, the next messages, the state of one message."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from conveyor.kernel.errors import StorageFailure
from conveyor.log.record_source import BYTES_OF_A_RUN, MessageSource, StillPacked
from conveyor.queues.delivery.held_leases import Lease
from conveyor.queues.delivery.subscription_queue import SubscriptionQueue
from conveyor.queues.queue_commands import Consumer, MessageState, SubscriptionCounts
from conveyor.queues.subscription.queue_records import Kind
from conveyor.records.message import Message
from conveyor.records.message_attributes import read_attributes

MAX_PEEKED_BYTES = 8 << 20
"""The size limit of one peek response. The message that reaches it is still included."""

_WORK_AT_ONCE = 500
"""The most work of one part of a peek: about 5 ms. A step to the next message counts 1, and so does each
`BYTES_OF_A_RUN` of a batch that it opens.
"""
_PARTITION_WORK = 5
"""Of each partition, even if it has no unsettled message."""

_MAX_WORK = 20_000
"""The most work of one peek. It is enough for the messages of one peek even if each of them is in a large batch."""

_MAX_OLDEST_WORK = 50


class Peeked(NamedTuple):
    """An unsettled message and its state."""

    message: Message
    state: MessageState


def count_messages(queue: SubscriptionQueue, log_start_offset: int, stable_offset: int) -> SubscriptionCounts:
    """Count the messages of a partition by state. No message is read."""
    progress, deliveries = queue.progress, queue.deliveries
    unsettled = progress.unsettled_count(stable_offset) - progress.unsettled_count(log_start_offset)
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
    )


def find_oldest_ms(queue: SubscriptionQueue, source: MessageSource, stable_offset: int) -> int | None:
    """Return the timestamp of the oldest unsettled message, or that of a batch close to it if the search would take
    too long.
    """
    left_work = _MAX_OLDEST_WORK
    try:
        for message, work in UnsettledMessages(queue, source, stable_offset):
            if message is not None:
                return message.timestamp_ms
            left_work -= work
            if left_work <= 0:
                return source.last_timestamp_ms
    except StillPacked as packed:
        return packed.header.max_timestamp
    except StorageFailure:  # A lease of the message reports the failure.
        pass
    return None


class UnsettledMessages:
    """An iterator over the unsettled messages by offset. Each step returns a message and the work that it took. If the
    next offset has no message, the step returns None and passes the offsets after it that have none either.

    After StillPacked, it continues at the same offset once the source has the batch. Raises StorageFailure.
    """

    def __init__(self, queue: SubscriptionQueue, source: MessageSource, stable_offset: int) -> None:
        self._progress = queue.progress
        self._source = source
        self._offset = source.log_start_offset
        self._stable_offset = stable_offset

    def __iter__(self) -> "UnsettledMessages":
        return self

    def __next__(self) -> tuple[Message | None, int]:
        progress, source = self._progress, self._source
        from_offset = max(self._offset, progress.start_offset)
        offset, _ = next(progress.settled.gaps(from_offset, self._stable_offset))
        unpacked_bytes = source.unpacked_bytes
        message = source.get(offset)
        self._offset = source.following(offset) if message is None else offset + 1
        return message, 1 + (source.unpacked_bytes - unpacked_bytes) // BYTES_OF_A_RUN


class Peek:
    """Finds the first unsettled messages of partitions, by offset, in parts that take a few ms each.

    found: the messages so far. is_done: there are enough of them, or the search would take too long.
    """

    def __init__(self, limit: int, now_ms: int) -> None:
        self.found: list[Peeked] = []
        self.is_done = limit <= 0
        self._limit = limit
        self._now_ms = now_ms
        self._left_bytes = MAX_PEEKED_BYTES
        self._left_work = _MAX_WORK
        self._part_work = 0

    def search(self, queue: SubscriptionQueue, source: MessageSource, stable_offset: int) -> Callable[[], bool]:
        """Continue with a partition. Returns a function that finds its messages: it returns False after each part,
        and is called again in a later turn of the event loop, True at the end. After StillPacked, it is called again
        once the source has the batch. It raises StorageFailure.
        """
        self._part_work += _PARTITION_WORK
        return partial(self._go_on, queue, UnsettledMessages(queue, source, stable_offset))

    def _go_on(self, queue: SubscriptionQueue, messages: UnsettledMessages) -> bool:
        while self._part_work < _WORK_AT_ONCE:
            step = next(messages, None)
            if step is None:
                return True
            message, work = step
            self._left_work -= work
            self._part_work += work
            if message is not None:
                self.found.append(Peeked(message, message_state(queue, message, self._now_ms)))
                self._left_bytes -= message.weight_bytes
            if len(self.found) == self._limit or self._left_bytes <= 0 or self._left_work <= 0:
                self.is_done = True
                return True
        self._part_work = 0
        return False


def message_state(queue: SubscriptionQueue, message: Message, now_ms: int) -> MessageState:
    """Return a message's state in a subscription."""
    offset, progress, deliveries = message.offset, queue.progress, queue.deliveries
    if progress.is_settled(offset):
        return _settled(queue, message)
    lease, attempt = deliveries.leases.get(offset), progress.attempts.get(offset)
    if offset in progress.pending:
        held = deliveries.leases.pending.get(offset)
        return MessageState("pending", 1 if attempt is None else attempt.deliveries + 1, None, _consumer(held))
    if lease is not None:
        return MessageState("leased", lease.delivery_count, lease.ends_ms, _consumer(lease))
    if attempt is not None and attempt.dead_letter_reason is not None:
        return MessageState("dying", attempt.deliveries)
    if attempt is not None and attempt.due_ms > now_ms:
        return MessageState("retrying", attempt.deliveries, attempt.due_ms)
    deliveries_count = 0 if attempt is None else attempt.deliveries
    if deliveries.ordering.is_behind(offset, message.key):
        return MessageState("waiting", deliveries_count)
    if attempt is not None:
        return MessageState("available", deliveries_count)
    due_ms = read_attributes(message.headers, message.timestamp_ms).due_ms
    return MessageState("delayed", 0, due_ms) if due_ms > now_ms else MessageState("available")


def _consumer(lease: Lease | None) -> Consumer | None:
    if lease is None or lease.caller is None:
        return None
    return Consumer(str(lease.caller.principal), lease.client_id, lease.caller.address)


def _settled(queue: SubscriptionQueue, message: Message) -> MessageState:
    state, last = _settled_state(queue, message), queue.progress.recent.of(message.offset)
    if last is None:
        return MessageState(state, None)
    if last.kind is Kind.DROPPED:
        state = "dropped"
    failed = last.failed_deliveries
    deliveries = None if failed is None else failed + (state == "acknowledged")
    return MessageState(state, deliveries, settled_ms=last.settled_ms)


def _settled_state(queue: SubscriptionQueue, message: Message) -> str:
    if message.offset in queue.progress.dead:
        return "dead"
    if message.offset in queue.progress.expired:
        return "expired"
    return "acknowledged" if queue.selection.wants(message) else "filtered"
