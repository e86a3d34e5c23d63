"""What the load generators of queues are asked for and tell, whatever protocol they speak."""

from collections.abc import Sequence
from dataclasses import dataclass

BATCH = 10
"""Messages of a request, as the targets say."""

SIZE = 1000
"""Bytes of a message."""

CONNECTIONS = 32
CONSUMERS = 8
"""Connections that wait for messages where these come at a steady rate."""

SETTLING_S = 2


@dataclass(frozen=True, slots=True)
class Cycled:
    """Messages that were published, received and acknowledged in so many seconds; the generator's own CPU time.

    all_messages: with those that were under way at the end.
    """

    messages: int
    seconds: float
    generator_seconds: float
    all_messages: int


def share(ages: Sequence[int], part: float) -> float:
    """The age that so large a part of them does not exceed, in ms. ages: in microseconds, sorted."""
    return ages[min(len(ages) - 1, int(len(ages) * part))] / 1000
