"""Lists the messages that a subscription withholds in one partition until they are due, in the order of their times."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import NamedTuple

from conveyor.kernel.heap_search import HeapSearch
from conveyor.queues.delivery.subscription_queue import SubscriptionQueue
from conveyor.queues.delivery.timers import last_timer_at, offset_of, time_of


class Scheduled(NamedTuple):
    """A message that is withheld. is_failed: it waits for its next delivery, otherwise for its first one.

    delivery_count: its failed deliveries.
    """

    due_ms: int
    offset: int
    is_failed: bool
    delivery_count: int


class ScheduledSearch:
    """A search for the first messages of a queue that are due after a moment. after: a due time and an offset at it.

    It is one of one state of deliveries: `is_current` says whether the queue still has it.
    """

    def __init__(self, queue: SubscriptionQueue, after: tuple[int, int], limit: int) -> None:
        self._queue = queue
        self._deliveries = deliveries = queue.deliveries
        self._limit = limit
        self._searches = [
            HeapSearch(timers, last_timer_at(*after), limit, self._is_withheld)
            for timers in (deliveries.withheld, deliveries.not_due)
        ]

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Search while this context is open."""
        with ExitStack() as open_searches:
            for search in self._searches:
                open_searches.enter_context(search)
            yield

    def go_on(self) -> bool:
        """Look at the next part of the messages. Returns whether it was the last one."""
        return all(search.go_on() for search in self._searches)

    @property
    def places_count(self) -> int:
        """The places that are searched: withheld messages, and some that are settled."""
        return sum(search.places_count for search in self._searches)

    @property
    def is_current(self) -> bool:
        """Whether the queue has not built its deliveries anew."""
        return self._queue.deliveries is self._deliveries

    def is_complete(self, stable_offset: int) -> bool:
        """Return whether all messages below an offset were scanned."""
        return self._deliveries.scanned_offset >= stable_offset

    def found(self) -> list[Scheduled]:
        """Return the messages in the order of their times and offsets. Some may have been settled during the search.
        Fewer than the limit are the last ones.
        """
        timers = chain.from_iterable(search.found for search in self._searches)
        places = sorted({(time_of(timer), offset_of(timer)) for timer in timers})
        return [self._shown(*place) for place in places[: self._limit]]

    def _shown(self, due_ms: int, offset: int) -> Scheduled:
        attempt = self._queue.progress.attempts.get(offset)
        return Scheduled(due_ms, offset, attempt is not None, 0 if attempt is None else attempt.deliveries)

    def _is_withheld(self, timer: int) -> bool:
        """Return whether the message of a timer is neither settled nor about to become a dead letter."""
        offset, deliveries = offset_of(timer), self._deliveries
        is_over = offset in deliveries.withheld.cancelled or offset in deliveries.dead_lettering
        return not is_over and not self._queue.progress.is_settled(offset)
