"""Folds many events into one entry of the metadata log.

Each event decides on the image that the events before it have left, so their order is that of the entry. A refused
event changes nothing and the others go on. An entry holds at most MOST_EVENTS events and MAX_ENTRY_BYTES; events that
do not fit are left for the next one. An event that alone exceeds an entry is refused.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from conveyor.cluster.changes import Change, ImageFold
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.metadata_log import LogEntry, encode_entry
from conveyor.kernel.errors import RequestError

MOST_EVENTS = 1_000

Event = Callable[[ClusterImage], Sequence[Change]]
"""A decision with its request. The next event changes the image. Raises RequestError to refuse it."""

_HIGHEST_EPOCH = (1 << 63) - 1
_ANY_BATCH = UUID(int=0)
"""For the size of an entry, whichever controller writes it."""


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of the first events. outcomes: why each of them was refused, None for the others; in order."""

    changes: tuple[Change, ...]
    outcomes: tuple[RequestError | None, ...]


def folded_events(image: ClusterImage, events: Sequence[Event]) -> EventBatch:
    """Decide on the first events. The batch has at least one outcome if there are events."""
    return _fitting(image, events[:MOST_EVENTS])


def _fitting(image: ClusterImage, events: Sequence[Event]) -> EventBatch:
    """Halve the events until they fit: all attempts together decide at most twice as often as the first."""
    batch = _decided(image, events)
    try:
        encode_entry(LogEntry(controller_epoch=_HIGHEST_EPOCH, changes=batch.changes, batch=_ANY_BATCH))
    except RequestError as error:
        if len(events) > 1:
            return _fitting(image, events[: len(events) // 2])
        return EventBatch(changes=(), outcomes=(error.detached(),))
    return batch


def _decided(image: ClusterImage, events: Sequence[Event]) -> EventBatch:
    draft, changes, outcomes = image, list[Change](), list[RequestError | None]()
    images = ImageFold(image)
    for event in events:
        try:
            decided = event(draft)
        except RequestError as refusal:
            outcomes.append(refusal.detached())
            continue
        outcomes.append(None)
        if decided:
            changes += decided
            draft = images.image_after(decided, image.seq)
    return EventBatch(changes=tuple(changes), outcomes=tuple(outcomes))
