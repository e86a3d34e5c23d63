"""The Kafka client of the pipeline: bounds of partitions, and records of a range."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conveyor.pipeline.options import EARLIEST, LATEST, Bounds, SourceOptions
from conveyor.pipeline.pipeline_errors import DataLossError, PipelineError

TIMEOUT_S = 30.0
_CONNECT_S = 10.0
_POLL_S = 0.25
_BATCH_RECORDS = 10_000
_BATCH_BYTES = 16 << 20
_FIRST_RECORDS = 10
_SILENT = logging.getLogger("conveyor.pipeline.offset_client")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


@contextmanager
def consumer(options: SourceOptions) -> Iterator[Any]:
    """A confluent-kafka consumer that belongs to no group and commits nothing. Raises PipelineError: bad `kafka.*`."""
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
        # The client fetches until it holds so many, whether the range goes that far or not, and then waits before it
        # looks again: its own 100,000 and 1,000 ms let a long range stand still for more than half of the time.
        "queued.min.messages": 20_000,
        "fetch.queue.backoff.ms": 5,
        **options.client,
        "bootstrap.servers": options.bootstrap_servers,
    }
    try:
        made = Consumer(settings, logger=_SILENT)
    except KafkaException as error:
        raise PipelineError(f"the Kafka client refuses its options: {error.args[0].str()}") from error
    try:
        yield made
    finally:
        made.close()


def partitions_of(client: Any, options: SourceOptions) -> list[tuple[str, int]]:
    """Every partition of the topics, in order. Raises PipelineError: nobody answers, or a topic is not there."""
    from confluent_kafka import KafkaException

    try:
        known = client.list_topics(timeout=_CONNECT_S).topics
    except KafkaException as error:
        raise PipelineError(
            f"no broker answers at {options.bootstrap_servers}: start one with 'conveyor serve', or check the address"
        ) from error
    unknown = [topic for topic in options.topics if topic not in known]
    if unknown:
        raise PipelineError(f"unknown topic '{unknown[0]}': see 'conveyor topic list'")
    return [(topic, number) for topic in options.topics for number in sorted(known[topic].partitions)]


def watermarks(client: Any, topic: str, number: int) -> tuple[int, int]:
    """The first offset that is there, and the next to come. Raises PipelineError."""
    from confluent_kafka import KafkaException, TopicPartition

    try:
        low, high = client.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S)
    except KafkaException as error:
        raise PipelineError(f"partition {number} of '{topic}' does not answer: {error.args[0].str()}") from error
    return low, high


def latest_bounds(client: Any, options: SourceOptions) -> Bounds:
    """The next offset to come, of every partition."""
    bounds: Bounds = {}
    for topic, number in partitions_of(client, options):
        bounds.setdefault(topic, {})[number] = watermarks(client, topic, number)[1]
    return bounds


def resolve(
    client: Any, options: SourceOptions, wanted: int | Bounds, timestamp_ms: int | None, left_out: int = EARLIEST
) -> Bounds:
    """Real offsets for what an option says: names, numbers, or a time.

    left_out: what a partition gets that the option's JSON does not name.
    Raises PipelineError if it names one that is not there.
    """
    bounds: Bounds = {}
    places = partitions_of(client, options)
    _check_named({} if isinstance(wanted, int) else wanted, places)
    for topic, number in places:
        low, high = watermarks(client, topic, number)
        if timestamp_ms is not None:
            offset = _at_time(client, topic, number, timestamp_ms, high)
        else:
            offset = wanted if isinstance(wanted, int) else wanted.get(topic, {}).get(number, left_out)
        bounds.setdefault(topic, {})[number] = {EARLIEST: low, LATEST: high}.get(offset, offset)
    return bounds


def records(client: Any, topic: str, number: int, start: int, end: int) -> Iterator[list[Any]]:
    """The records from `start` up to, and without, `end`, in lists; fewer where compaction has left gaps.

    A list holds 10,000 records, or about 16 MiB of values: what comes is measured, and the next list asked for by that.
    Raises DataLossError if `start` is not there any more, PipelineError if the broker does not answer.
    """
    from confluent_kafka import TopicPartition

    client.assign([TopicPartition(topic, number, start)])
    position, silence, wanted = start, 0, _FIRST_RECORDS
    while position < end:
        # The client returns when it has as many as asked for, or when the time is over: ask for no more than there are.
        messages = client.consume(min(wanted, end - position), _POLL_S)
        wanted = _list_length(messages, wanted)
        silence = 0 if messages else silence + 1
        if silence * _POLL_S > TIMEOUT_S:
            raise PipelineError(f"partition {number} of '{topic}' does not answer at offset {position}")
        some = []
        for message in messages:
            error = message.error()
            if error is not None:
                _check(error, topic, number, position)
            elif message.offset() < end:
                some.append(message)
            position = max(position, message.offset() + (error is None))
        if some:
            yield some


def _list_length(messages: list[Any], before: int) -> int:
    """How many records fill a list, going by those of the last one."""
    fitting = _BATCH_BYTES * len(messages) // max(1, sum(map(len, messages)))
    return max(1, min(fitting, _BATCH_RECORDS)) if messages else before


def _check_named(wanted: Bounds, places: list[tuple[str, int]]) -> None:
    strangers = [(topic, number) for topic, each in wanted.items() for number in each if (topic, number) not in places]
    if strangers:
        topic, number = strangers[0]
        raise PipelineError(f"offsets are given for partition {number} of '{topic}', which is not there or not read")


def _at_time(client: Any, topic: str, number: int, timestamp_ms: int, high: int) -> int:
    from confluent_kafka import TopicPartition

    found = client.offsets_for_times([TopicPartition(topic, number, timestamp_ms)], timeout=TIMEOUT_S)[0].offset
    return int(found) if found >= 0 else high


def _check(error: Any, topic: str, number: int, position: int) -> None:
    from confluent_kafka import KafkaError

    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
        return
    if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):  # noqa: SLF001
        raise DataLossError(
            f"offset {position} of partition {number} of '{topic}' is not there any more:"
            " read from earliest, or set failOnDataLoss to false to go on without"
        )
    raise PipelineError(f"partition {number} of '{topic}': {error.str()}")
