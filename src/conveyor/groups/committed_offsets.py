"""Committed offsets: hard state, changed by applied records only."""

from conveyor.groups.group_commands import CommitOffsets, FetchOffsets
from conveyor.groups.known_topics import KnownTopics
from conveyor.groups.records.group_records import OffsetKey, OffsetValue, offset_record
from conveyor.groups.replies import Committed, CommittedOffset, FetchedOffsets
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import LogRecord


class CommittedOffsets:
    """The offsets of every group of one coordinator partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, int], OffsetValue]] = {}

    def apply(self, key: OffsetKey, value: OffsetValue | None) -> None:
        place = (key.topic, key.partition)
        if value is not None:
            self._groups.setdefault(key.group_id, {})[place] = value
        elif key.group_id in self._groups:
            self._groups[key.group_id].pop(place, None)
            if not self._groups[key.group_id]:
                del self._groups[key.group_id]

    def of(self, group_id: str) -> dict[tuple[str, int], OffsetValue]:
        return self._groups.get(group_id, {})

    def group_ids(self) -> set[str]:
        return set(self._groups)

    def fetch(self, command: FetchOffsets) -> FetchedOffsets:
        """What a group has committed."""
        known = self.of(command.group_id)
        places = sorted(known) if command.partitions is None else command.partitions
        return FetchedOffsets(offsets=tuple(_committed(topic, number, known) for topic, number in places))

    def tombstones(self, group_id: str, committed_before_ms: int | None = None) -> list[LogRecord]:
        """Records that forget a group's offsets: all, or those committed before a time."""
        return [
            offset_record(OffsetKey(group_id=group_id, topic=topic, partition=number), None)
            for (topic, number), value in self.of(group_id).items()
            if committed_before_ms is None or value.commit_timestamp_ms < committed_before_ms
        ]

    def tombstones_of_deleted(self, before: KnownTopics, now: KnownTopics) -> list[LogRecord]:
        """Records that forget the offsets of topics that were there before, and are not any more.

        before: empty when a coordinator is first told. Another topic may have the name by now: what was committed for
        a topic id is not for that one.
        """
        deleted = {name for topic_id, name in before.names_by_id.items() if topic_id not in now.names_by_id}
        if before.by_name and not deleted:
            return []
        return [
            offset_record(OffsetKey(group_id=group_id, topic=topic, partition=number), None)
            for group_id, offsets in self._groups.items()
            for (topic, number), value in offsets.items()
            if (topic in deleted if value.topic_id is None else value.topic_id not in now.names_by_id)
        ]


def commit_records(
    command: CommitOffsets, now_ms: int, metadata_max_bytes: int, topics: KnownTopics
) -> tuple[tuple[LogRecord, ...], Committed]:
    """The records of a commit that is allowed, and the answer to it. topics: those that there are now."""
    records: list[LogRecord] = []
    errors: list[RequestError | None] = []
    for each in command.offsets:
        if len(each.metadata.encode()) > metadata_max_bytes:
            errors.append(
                RequestError(ErrorKind.OFFSET_METADATA_TOO_LARGE, f"a note of more than {metadata_max_bytes} bytes")
            )
            continue
        key = OffsetKey(group_id=command.group_id, topic=each.topic, partition=each.partition)
        topic = topics.by_name.get(each.topic)
        value = OffsetValue(
            offset=each.offset,
            leader_epoch=each.leader_epoch,
            metadata=each.metadata,
            commit_timestamp_ms=now_ms,
            topic_id=None if topic is None else topic.topic_id,
        )
        records.append(offset_record(key, value))
        errors.append(None)
    return tuple(records), Committed(errors=tuple(errors))


def _committed(topic: str, partition: int, known: dict[tuple[str, int], OffsetValue]) -> CommittedOffset:
    value = known.get((topic, partition))
    if value is None:
        return CommittedOffset(topic=topic, partition=partition)
    return CommittedOffset(
        topic=topic,
        partition=partition,
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )
