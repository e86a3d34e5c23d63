"""The pipeline's Kafka client: bounds of partitions, and records of a range."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conveyor.pipeline.pipeline_errors import DataLossError, PipelineError
from conveyor.pipeline.source.source_options import EARLIEST, LATEST, Bounds, SourceOptions

TIMEOUT_S = 30.0
_CONNECT_S = 10.0
_POLL_S = 0.25
_BATCH_RECORDS = 10_000
_BATCH_BYTES = 16 << 20
_FIRST_RECORDS = 10
_SILENT = logging.getLogger("conveyor.pipeline.source.offset_client")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


@contextmanager
def consumer(options: SourceOptions) -> Iterator[Any]:
    """Yield a consumer that joins no group and commits nothing. Raises PipelineError for invalid `kafka.*` options."""
    from confluent_kafka import Consumer, KafkaException

    settings = {
        "group.id": "conveyor-pipeline",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 50,
        "fetch.message.max.bytes": 4 << 20,
        "queued.max.messages.kbytes": 64 << 10,
        # The client fetches until it has buffered this many records, even beyond the range, and then waits before it
        # fetches again. With its defaults of 100,000 and 1,000 ms a long range idles for more than half of the time.
        "queued.min.messages": 20_000,
        "fetch.queue.backoff.ms": 5,
        **options.client,
        "bootstrap.servers": options.bootstrap_servers,
    }
    try:
        client = Consumer(settings, logger=_SILENT)
    except KafkaException as error:
        raise PipelineError(f"the Kafka client refuses its options: {error.args[0].str()}") from error
    try:
        yield client
    finally:
        client.close()


def partitions_of(client: Any, options: SourceOptions) -> list[tuple[str, int]]:
    """Return every partition of the topics, in order. Raises PipelineError: no broker answers, or a topic does not
    exist.
    """
    from confluent_kafka import KafkaException

    try:
        topics = client.list_topics(timeout=_CONNECT_S).topics
    except KafkaException as error:
        raise PipelineError(
            f"no broker answers at {options.bootstrap_servers}: start one with 'conveyor serve', or check the address"
        ) from error
    unknown = [topic for topic in options.topics if topic not in topics]
    if unknown:
        raise PipelineError(f"unknown topic '{unknown[0]}': see 'conveyor topic list'")
    return [(topic, number) for topic in options.topics for number in sorted(topics[topic].partitions)]


def watermarks(client: Any, topic: str, number: int) -> tuple[int, int]:
    """Return the first offset and the high watermark. Raises PipelineError."""
    from confluent_kafka import KafkaException, TopicPartition

    try:
        first_offset, high_watermark = client.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S)
    except KafkaException as error:
        raise PipelineError(f"partition {number} of '{topic}' does not answer: {error.args[0].str()}") from error
    return first_offset, high_watermark


def latest_bounds(client: Any, options: SourceOptions) -> Bounds:
    """Return the high watermark of every partition."""
    bounds: Bounds = {}
    for topic, number in partitions_of(client, options):
        bounds.setdefault(topic, {})[number] = watermarks(client, topic, number)[1]
    return bounds


def resolve(
    client: Any, options: SourceOptions, wanted: int | Bounds, timestamp_ms: int | None, left_out: int = EARLIEST
) -> Bounds:
    """Return the offsets that an option specifies by name, number or time.

    left_out: the offset of partitions that the option's JSON leaves out.
    Raises PipelineError if the JSON names a partition that does not exist.
    """
    bounds: Bounds = {}
    places = partitions_of(client, options)
    _check_named({} if isinstance(wanted, int) else wanted, places)
    for topic, number in places:
        first_offset, high_watermark = watermarks(client, topic, number)
        if timestamp_ms is not None:
            offset = _at_time(client, topic, number, timestamp_ms, high_watermark)
        else:
            offset = wanted if isinstance(wanted, int) else wanted.get(topic, {}).get(number, left_out)
        bounds.setdefault(topic, {})[number] = {EARLIEST: first_offset, LATEST: high_watermark}.get(offset, offset)
    return bounds


def records(client: Any, topic: str, number: int, start: int, end: int) -> Iterator[list[Any]]:
    """Yield the records in [start, end) in lists; there are fewer where compaction has left gaps.

    A list has 10,000 records, or about 16 MiB of values, estimated from the previous list.
    Raises DataLossError if `start` no longer exists, PipelineError if the broker does not answer.
    """
    from confluent_kafka import TopicPartition

    client.assign([TopicPartition(topic, number, start)])
    position, silence, wanted = start, 0, _FIRST_RECORDS
    while position < end:
        # The client returns once it has the requested number or the time is over, so request no more than remain.
        messages = client.consume(min(wanted, end - position), _POLL_S)
        wanted = _list_length(messages, wanted)
        silence = 0 if messages else silence + 1
        if silence * _POLL_S > TIMEOUT_S:
            raise PipelineError(f"partition {number} of '{topic}' does not answer at offset {position}")
        batch = []
        for message in messages:
            error = message.error()
            if error is not None:
                _check(error, topic, number, position)
            elif message.offset() < end:
                batch.append(message)
            position = max(position, message.offset() + (error is None))
        if batch:
            yield batch


def _list_length(messages: list[Any], before: int) -> int:
    """Return the number of records for the next list, from the size of the last."""
    fitting = _BATCH_BYTES * len(messages) // max(1, sum(map(len, messages)))
    return max(1, min(fitting, _BATCH_RECORDS)) if messages else before


def _check_named(wanted: Bounds, places: list[tuple[str, int]]) -> None:
    unknown = [
        (topic, number) for topic, numbers in wanted.items() for number in numbers if (topic, number) not in places
    ]
    if unknown:
        topic, number = unknown[0]
        raise PipelineError(
            f"offsets are given for partition {number} of '{topic}', which does not exist or is not read"
        )


def _at_time(client: Any, topic: str, number: int, timestamp_ms: int, high_watermark: int) -> int:
    from confluent_kafka import TopicPartition

    offset = client.offsets_for_times([TopicPartition(topic, number, timestamp_ms)], timeout=TIMEOUT_S)[0].offset
    return int(offset) if offset >= 0 else high_watermark


def _check(error: Any, topic: str, number: int, position: int) -> None:
    from confluent_kafka import KafkaError

    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
        return
    if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):  # noqa: SLF001
        raise DataLossError(
            f"offset {position} of partition {number} of '{topic}' no longer exists:"
            " read from earliest, or set failOnDataLoss to false to continue without it"
        )
    raise PipelineError(f"partition {number} of '{topic}': {error.str()}")
