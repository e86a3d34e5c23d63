"""A filter over dead letters, which lets other requests run once it has used up its time for one turn of the loop."""

from conveyor.broker.queues.dead_letters.dead_letter_copies import DeadLetter
from conveyor.broker.slices import Slices
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.filter_expression import MAX_COST_NS
from conveyor.queues.subscription.filters import Filter, FilterFailure


class LetterFilter:
    """The filter of one request. The constructor raises RequestError (INVALID_FILTER)."""

    def __init__(self, expression: str, slices: Slices) -> None:
        self._filter = Filter(expression)
        self._slices = slices
        self._turn_began_ns = 0.0

    async def matches(self, letter: DeadLetter) -> bool:
        """Return whether a dead letter passes. Raises RequestError (INVALID_FILTER) if the filter fails on it."""
        if self._filter.spent_ns - self._turn_began_ns >= MAX_COST_NS:
            await self._slices.turn()
            self._turn_began_ns = self._filter.spent_ns
        try:
            return self._filter.matches(letter.message)
        except FilterFailure as failure:
            raise RequestError(
                ErrorKind.INVALID_FILTER, f"the filter fails on dead letter '{letter.message.message_id}': {failure}"
            ) from failure
