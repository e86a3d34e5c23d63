"""Rows that cannot become records, asked as Spark's tasks ask: the write fails with one line that says why."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from conveyor.pipeline.brokers.raw_client import RawClient
from conveyor.pipeline.pipeline_errors import PipelineError
from conveyor.pipeline.sink import task_transaction
from conveyor.pipeline.sink.exactly_once import write_in_transaction
from conveyor.pipeline.sink.producing import RowProducer
from conveyor.pipeline.sink.sink_options import SinkOptions, parse_sink_options
from conveyor.pipeline.sink.task_transaction import commit_transaction
from conveyor.testing import Broker
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
        write_in_transaction(options, topic, 0, 0, rows(topic=pa.array([topic])))


@pytest.fixture
def exactly_once(broker: Broker, topic: str) -> SinkOptions:
    create_topic(broker, topic)
    given = {"bootstrap.servers": broker.bootstrap_servers, "topic": topic, "delivery": "exactly-once"}
    return parse_sink_options(given, streaming=True)


def test_a_task_that_lost_its_transaction_says_why(exactly_once: SinkOptions, topic: str) -> None:
    def rows_while_another_takes_over() -> Iterator[pa.RecordBatch]:
        yield from rows(b"mine")
        assert write_in_transaction(exactly_once, topic, 0, 0, rows(b"theirs")) is not None
        yield from rows(b"mine")

    with pytest.raises(PipelineError, match="another run of the query has taken over, or it took longer than"):
        write_in_transaction(exactly_once, topic, 0, 0, rows_while_another_takes_over())


def test_a_driver_does_not_wait_for_the_run_that_took_over(
    exactly_once: SinkOptions, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = (write_in_transaction(exactly_once, topic, 0, 0, rows(value)) for value in (b"mine", b"theirs"))
    assert mine is not None
    assert theirs is not None
    with closing(RawClient(exactly_once.bootstrap_servers, {})) as client:
        with monkeypatch.context() as patch:
            patch.setattr(task_transaction, "_PATIENCE_S", 0.0)
            with pytest.raises(PipelineError, match="another run of the query has taken over"):
                commit_transaction(client, mine)
        commit_transaction(client, theirs)
        commit_transaction(client, theirs)
