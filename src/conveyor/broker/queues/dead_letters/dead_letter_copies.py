"""Reads the copies of dead letters from the dead-letter topic.

A subscription's state holds the places of its copies, so only the batches that contain them are read. Copies that the
topic has lost (retention, compaction, DeleteRecords, another topic in its place) are left out.
"""

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice

import msgspec

from conveyor.broker.fetch.message_browser import MessageBrowser
from conveyor.broker.queues.dead_letters.dead_queue import DeadQueue
from conveyor.cluster.image import TopicImage
from conveyor.kernel.access.caller import Caller
from conveyor.queues.messages.dead_copies import LAST_OFFSET, CopiedRange, CopyLog
from conveyor.queues.subscription.policy import Subscription
from conveyor.records import message_attributes
from conveyor.records.message import Message
from conveyor.records.message_attributes import last_header

_AT_ONCE = 500
_READ_BYTES = 1 << 20
_DENSE_SPAN = 100
_DENSE_COUNT = 50
"""Copies at least this dense are read a megabyte at a time, others one batch at a time."""

Place = tuple[int, int]
"""The partition and the offset of an original."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter, from its copy. Times in ms since the epoch.

    message: the copy's content at the place of the original. copy_id: the id of the copy in the dead-letter topic.
    """

    message: Message
    copy_id: str
    reason: str
    deliveries: int
    first_failure_ms: int
    last_failure_ms: int
    subscription: str

    @property
    def place(self) -> Place:
        """The place of the original, which may be gone."""
        return self.message.partition, self.message.offset


class DeadLetterCopies:
    """The copies of one subscription. Every method raises RequestError.

    queues: the partitions of its topic. ends: the high watermarks of the dead-letter topic before the read.
    """

    def __init__(
        self,
        caller: Caller,
        subscription: Subscription,
        queues: Sequence[DeadQueue],
        topic: TopicImage | None,
        ends: Mapping[int, int],
        browser: MessageBrowser,
    ) -> None:
        self._caller = caller
        self._subscription = subscription
        self._copies = [queue.copies for queue in queues]
        self._topic = topic
        self._browser = browser
        self._logs = (
            [] if topic is None else [CopyLog(topic.topic_id, number) for number in range(len(topic.partitions))]
        )
        self._ends = ends
        """Copies at or beyond these offsets were written during the read and are left out."""

    async def all(self, after: Place = (0, -1)) -> AsyncIterator[DeadLetter]:
        """Yield the copies of current dead letters after a place in the dead-letter topic, by partition and offset."""
        for log in self._logs[after[0] :]:
            start = after[1] + 1 if log.partition == after[0] else 0
            async for letter in self._read(log, start, partial(self._from_copy, log)):
                yield letter

    async def of(self, places: Collection[Place]) -> AsyncIterator[DeadLetter]:
        """Yield the copies of those originals that are still dead letters, in the same order."""
        for log in self._logs:
            copies = sorted(copied.copy_offset for place in places for copied in self._of_original(log, place))
            async for letter in self._read(log, 0, partial(_from, copies)):
                if letter.place in places:
                    yield letter

    def _of_original(self, log: CopyLog, place: Place) -> Iterator[CopiedRange]:
        number, offset = place
        if 0 <= number < len(self._copies) and offset >= 0:
            yield from self._copies[number].of_originals(log, offset, offset + 1)

    def _from_copy(self, log: CopyLog, start: int) -> list[int]:
        """Return the offsets of the next few copies."""
        ranges = merge(*(copies.from_copy(log, start, self._end(log)) for copies in self._copies), key=_copy_offset)
        return list(
            islice((offset for copied in ranges for offset in range(copied.copy_offset, copied.copy_end)), _DENSE_SPAN)
        )

    async def _read(
        self, log: CopyLog, start: int, copies_from: Callable[[int], Sequence[int]]
    ) -> AsyncIterator[DeadLetter]:
        assert self._topic is not None
        while copies := copies_from(start):
            is_dense = bisect_left(copies, copies[0] + _DENSE_SPAN) >= _DENSE_COUNT
            max_bytes = _READ_BYTES if is_dense else 1
            messages = await self._browser.read(
                self._caller, self._topic.name, log.partition, copies[0], _AT_ONCE, max_bytes
            )
            if not messages:
                return
            for message in messages:
                letter = read_dead_letter(message)
                if letter is not None and self._counts(log, message.offset, letter):
                    yield letter
            start = messages[-1].offset + 1

    def _end(self, log: CopyLog) -> int:
        return self._ends.get(log.partition, LAST_OFFSET)  # The read fails if the partition could not be opened.

    def _counts(self, log: CopyLog, copy_offset: int, letter: DeadLetter) -> bool:
        """Return whether a copy is the latest of a current dead letter, and neither an old copy nor a forgery."""
        is_own = (letter.subscription, letter.message.topic) == (self._subscription.name, self._subscription.topic)
        is_seen = copy_offset < self._end(log)
        return (
            is_own
            and is_seen
            and any(copied.copy_offset == copy_offset for copied in self._of_original(log, letter.place))
        )


def _from(offsets: Sequence[int], start: int) -> Sequence[int]:
    return offsets[bisect_left(offsets, start) :]


def _copy_offset(copied: CopiedRange) -> int:
    return copied.copy_offset


def read_dead_letter(message: Message) -> DeadLetter | None:
    """Return the dead letter that a message is a copy of; None if its headers are not those of a copy."""
    try:
        origin = message._replace(
            topic=_text(message, message_attributes.DEAD_TOPIC),
            partition=int(_text(message, message_attributes.DEAD_PARTITION)),
            offset=int(_text(message, message_attributes.DEAD_OFFSET)),
        )
        return DeadLetter(
            message=origin,
            copy_id=message.message_id,
            reason=_text(message, message_attributes.DEAD_REASON),
            deliveries=int(_text(message, message_attributes.DEAD_DELIVERIES)),
            first_failure_ms=int(_text(message, message_attributes.DEAD_FIRST_FAILURE_MS)),
            last_failure_ms=int(_text(message, message_attributes.DEAD_LAST_FAILURE_MS)),
            subscription=_text(message, message_attributes.DEAD_SUBSCRIPTION),
        )
    except ValueError:
        return None


def _text(message: Message, name: str) -> str:
    """Raise ValueError if the header is missing."""
    value = last_header(message.headers, name)
    if value is None:
        raise ValueError(name)
    return value.decode()
