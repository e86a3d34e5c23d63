"""The topics whose committed offsets are being deleted, because the topics were deleted.

Every group may have an offset of each partition of a topic, so one deleted topic can cost millions of records: the
coordinator writes them in parts. A part that is not written yet is not stored anywhere. The first update of the next
coordinator looks at the offsets of all groups.
"""

from collections.abc import Collection

from conveyor.groups.committed_offsets import CommittedOffsets
from conveyor.groups.known_topics import KnownTopics
from conveyor.groups.records.group_records import OffsetKey, OffsetValue, offset_record
from conveyor.kernel.state_machine import LogRecord

_SEEN_AT_ONCE = 1_000
"""The offsets after which a part ends, whether they are of deleted topics or not."""


class DeletedTopics:
    """Tells offsets of deleted topics from others, and knows which groups may still have some."""

    def __init__(self) -> None:
        self._topics: KnownTopics | None = None
        self._deleted_ms: dict[str, int] = {}
        """The time at which each topic was deleted, by name."""
        self._group_ids: list[str] = []
        """The groups to look at, of which the last is being looked at."""
        self._places: list[tuple[str, int]] | None = None
        """The partitions that are left of the last group; None if it has not begun."""
        self._blocked: set[str] = set()
        """Groups that wait for the end of a transaction: a tombstone would delete its offset of the new topic, too."""
        self._due_ms: int | None = None

    def update(self, before: KnownTopics, now: KnownTopics, group_ids: Collection[str], now_ms: int) -> None:
        """Look at all groups again if topics were deleted between `before` and `now`. before: empty in a coordinator's
        first update.
        """
        deleted = {name for topic_id, name in before.names_by_id.items() if topic_id not in now.names_by_id}
        self._topics = now
        if deleted or not before.by_name:
            self._deleted_ms |= dict.fromkeys(deleted, now_ms)
            self._blocked.clear()
            left = set(self._group_ids)  # They come first, so that frequent deletions do not starve them.
            self._look_at([*(group_id for group_id in group_ids if group_id not in left), *self._group_ids], now_ms)

    def changed(self, group_ids: Collection[str], now_ms: int) -> None:
        """Look again at those of these groups that wait: a transaction with their offsets has ended, or their offsets
        have changed outside of one.
        """
        unblocked = sorted(self._blocked.intersection(group_ids))
        self._blocked.difference_update(unblocked)
        if unblocked:
            self._look_at([*self._group_ids, *unblocked], now_ms)

    def clock_set(self, by_ms: int) -> None:
        """See `StateMachine.clock_set`."""
        if self._due_ms is not None:
            self._due_ms += by_ms

    def next_deadline_ms(self) -> int | None:
        """Return when the next part is due; None if no group is left."""
        return self._due_ms

    def has(self, topic: str, value: OffsetValue) -> bool:
        """Return whether an offset is of a deleted topic.

        It is matched by topic id, because a new topic may have the deleted topic's name; without a topic id, by name
        and time.
        """
        if value.topic_id is None:
            return value.commit_timestamp_ms <= self._deleted_ms.get(topic, -1)
        return self._topics is not None and value.topic_id not in self._topics.names_by_id

    def tombstones(self, offsets: CommittedOffsets, now_ms: int, max_bytes: int) -> list[LogRecord]:
        """Return the next part of the records that delete the offsets, also pending ones."""
        records: list[LogRecord] = []
        seen = size = 0
        while self._group_ids and seen < _SEEN_AT_ONCE and size < max_bytes:
            group_id = self._group_ids[-1]
            if self._places is None:
                self._places = offsets.places(group_id)
            seen += 1
            if not self._places:
                self._group_ids.pop()
                self._places = None
                continue
            topic, number = self._places.pop()
            are_stale = [self.has(topic, value) for value in offsets.values_at(group_id, (topic, number))]
            if are_stale and all(are_stale):
                records.append(offset_record(OffsetKey(group_id=group_id, topic=topic, partition=number), None))
                size += len(records[-1].key or b"")
            elif any(are_stale):
                self._blocked.add(group_id)
        self._set_due(now_ms + 1)
        return records

    def _look_at(self, group_ids: Collection[str], now_ms: int) -> None:
        self._group_ids = list(group_ids)
        self._places = None
        self._set_due(now_ms)

    def _set_due(self, at_ms: int) -> None:
        self._due_ms = at_ms if self._group_ids else None
        if not self._group_ids and not self._blocked:
            self._deleted_ms.clear()
