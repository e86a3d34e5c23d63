"""The topics whose committed offsets are being deleted, because the topics were deleted.

Every group may have an offset of each partition of a topic, so one deleted topic can cost millions of records: the
coordinator writes them in parts. A part that is not written yet is not stored anywhere. The first update of the next
coordinator looks at the offsets of all groups.
"""

from collections.abc import Iterable

from conveyor.groups.committed_offsets import CommittedOffsets
from conveyor.groups.known_topics import KnownTopics
from conveyor.groups.records.group_records import OffsetKey, OffsetValue, offset_record
from conveyor.kernel.state_machine import LogRecord

_SEEN_AT_ONCE = 5_000
"""The offsets after which a part ends, whether they are of deleted topics or not."""


class DeletedTopics:
    """Which offsets are of deleted topics, and which groups may still have some."""

    def __init__(self) -> None:
        self._topics = KnownTopics()
        self._deleted_ms: dict[str, int] = {}
        """When each topic was deleted, by name."""
        self._group_ids: list[str] = []
        self._due_ms: int | None = None

    def update(self, before: KnownTopics, now: KnownTopics, group_ids: Iterable[str], now_ms: int) -> None:
        """Look at all groups again if topics were deleted between `before` and `now`. before: empty in a coordinator's
        first update.
        """
        deleted = {name for topic_id, name in before.names_by_id.items() if topic_id not in now.names_by_id}
        self._topics = now
        if deleted or not before.by_name:
            self._deleted_ms |= dict.fromkeys(deleted, now_ms)
            self._group_ids = list(group_ids)
            self._due_ms = now_ms if self._group_ids else None

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
        if self._due_ms is None:
            return False
        if value.topic_id is None:
            return value.commit_timestamp_ms <= self._deleted_ms.get(topic, -1)
        return value.topic_id not in self._topics.names_by_id

    def tombstones(self, offsets: CommittedOffsets, now_ms: int, max_bytes: int) -> list[LogRecord]:
        """Return the next part of the records that delete the offsets, also pending ones."""
        records: dict[OffsetKey, LogRecord] = {}
        seen = size = 0
        while self._group_ids and seen < _SEEN_AT_ONCE and size < max_bytes:
            group_id = self._group_ids[-1]
            for (topic, number), value in offsets.all_of(group_id):
                seen += 1
                key = OffsetKey(group_id=group_id, topic=topic, partition=number)
                if self.has(topic, value) and key not in records:
                    records[key] = record = offset_record(key, None)
                    size += len(record.key or b"")
                    if size >= max_bytes:
                        break
            else:
                self._group_ids.pop()
        self._due_ms = now_ms + 1 if self._group_ids else None
        if self._due_ms is None:
            self._deleted_ms.clear()
        return list(records.values())
