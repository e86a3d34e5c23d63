"""ListOffsets (key 2): the first offset, the next one to come, or the first at a time.

v1 one offset per partition · v2 isolation level · v4 leader epoch · v6 flexible · v7 newest timestamp (KIP-734) ·
v8 earliest local · v9 latest tiered · v10 timeout · v11 earliest pending upload.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
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
    find_offset,
)
from conveyor.broker.partitions.own_writes import COMMIT_TIMEOUT_MS, is_behind, wait_for_commit
from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.wire.call import Call
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
"""Since when a timestamp below 0 has its meaning."""

_TIMEOUT = 10
_MILLISECOND = timedelta(milliseconds=1)


def handle(call: Call) -> None:
    """Answer at once, unless acks=1 has acknowledged what is not committed yet: offsets at the end wait for that."""
    behind = _behind(call)
    if behind:
        call.broker.tasks.start(_answer_when_committed(call, behind))
    else:
        _answer(call, {})


async def _answer_when_committed(call: Call, behind: Mapping[TopicPartition, Partition]) -> None:
    asked_ms = call.request.timeout // _MILLISECOND if call.api_version >= _TIMEOUT else COMMIT_TIMEOUT_MS
    outcomes = await asyncio.gather(*(_wait(call, each, asked_ms) for each in behind.values()))
    _answer(call, {place: error for place, error in zip(behind, outcomes, strict=True) if error is not None})


async def _wait(call: Call, partition: Partition, timeout_ms: int) -> RequestError | None:
    try:
        await wait_for_commit(partition, call.broker.clock, timeout_ms)
    except RequestError as error:
        return error
    return None


def _behind(call: Call) -> dict[TopicPartition, Partition]:
    """The partitions whose newest offsets are asked for, and do not show yet what was acknowledged."""
    find = call.broker.partitions.get
    found = {
        TopicPartition(topic.name, each.partition_index): find(topic.name, each.partition_index)
        for topic in call.request.topics
        for each in topic.partitions
        if each.timestamp in (LATEST, NEWEST_TIMESTAMP) or each.timestamp >= 0
    }
    return {place: partition for place, partition in found.items() if partition is not None and is_behind(partition)}


def _answer(call: Call, late: Mapping[TopicPartition, RequestError]) -> None:
    topics = call.request.topics
    counts = Counter(TopicPartition(topic.name, each.partition_index) for topic in topics for each in topic.partitions)
    found = [
        {"name": topic.name, "partitions": [_find(call, topic.name, each, counts, late) for each in topic.partitions]}
        for topic in topics
    ]
    call.answer({"topics": found})


def _find(
    call: Call, topic: str, asked: Any, counts: Counter[TopicPartition], late: Mapping[TopicPartition, RequestError]
) -> dict[str, Any]:
    place, error = TopicPartition(topic, asked.partition_index), None
    offset, timestamp_ms, epoch = NO_OFFSET, NO_TIMESTAMP, -1
    try:
        if counts[place] > 1:
            raise RequestError(ErrorKind.INVALID_REQUEST, "a partition is named twice in one request")
        _check_timestamp(call, asked.timestamp)
        found = find_offset(call.broker.partitions, *place, asked.timestamp, getattr(asked, "current_leader_epoch", -1))
        if place in late:
            raise late[place]
        offset, timestamp_ms, epoch = found
    except RequestError as failure:
        error = failure
    return {
        "partition_index": asked.partition_index,
        "error_code": errors.code(error),
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": epoch,
    }


def _check_timestamp(call: Call, timestamp: int) -> None:
    if timestamp < 0 and call.api_version < _FIRST_VERSIONS.get(timestamp, call.api_version + 1):
        raise RequestError(
            ErrorKind.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {call.api_version}"
        )
