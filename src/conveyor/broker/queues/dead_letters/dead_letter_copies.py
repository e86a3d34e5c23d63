"""Reads the copies of dead letters from the dead-letter topic.

A subscription's state holds the places of its copies, so only the batches that contain them are read. Copies that the
topic has lost (retention, compaction, DeleteRecords, another topic in its place) are left out.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice, takewhile
from operator import gt
from typing import NamedTuple
from uuid import UUID

import msgspec

from conveyor.broker.answers import all_answered
from conveyor.broker.fetch.message_browser import MessageBrowser
from conveyor.broker.queues.dead_letters.dead_queue import AT_ONCE, DeadQueue, Place
from conveyor.broker.slices import Slices
from conveyor.cluster.image import TopicImage
from conveyor.kernel.access.caller import Caller
from conveyor.queues.messages.dead_copies import LAST_OFFSET, CopiedRange
from conveyor.queues.subscription.policy import Subscription
from conveyor.records import message_attributes
from conveyor.records.message import Message
from conveyor.records.message_attributes import last_header

_READ_BYTES = 1 << 20
_DENSE_SPAN = 100
_DENSE_COUNT = 50
"""Copies at least this dense are read a megabyte at a time, others one batch at a time."""
_PAGE_RANGES = 100
_PAGES_AT_ONCE = 50
"""A leader lists one in a tenth of a millisecond."""
_END: Place = (LAST_OFFSET, 0)
"""Beyond every copy."""


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


class _Copy(NamedTuple):
    """The place of a copy in the dead-letter topic, and of its original."""

    partition: int
    offset: int
    original: Place


class _CopyPages:
    """The copies of one partition's dead letters, in their order, of which one page is held.

    end: the held page has all copies below this place.
    """

    def __init__(self, queue: DeadQueue, topic_id: UUID) -> None:
        self.number = queue.number
        self.ranges: deque[CopiedRange] = deque()
        self.end: Place = (0, 0)
        self._queue = queue
        self._topic_id = topic_id

    async def fill(self, start: Place) -> None:
        """Hold the page that begins at a place."""
        self.ranges = deque(await self._queue.copies_from(self._topic_id, start, _PAGE_RANGES))
        self.end = _END if len(self.ranges) < _PAGE_RANGES else _end(self.ranges[-1])

    def drop_before(self, start: Place) -> None:
        """Drop the ranges of the held page that end before a place: each step would pass them again."""
        while self.ranges and _end(self.ranges[0]) <= start:
            self.ranges.popleft()


def _end(copied: CopiedRange) -> Place:
    return copied.log.partition, copied.copy_end


class CopiesTopic(NamedTuple):
    """The dead-letter topic, if it exists, and its high watermarks before a read: later copies are left out."""

    image: TopicImage | None
    ends: Mapping[int, int]


class DeadLetterCopies:
    """The copies of one subscription. Every method raises RequestError. queues: the partitions of its topic."""

    def __init__(
        self,
        caller: Caller,
        subscription: Subscription,
        queues: Sequence[DeadQueue],
        topic: CopiesTopic,
        browser: MessageBrowser,
        slices: Slices,
    ) -> None:
        self._caller = caller
        self._subscription = subscription
        self._queues = queues
        self._topic, self._ends = topic
        self._browser = browser
        self._slices = slices

    async def all(self, after: Place = (0, -1)) -> AsyncIterator[DeadLetter]:
        """Yield the copies of current dead letters after a place in the dead-letter topic, by partition and offset."""
        if self._topic is None:
            return
        start = after[0], after[1] + 1
        all_pages = [_CopyPages(queue, self._topic.topic_id) for queue in self._queues]
        while start < _END:
            await self._turn_to(start, all_pages)
            end = min(pages.end for pages in all_pages)
            merged = merge(*(self._copies(pages.number, pages.ranges, start) for pages in all_pages))
            copies = list(islice(takewhile(partial(gt, end), merged), AT_ONCE))
            if copies:
                letters, start = await self._read(self._topic, copies)
                for letter in letters:
                    yield letter
            else:
                start = end

    async def _turn_to(self, start: Place, all_pages: Sequence[_CopyPages]) -> None:
        """Hold the pages that contain a place, without what comes before it."""
        used = [pages for pages in all_pages if pages.end <= start]
        for first in range(0, len(used), _PAGES_AT_ONCE):
            if first:
                await self._slices.turn()
            await all_answered([pages.fill(start) for pages in used[first : first + _PAGES_AT_ONCE]])
        for pages in all_pages:
            pages.drop_before(start)

    async def of(self, originals: Mapping[int, Sequence[int]]) -> AsyncIterator[DeadLetter]:
        """Yield the copies of those originals that are still dead letters, in the same order.

        originals: their offsets by partition.
        """
        if self._topic is None:
            return
        copies: list[_Copy] = []
        for queue in self._queues:
            offsets = originals.get(queue.number, ())
            for first in range(0, len(offsets), AT_ONCE):
                ranges = await queue.copies_of(self._topic.topic_id, offsets[first : first + AT_ONCE])
                copies += self._copies(queue.number, ranges, (0, 0))
        copies.sort()
        index = 0
        while index < len(copies):
            letters, start = await self._read(self._topic, copies[index : index + AT_ONCE])
            for letter in letters:
                yield letter
            index = bisect_left(copies, start)

    def _copies(self, number: int, ranges: Iterable[CopiedRange], start: Place) -> Iterator[_Copy]:
        """Yield one by one the copies of a partition's dead letters in ranges that end after a place, from it on."""
        for copied in ranges:
            log = copied.log.partition
            first = max(copied.copy_offset, start[1]) if log == start[0] else copied.copy_offset
            end = min(copied.copy_end, self._ends.get(log, LAST_OFFSET))  # Reading fails where there is no end.
            for offset in range(first, end):
                yield _Copy(log, offset, (number, copied.start + offset - copied.copy_offset))

    async def _read(self, topic: TopicImage, copies: Sequence[_Copy]) -> tuple[list[DeadLetter], Place]:
        """Read the first of these copies, which are sorted.

        Returns the dead letters, each by its latest copy and without forgeries, and the place to go on from.
        """
        partition, first, _ = copies[0]
        copies = copies[: bisect_left(copies, (partition + 1,))]
        last = copies[-1].offset
        is_dense = bisect_left(copies, (partition, first + _DENSE_SPAN)) >= _DENSE_COUNT
        limit, max_bytes = min(AT_ONCE, last - first + 1), _READ_BYTES if is_dense else 1
        messages = await self._browser.read(self._caller, topic.name, partition, first, limit, max_bytes)
        if not messages:
            return [], (partition + 1, 0)
        expected = set(copies)
        letters = [
            letter
            for message in messages
            if (letter := read_dead_letter(message)) is not None
            and (letter.subscription, letter.message.topic) == (self._subscription.name, self._subscription.topic)
            and _Copy(partition, message.offset, letter.place) in expected
        ]
        read_offset = min(messages[-1].offset, last)  # Of later copies it is not known whose they are.
        return letters, (partition, max(messages[0].offset, read_offset + 1))


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
