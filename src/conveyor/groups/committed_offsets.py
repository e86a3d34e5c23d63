"""Committed offsets of all groups of one coordinator partition: hard state, changed by applied records only.

An offset that a producer commits in its transaction is pending until the transaction ends. If the transaction commits,
the offset counts as of the place of its record in the log: a later record for the same partition of the same group
replaces it, so it drops what is pending.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import chain, islice, takewhile

from conveyor.groups.group_commands import CommitOffsets, FetchOffsets
from conveyor.groups.known_topics import KnownTopics
from conveyor.groups.records.group_records import OffsetKey, OffsetValue, offset_record
from conveyor.groups.replies import Committed, CommittedOffset, FetchedOffsets
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerId, ProducerIdentity
from conveyor.kernel.state_machine import LogRecord

DELETED_AT_ONCE = 250
"""The most tombstones of a part of a group's offsets: less than 10 ms, and with the longest names 400 KB."""


class CommittedOffsets:
    """The offsets of every group of one coordinator partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, int], OffsetValue]] = {}
        self._pending: dict[str, dict[tuple[str, int], dict[ProducerId, OffsetValue]]] = {}
        """The offsets of open transactions, those of one partition in the order of their records."""
        self._places: dict[ProducerId, dict[str, dict[tuple[str, int], None]]] = {}
        """The partitions for which each producer has pending offsets, by group."""

    def apply(self, key: OffsetKey, value: OffsetValue | None, producer: ProducerIdentity | None) -> None:
        """Apply a record. producer: see `LogRecord`."""
        group_id, place = key.group_id, (key.topic, key.partition)
        if producer is not None and value is not None:
            self._drop_pending(group_id, place, producer.producer_id)
            offsets = self._pending.setdefault(group_id, {}).setdefault(place, {})
            offsets[producer.producer_id] = value
            self._places.setdefault(producer.producer_id, {}).setdefault(group_id, {})[place] = None
            return
        for producer_id in list(self._pending.get(group_id, {}).get(place, ())):
            self._drop_pending(group_id, place, producer_id)
        self._set(group_id, place, value)

    def resolve(self, producer: ProducerIdentity, commits: bool) -> set[str]:
        """End the transaction of a producer. Returns the groups of its offsets.

        All of it takes one turn of the loop, because a client that fetches next has to see all offsets of the
        transaction or none. So each offset takes few steps, about 0.3 us.
        """
        producer_id = producer.producer_id
        groups = self._places.pop(producer_id, {})
        for group_id, places in groups.items():
            pending = self._pending[group_id]
            committed = self._groups.setdefault(group_id, {}) if commits else {}
            for place in places:
                offsets = pending.pop(place)
                committed[place] = offsets[producer_id]
                if len(offsets) > 1:
                    pending[place] = offsets
                    replaced = takewhile(lambda other: other != producer_id, offsets) if commits else ()
                    for dropped in (*replaced, producer_id):
                        self._drop_pending(group_id, place, dropped)
            if not pending:
                self._pending.pop(group_id, None)
        return set(groups)

    def _drop_pending(self, group_id: str, place: tuple[str, int], producer_id: ProducerId) -> None:
        group, by_group = self._pending.get(group_id, {}), self._places.get(producer_id, {})
        offsets, places = group.get(place, {}), by_group.get(group_id, {})
        offsets.pop(producer_id, None)
        places.pop(place, None)
        if not offsets:
            group.pop(place, None)
        if not group:
            self._pending.pop(group_id, None)
        if not places:
            by_group.pop(group_id, None)
        if not by_group:
            self._places.pop(producer_id, None)

    def _set(self, group_id: str, place: tuple[str, int], value: OffsetValue | None) -> None:
        if value is not None:
            self._groups.setdefault(group_id, {})[place] = value
        elif group_id in self._groups:
            self._groups[group_id].pop(place, None)
            if not self._groups[group_id]:
                del self._groups[group_id]

    def of(self, group_id: str) -> dict[tuple[str, int], OffsetValue]:
        return self._groups.get(group_id, {})

    def pending(self, group_id: str) -> Collection[tuple[str, int]]:
        """Return the partitions for which an open transaction has an offset of a group."""
        return self._pending.get(group_id, {}).keys()

    def group_ids(self) -> set[str]:
        return {*self._groups, *self._pending}

    def places(self, group_id: str) -> list[tuple[str, int]]:
        """Return the partitions for which a group has offsets, also pending ones."""
        return list({**self.of(group_id), **self._pending.get(group_id, {})})

    def values_at(self, group_id: str, place: tuple[str, int]) -> list[OffsetValue]:
        """Return a group's offsets for a partition, also pending ones."""
        committed = self.of(group_id).get(place)
        pending = self._pending.get(group_id, {}).get(place, {}).values()
        return [*pending] if committed is None else [committed, *pending]

    def fetch(self, command: FetchOffsets, is_deleted: Callable[[str, OffsetValue], bool]) -> FetchedOffsets:
        """Return a group's committed offsets: those of the requested partitions in order, or all, sorted by topic and
        partition.

        is_deleted: whether the topic of an offset is deleted, by its name.
        """
        values, pending = self.of(command.group_id), self._pending.get(command.group_id, {})

        def found(topic: str, number: int) -> CommittedOffset:
            of_transactions = pending.get((topic, number), {}).values() if command.requires_stable else ()
            if not all(is_deleted(topic, value) for value in of_transactions):
                return CommittedOffset(topic=topic, partition=number, is_unstable=True)
            value = values.get((topic, number))
            return _committed(topic, number, None if value is None or is_deleted(topic, value) else value)

        if command.partitions is not None:
            places: Iterable[tuple[str, int]] = command.partitions
        else:
            places = sorted(place for place, value in values.items() if not is_deleted(place[0], value))
        return FetchedOffsets(offsets=tuple(found(topic, number) for topic, number in places))

    def tombstones(self, group_id: str, committed_before_ms: int | None = None) -> tuple[list[LogRecord], bool]:
        """Return the next part of the records that delete a group's offsets, and whether it is the last one.

        They delete all offsets, also pending ones, or only those committed before a time.
        """
        committed = self.of(group_id)
        places: Iterable[tuple[str, int]]
        if committed_before_ms is None:
            places = chain(committed, (place for place in self.pending(group_id) if place not in committed))
        else:
            places = (place for place, value in committed.items() if value.commit_timestamp_ms < committed_before_ms)
        records = [
            offset_record(OffsetKey(group_id=group_id, topic=topic, partition=number), None)
            for topic, number in islice(places, DELETED_AT_ONCE)
        ]
        return records, next(iter(places), None) is None


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


def _committed(topic: str, partition: int, value: OffsetValue | None) -> CommittedOffset:
    if value is None:
        return CommittedOffset(topic=topic, partition=partition)
    return CommittedOffset(
        topic=topic,
        partition=partition,
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )
