"""Fetches the records of a range as raw batches."""

import time
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from conveyor.records.batch import MAGIC, BatchHeader, iterate_batches
from pyspark_conveyor.brokers.error_codes import LEADER_MOVED, ErrorCode, error_name
from pyspark_conveyor.brokers.raw_client import ConnectionFailedError, RawClient
from pyspark_conveyor.pipeline_errors import DataLossError, PipelineError
from pyspark_conveyor.source.committed_batches import CommittedBatches, wanted_batches
from pyspark_conveyor.source.record_columns import CorruptRecordsError, RawBatch

TIMEOUT_S = 30.0
_RETRY_S = 0.1
_WAIT_MS = 500
_FIRST_BYTES = 1 << 20
_MOST_BYTES = 8 << 20
_OTHER_TOPIC = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)
"""The broker does not know the topic's id, or not yet."""
_BY_NAME, _BY_ID = 12, 13
"""Versions of the request. From 13 on, it names topics by their ids."""
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1


class FetchPlace:
    """The position at which a fetch continues, and the number of bytes that it asks for.

    topic_id: of the topic that is meant, "" for any topic of that name.
    """

    def __init__(self, topic: str, partition: int, start: int, end: int, topic_id: str = "") -> None:
        self.topic, self.partition, self.position, self.end = topic, partition, start, end
        self.topic_id = topic_id
        self.bytes_wanted = _FIRST_BYTES

    def advance(self, position: int, size: int) -> None:
        """Go on at a position after `size` bytes. The next request is for about what is left of the range."""
        left, done = self.end - position, max(1, position - self.position)
        self.bytes_wanted = max(1, min(_MOST_BYTES, size * left // done * 9 // 8 + 1000))
        self.position = position


def fetch(client: RawClient, place: FetchPlace, *, read_committed: bool) -> Iterator[list[RawBatch]]:
    """Yield the batches that have records in the range, in lists of a response each, and advance the place.

    The first and the last batch may have records outside of it. Raises DataLossError if the position no longer exists,
    CorruptRecordsError, PipelineError if the brokers do not answer for 30 seconds.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while place.position < place.end:
        try:
            found = _ask(client, place, read_committed=read_committed)
        except ConnectionFailedError:
            client.forget_leaders()
            found = None
            if time.monotonic() > deadline:
                raise
        if found is None or not found.records:
            if time.monotonic() > deadline:
                raise PipelineError(
                    f"partition {place.partition} of '{place.topic}' does not answer at offset {place.position}"
                )
            if found is None:
                time.sleep(_RETRY_S)
            continue
        data = memoryview(found.records)
        places = list(iterate_batches(data))
        if not places:
            raise PipelineError(
                f"partition {place.partition} of '{place.topic}': a batch is cut off at {place.position}"
            )
        check_order(place, [header for _, header in places], found.high_watermark)
        start, last = place.position, places[-1][1]
        place.advance(last.next_offset, len(data))
        deadline = time.monotonic() + TIMEOUT_S
        aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()]
        committed = CommittedBatches(aborted if read_committed else ())
        batches = wanted_batches(data, places, committed, start, place.end)
        if batches:
            yield batches


def check_order(place: FetchPlace, headers: Iterable[BatchHeader], high_watermark: int) -> None:
    """Raise CorruptRecordsError if batches do not follow one another: their checksums do not cover their offsets."""
    next_offset = place.position
    for number, header in enumerate(headers):
        if header.magic != MAGIC:
            return  # `checked_batch` refuses the format.
        is_in_order = header.base_offset >= next_offset or (number == 0 and header.next_offset > next_offset)
        if not is_in_order or not header.base_offset < header.next_offset <= high_watermark:
            raise CorruptRecordsError(
                f"partition {place.partition} of '{place.topic}': the batch at offset {header.base_offset} does not"
                f" follow offset {next_offset}: the disk may fail"
            )
        next_offset = header.next_offset


def _ask(client: RawClient, place: FetchPlace, *, read_committed: bool) -> Any | None:
    """Return the partition's part of a fetch response; None if another broker leads it now. Raises DataLossError,
    ConnectionFailedError, PipelineError.
    """
    from kafka.protocol.consumer import FetchRequest

    wanted = FetchRequest.FetchTopic.FetchPartition(
        partition=place.partition,
        current_leader_epoch=-1,
        fetch_offset=place.position,
        log_start_offset=-1,
        partition_max_bytes=place.bytes_wanted,
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=place.bytes_wanted,
        isolation_level=_READ_COMMITTED if read_committed else _READ_UNCOMMITTED,
        topics=[
            FetchRequest.FetchTopic(
                topic=place.topic, topic_id=UUID(place.topic_id) if place.topic_id else None, partitions=[wanted]
            )
        ],
        max_version=_BY_ID if place.topic_id else _BY_NAME,
    )
    response = client.ask(request, client.leader(place.topic, place.partition))
    if response.error_code:
        raise PipelineError(f"{place.topic}: {error_name(response.error_code)}")
    found = response.responses[0].partitions[0]
    if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        raise DataLossError(
            f"offset {place.position} of partition {place.partition} of '{place.topic}' no longer exists:"
            " read from earliest, or set failOnDataLoss to false to continue without it"
        )
    if found.error_code in LEADER_MOVED:
        client.forget_leaders()
        return None
    if found.error_code in _OTHER_TOPIC:
        _check_recreated(client, place)
        return None
    if found.error_code:
        raise PipelineError(f"partition {place.partition} of '{place.topic}': {error_name(found.error_code)}")
    return found


def _check_recreated(client: RawClient, place: FetchPlace) -> None:
    """Raise DataLossError if the topic's name belongs to another topic by now."""
    for topic in client.metadata([place.topic]).topics:
        if topic.error_code == 0 and str(topic.topic_id) != place.topic_id:
            raise DataLossError(f"topic '{place.topic}' was recreated before its records were read")
