"""Rows that cannot become records, asked as Spark's tasks ask: the write fails with one line that says why."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from conveyor.testing import Broker
from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.sink import task_transaction
from pyspark_conveyor.sink.exactly_once import WriteOwner, write_in_transaction
from pyspark_conveyor.sink.producing import RowProducer
from pyspark_conveyor.sink.sink_options import SinkOptions, parse_sink_options
from pyspark_conveyor.sink.task_transaction import TaskTransaction, commit_transaction
from tests.pipeline.topics import create_topic

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows(value: bytes = b"x", **columns: Any) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"value": pa.array([value])} | columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": bytes(2_000_000)}, "topic '.*': Unable to produce message: .*Message size too large"),
        ({"partition": pa.array([7], pa.int32())}, "topic '.*': Local: Unknown partition"),
        ({"partition": pa.array([1 << 40])}, f"column 'partition' has {1 << 40}"),
        ({"headers": pa.array([[{"key": None, "value": b"1"}]], HEADERS)}, "has a header without a key"),
        ({"headers": pa.array([[None]], HEADERS)}, "has a header without a key"),
    ],
)
def test_a_row_that_is_no_record_fails_the_write(
    broker: Broker, topic: str, columns: dict[str, Any], message: str
) -> None:
    create_topic(broker, topic)
    options = parse_sink_options({"bootstrap.servers": broker.bootstrap_servers, "topic": topic}, streaming=False)
    with pytest.raises(PipelineError, match=message):
        RowProducer(options).produce_all(rows(**columns))


def test_an_unknown_marker_topic_is_told_at_once(broker: Broker, topic: str) -> None:
    create_topic(broker, topic)
    options = parse_sink_options(
        {"bootstrap.servers": broker.bootstrap_servers, "delivery": "exactly-once", "markerTopic": "misspelt"},
        streaming=True,
    )
    with pytest.raises(PipelineError, match="unknown topic 'misspelt'"):
        write_in_transaction(options, WriteOwner(topic), 0, 0, rows(topic=pa.array([topic])))


@pytest.mark.parametrize(
    ("options", "streaming", "message"),
    [
        ({"streamId": "s", "jobId": "j"}, False, "option 'streamId' is the name of a stream"),
        ({"streamId": ""}, True, "option 'streamId' is the name of a stream"),
        ({"streamId": "s", "delivery": "at-least-once"}, True, "are for delivery=exactly-once"),
        ({"jobId": "j"}, True, "a stream is known by its checkpoint, and 'streamId'"),
    ],
)
def test_ids_are_refused_where_they_identify_nothing(options: dict[str, str], streaming: bool, message: str) -> None:
    given = {"bootstrap.servers": "127.0.0.1:1", "topic": "t", "delivery": "exactly-once"} | options
    with pytest.raises(PipelineError, match=message):
        parse_sink_options(given, streaming=streaming)


@pytest.fixture
def exactly_once(broker: Broker, topic: str) -> SinkOptions:
    create_topic(broker, topic)
    given = {"bootstrap.servers": broker.bootstrap_servers, "topic": topic, "delivery": "exactly-once"}
    return parse_sink_options(given, streaming=True)


def test_a_task_that_lost_its_transaction_says_why(exactly_once: SinkOptions, topic: str) -> None:
    def rows_while_another_takes_over() -> Iterator[pa.RecordBatch]:
        yield from rows(b"mine")
        assert write_in_transaction(exactly_once, WriteOwner(topic), 0, 0, rows(b"theirs")) is not None
        while True:  # The client may notice it at a later row.
            yield from rows(b"mine")

    with pytest.raises(PipelineError, match="another run of the query has taken over, or it took longer than"):
        write_in_transaction(exactly_once, WriteOwner(topic), 0, 0, rows_while_another_takes_over())


def test_a_driver_does_not_wait_for_the_run_that_took_over(
    exactly_once: SinkOptions, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = (
        write_in_transaction(exactly_once, WriteOwner(topic), 0, 0, rows(value)) for value in (b"mine", b"theirs")
    )
    assert mine is not None
    assert theirs is not None
    with closing(RawClient(exactly_once.bootstrap_servers, {})) as client:
        with monkeypatch.context() as patch:
            patch.setattr(task_transaction, "_PATIENCE_S", 0.0)
            with pytest.raises(PipelineError, match="another run of the query has taken over"):
                commit_transaction(client, mine)
        commit_transaction(client, theirs)
        commit_transaction(client, theirs)


def commit(options: SinkOptions, transaction: TaskTransaction | None) -> None:
    """Commit on a new connection, as the driver does."""
    assert transaction is not None
    with closing(RawClient(options.bootstrap_servers, {})) as client:
        commit_transaction(client, transaction)


def test_each_task_of_a_stream_with_an_id_notices_another_checkpoint(exactly_once: SinkOptions, topic: str) -> None:
    """Also a task that had no rows, or none in its last batch. The stream that has the right checkpoint goes on."""
    owner, other = (WriteOwner(f"stream.{topic}", checkpoint=checkpoint) for checkpoint in ("a", "b"))
    for task, written in enumerate((iter(()), rows(b"first"))):
        commit(exactly_once, write_in_transaction(exactly_once, owner, task, 0, written))
    assert write_in_transaction(exactly_once, owner, 0, 0, iter(())) is None
    assert write_in_transaction(exactly_once, owner, 0, 1, iter(())) is None
    continued = write_in_transaction(exactly_once, owner, 1, 1, rows(b"second"))
    for task in (0, 1):
        for number in (0, 1, 5):
            with pytest.raises(PipelineError, match=r"from another checkpoint \(query a\)"):
                write_in_transaction(exactly_once, other, task, number, rows(b"first"))
    commit(exactly_once, continued)
