"""Committed offsets of all groups of one coordinator partition: hard state, changed by applied records only."""

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
        topic_partition = (key.topic, key.partition)
        if value is not None:
            self._groups.setdefault(key.group_id, {})[topic_partition] = value
        elif key.group_id in self._groups:
            self._groups[key.group_id].pop(topic_partition, None)
            if not self._groups[key.group_id]:
                del self._groups[key.group_id]

    def of(self, group_id: str) -> dict[tuple[str, int], OffsetValue]:
        return self._groups.get(group_id, {})

    def group_ids(self) -> set[str]:
        return set(self._groups)

    def fetch(self, command: FetchOffsets) -> FetchedOffsets:
        """Return a group's committed offsets: those of the requested partitions in order, or all, sorted by topic and
        partition.
        """
        values = self.of(command.group_id)
        topic_partitions = sorted(values) if command.partitions is None else command.partitions
        return FetchedOffsets(offsets=tuple(_committed(topic, number, values) for topic, number in topic_partitions))

    def tombstones(self, group_id: str, committed_before_ms: int | None = None) -> list[LogRecord]:
        """Return the records that delete a group's offsets: all of them, or only those committed before a time."""
        return [
            offset_record(OffsetKey(group_id=group_id, topic=topic, partition=number), None)
            for (topic, number), value in self.of(group_id).items()
            if committed_before_ms is None or value.commit_timestamp_ms < committed_before_ms
        ]

    def tombstones_of_deleted(self, before: KnownTopics, now: KnownTopics) -> list[LogRecord]:
        """Return the records that delete the offsets of topics deleted between `before` and `now`.

        before: empty in a coordinator's first update. Offsets are matched by topic id, because a new topic may have the
        deleted topic's name; an offset without a topic id is matched by name.
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
    """Return a permitted commit's records and its reply. topics: the topics that exist now; their ids are stored with
    the offsets.
    """
    records: list[LogRecord] = []
    errors: list[RequestError | None] = []
    for commit in command.offsets:
        if len(commit.metadata.encode()) > metadata_max_bytes:
            errors.append(
                RequestError(
                    ErrorKind.OFFSET_METADATA_TOO_LARGE, f"the offset metadata exceeds {metadata_max_bytes} bytes"
                )
            )
            continue
        key = OffsetKey(group_id=command.group_id, topic=commit.topic, partition=commit.partition)
        topic = topics.by_name.get(commit.topic)
        value = OffsetValue(
            offset=commit.offset,
            leader_epoch=commit.leader_epoch,
            metadata=commit.metadata,
            commit_timestamp_ms=now_ms,
            topic_id=None if topic is None else topic.topic_id,
        )
        records.append(offset_record(key, value))
        errors.append(None)
    return tuple(records), Committed(errors=tuple(errors))


def _committed(topic: str, partition: int, values: dict[tuple[str, int], OffsetValue]) -> CommittedOffset:
    value = values.get((topic, partition))
    if value is None:
        return CommittedOffset(topic=topic, partition=partition)
    return CommittedOffset(
        topic=topic,
        partition=partition,
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )
