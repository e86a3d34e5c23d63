"""Exactly-once writes: each task writes its batch in a transaction, and the driver commits it.

A task's transactional id is that of its query or job and its own number, so a repeated task fences the earlier one,
whose records are aborted. The transaction also commits a marker: an offset of a group with the same name. It says
which batches are written. A repeated batch whose marker is there is only compared with it. The marker of a stream with
an id of its own also names the checkpoint: the stream cannot begin again with another one.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_conveyor.brokers.error_codes import ErrorCode
from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.brokers.token_file import confluent_options
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.sink.producing import RowProducer, explained
from pyspark_conveyor.sink.sink_options import SinkOptions
from pyspark_conveyor.sink.task_transaction import TaskTransaction, producer_identity, read_marker
from pyspark_conveyor.sink.write_marker import WriteMarker, WrittenBatch

if TYPE_CHECKING:
    import pyarrow as pa

_CALL_S = 60.0


@dataclass(frozen=True, slots=True)
class WriteOwner:
    """The query, the stream or the job that writes. checkpoint: of a stream with an id of its own, the query's id."""

    name: str
    checkpoint: str = ""


def write_in_transaction(
    options: SinkOptions, owner: WriteOwner, task: int, number: int, batches: Iterator["pa.RecordBatch"]
) -> TaskTransaction | None:
    """Write a task's rows of a batch, and leave its transaction open. Returns None if there is nothing to commit: no
    rows, or they were committed before. The first transaction of a task of a stream with an id is committed without
    rows, too: so each task notices another checkpoint, whatever rows it gets.

    number: of the batch. Raises PipelineError.
    """
    assert options.marker_topic is not None
    transactional_id = f"spark.{owner.name}.{task}"
    producer = RowProducer(options, transactional_id)
    with closing(RawClient(options.bootstrap_servers, options.security)) as client:
        if options.topic is None:
            _check_exists(client, options.marker_topic)
        if owner.checkpoint:  # Before this task stops one that uses the right checkpoint.
            read_marker(client, transactional_id, options.marker_topic, waits=False).check_checkpoint(owner.checkpoint)
        # This ends what a task before has left open, so that its marker is known.
        _call(lambda: producer.client.init_transactions(_CALL_S))
        marker = read_marker(client, transactional_id, options.marker_topic)
        marker.check_checkpoint(owner.checkpoint)
        if marker.is_written(number):
            producer.count_all(batches)
            _check_repeated(marker, WrittenBatch(number, producer.row_count, producer.checksum))
            return None
        producer_id, producer_epoch = producer_identity(client, transactional_id)
    _call(producer.client.begin_transaction)
    producer.produce_all(batches)
    if not producer.row_count and marker.checkpoint == owner.checkpoint:
        return None
    written = marker.with_batch(WrittenBatch(number, producer.row_count, producer.checksum), owner.checkpoint)
    _add_marker(options, producer, transactional_id, written)
    return TaskTransaction(transactional_id, producer_id, producer_epoch, options.marker_topic, number)


def _check_exists(client: RawClient, marker_topic: str) -> None:
    """The client would ask for a minute whether a topic exists. Raises PipelineError."""
    found = client.metadata([marker_topic]).topics
    if any(topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in found):
        raise PipelineError(f"option 'markerTopic': unknown topic '{marker_topic}', see 'conveyor topic list'")


def _check_repeated(marker: WriteMarker, repeated: WrittenBatch) -> None:
    is_empty = repeated.rows == 0 and all(batch.number != repeated.number for batch in marker.batches)
    if not is_empty:
        marker.check(repeated)


def _add_marker(options: SinkOptions, producer: RowProducer, group: str, marker: WriteMarker) -> None:
    from confluent_kafka import Consumer, TopicPartition

    assert options.marker_topic is not None
    reader = Consumer(
        {
            **confluent_options(options.security),
            "bootstrap.servers": options.bootstrap_servers,
            "group.id": group,
            "log_level": 0,
        }
    )
    try:
        place = TopicPartition(options.marker_topic, 0, marker.next_number, marker.to_metadata())
        metadata = reader.consumer_group_metadata()
        _call(lambda: producer.client.send_offsets_to_transaction([place], metadata, _CALL_S))
    finally:
        reader.close()


def _call(ask: Any) -> None:
    """Make a transactional call of the client, again while its error says so. Raises PipelineError."""
    from confluent_kafka import KafkaException

    for is_last in (False,) * 5 + (True,):
        try:
            ask()
            return
        except KafkaException as error:
            reason = error.args[0]
            if is_last or not reason.retriable():
                raise PipelineError(f"the transaction failed: {explained(reason)}") from error
