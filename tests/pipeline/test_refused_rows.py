"""Rows that cannot become records, asked as Spark's tasks ask: the write fails with one line that says why."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from conveyor.pipeline.pipeline_errors import PipelineError
from conveyor.pipeline.sink.exactly_once import write_in_transaction
from conveyor.pipeline.sink.producing import RowProducer
from conveyor.pipeline.sink.sink_options import parse_sink_options
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


def test_a_task_that_lost_its_transaction_says_why(broker: Broker, topic: str) -> None:
    create_topic(broker, topic)
    options = parse_sink_options(
        {"bootstrap.servers": broker.bootstrap_servers, "topic": topic, "delivery": "exactly-once"}, streaming=True
    )

    def rows_while_another_takes_over() -> Iterator[pa.RecordBatch]:
        yield from rows(b"mine")
        assert write_in_transaction(options, topic, 0, 0, rows(b"theirs")) is not None
        yield from rows(b"mine")

    with pytest.raises(PipelineError, match="another run of the query has taken over, or it took longer than"):
        write_in_transaction(options, topic, 0, 0, rows_while_another_takes_over())
