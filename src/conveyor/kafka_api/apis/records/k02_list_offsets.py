"""ListOffsets (key 2): the first offset, the log end offset, or the first offset at or after a time.

v1 one offset per partition · v2 isolation level · v4 leader epoch · v5 OFFSET_NOT_AVAILABLE (KIP-207) · v6 flexible ·
v7 newest timestamp (KIP-734) · v8 earliest local · v9 latest tiered · v10 timeout · v11 earliest pending upload.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from conveyor.broker.fetch.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    NEWEST_TIMESTAMP,
    NO_OFFSET,
    Position,
    has_committed_epoch,
    is_by_time,
)
from conveyor.broker.partitions.own_writes import COMMIT_TIMEOUT_MS, is_behind, wait_for_commit
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_TIMESTAMP, TopicPartition
from conveyor.replication.partition import Partition

_FIRST_VERSIONS = {
    LATEST: 1,
    EARLIEST: 1,
    NEWEST_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version that defines each negative timestamp."""

_OFFSET_NOT_AVAILABLE = 5
_LEADER_NOT_AVAILABLE_CODE = 5
_TIMEOUT = 10
_READ_COMMITTED = 1
_MILLISECOND = timedelta(milliseconds=1)

_Requested = dict[TopicPartition, Any]
_Found = Mapping[TopicPartition, Position | RequestError]


def handle(call: KafkaCall) -> None:
    """Answer at once, unless an offset depends on records that acks=1 acknowledged before their commit, or on a lookup
    by time: wait for it.
    """
    behind, lookups = _behind(call), _lookups(call)
    if behind or lookups:
        call.wait(call.start(_answer_later(call, behind, lookups)).cancel)
    else:
        _answer(call, {}, {})


async def _answer_later(call: KafkaCall, behind: Mapping[TopicPartition, Partition], lookups: _Requested) -> None:
    timeout_ms = call.request.timeout // _MILLISECOND if call.header.api_version >= _TIMEOUT else COMMIT_TIMEOUT_MS
    outcomes = await asyncio.gather(*(_wait(call, partition, timeout_ms) for partition in behind.values()))
    late = {place: error for place, error in zip(behind, outcomes, strict=True) if error is not None}
    found = {place: await _look_up(call, place, requested) for place, requested in lookups.items()}
    _answer(call, late, found)


async def _wait(call: KafkaCall, partition: Partition, timeout_ms: int) -> RequestError | None:
    try:
        await wait_for_commit(partition, call.broker.clock, timeout_ms)
    except RequestError as error:
        return error.detached()
    return None


async def _look_up(call: KafkaCall, place: TopicPartition, requested: Any) -> Position | RequestError:
    try:
        return await call.broker.fetch.offsets.find(
            call.caller,
            *place,
            requested.timestamp,
            _leader_epoch(requested),
            reads_committed=_reads_committed(call),
        )
    except RequestError as error:
        return error.detached()


def _behind(call: KafkaCall) -> dict[TopicPartition, Partition]:
    """Return the partitions whose requested offsets depend on acknowledged but uncommitted records."""
    find = call.broker.partitions.table.get
    partitions = {
        place: find(*place)
        for place, requested in _partitions(call)
        if requested.timestamp == LATEST or is_by_time(requested.timestamp)
    }
    return {
        place: partition
        for place, partition in partitions.items()
        if partition is not None
        and (term := partition.leader_term) is not None
        and has_committed_epoch(term)
        and is_behind(term)
    }


def _lookups(call: KafkaCall) -> _Requested:
    """Return the partitions to look at by time, of those that the request names once."""
    counts = _counts(call)
    return {
        place: requested
        for place, requested in _partitions(call)
        if is_by_time(requested.timestamp) and counts[place] == 1
    }


def _partitions(call: KafkaCall) -> Iterator[tuple[TopicPartition, Any]]:
    for topic in call.request.topics:
        for requested in topic.partitions:
            yield TopicPartition(topic.name, requested.partition_index), requested


def _counts(call: KafkaCall) -> Counter[TopicPartition]:
    return Counter(place for place, _ in _partitions(call))


def _answer(call: KafkaCall, late: Mapping[TopicPartition, RequestError], found: _Found) -> None:
    counts = _counts(call)
    results = [
        {
            "name": topic.name,
            "partitions": [_find(call, topic.name, partition, counts, late, found) for partition in topic.partitions],
        }
        for topic in call.request.topics
    ]
    call.answer({"topics": results})


def _find(
    call: KafkaCall,
    topic: str,
    requested: Any,
    counts: Counter[TopicPartition],
    late: Mapping[TopicPartition, RequestError],
    found: _Found,
) -> dict[str, Any]:
    place, error = TopicPartition(topic, requested.partition_index), None
    offset, timestamp_ms, epoch = NO_OFFSET, NO_TIMESTAMP, -1
    try:
        if counts[place] > 1:
            raise RequestError(ErrorKind.INVALID_REQUEST, "a partition is named twice in one request")
        _check_timestamp(call, requested.timestamp)
        position = found[place] if place in found else _find_at_once(call, place, requested)
        if isinstance(position, RequestError):
            raise position
        if place in late:
            raise late[place]
        offset, timestamp_ms, epoch = position
    except RequestError as failure:
        error = failure.detached()
    return {
        "partition_index": requested.partition_index,
        "error_code": _code(call, error),
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": epoch,
    }


def _find_at_once(call: KafkaCall, place: TopicPartition, requested: Any) -> Position:
    return call.broker.fetch.offsets.find_at_once(
        *place, requested.timestamp, _leader_epoch(requested), reads_committed=_reads_committed(call)
    )


def _leader_epoch(requested: Any) -> int:
    return getattr(requested, "current_leader_epoch", -1)


def _reads_committed(call: KafkaCall) -> bool:
    return getattr(call.request, "isolation_level", 0) == _READ_COMMITTED


def _code(call: KafkaCall, error: RequestError | None) -> int:
    """Return the error code; clients of older versions do not know OFFSET_NOT_AVAILABLE."""
    is_unknown = call.header.api_version < _OFFSET_NOT_AVAILABLE
    if is_unknown and error is not None and error.kind is ErrorKind.OFFSET_NOT_AVAILABLE:
        return _LEADER_NOT_AVAILABLE_CODE
    return result_errors.code(error)


def _check_timestamp(call: KafkaCall, timestamp: int) -> None:
    version = call.header.api_version
    if timestamp < 0 and version < _FIRST_VERSIONS.get(timestamp, version + 1):
        raise RequestError(ErrorKind.UNSUPPORTED_VERSION, f"version {version} does not support timestamp {timestamp}")
