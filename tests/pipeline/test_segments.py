"""Segment files that are read themselves: the same records as a broker serves."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from conveyor.pipeline.pipeline_errors import PipelineError
from conveyor.pipeline.spark.spark_source import ConveyorDataSource
from conveyor.testing import Broker
from tests.pipeline.topics import Sent, create_topic, delete_records, numbered, produce


def rows(**options: object) -> list[tuple[Any, ...]]:
    """All rows of a batch read, in order."""
    reader = ConveyorDataSource({name: str(value) for name, value in options.items()}).reader(None)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row[1:3])


@pytest.fixture
def data_dir(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def own_broker(data_dir: str) -> Iterator[Broker]:
    with Broker(data_dir=data_dir) as running:
        yield running


def test_files_hold_what_the_broker_serves(own_broker: Broker, data_dir: str, topic: str) -> None:
    create_topic(own_broker, topic, partitions=2, segment_bytes="20000")
    produce(own_broker, topic, numbered(range(3000), partitions=2))
    produce(own_broker, topic, [Sent(value=None, key=b""), Sent(value=b"", headers=(("a", None), ("a", b"1")))])
    delete_records(own_broker, topic, before=70, partitions=2)
    served = rows(**{"bootstrap.servers": own_broker.bootstrap_servers, "topic": topic})
    assert len(served) == 3002 - 140
    assert rows(dataDir=data_dir, topic=topic, maxRecordsPerPartition=100) == served
    assert rows(dataDir=data_dir, topicPattern=f"{topic}.*") == served
    start, end = json.dumps({topic: {"0": 100}}), json.dumps({topic: {"0": 105, "1": 0}})
    with pytest.raises(PipelineError, match="has offsets 70 to 1500 here, but 70 to 1501 were requested"):
        rows(dataDir=data_dir, topic=topic, startingOffsets=start, endingOffsets=json.dumps({topic: {"1": 1501}}))
    some = rows(dataDir=data_dir, topic=topic, startingOffsets=start, endingOffsets=end)
    assert [row[2] for row in some] == [100, 101, 102, 103, 104]


def test_files_show_committed_transactions_only(own_broker: Broker, data_dir: str, topic: str) -> None:
    create_topic(own_broker, topic, segment_bytes="20000")
    producer = Producer({"bootstrap.servers": own_broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    for number in range(40):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number + bytes(900))
        producer.flush()
        (producer.commit_transaction if number % 3 else producer.abort_transaction)()
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush()
    produce(own_broker, topic, [Sent(value=b"after the open one")])
    asked = {"bootstrap.servers": own_broker.bootstrap_servers, "topic": topic}
    assert rows(dataDir=data_dir, topic=topic, maxRecordsPerPartition=7) == rows(**asked)
    everything = rows(**asked, isolationLevel="read_uncommitted")
    assert rows(dataDir=data_dir, topic=topic, isolationLevel="read_uncommitted") == everything
    assert len(everything) == 42
    producer.abort_transaction()


def test_a_segment_that_is_being_written_ends_at_its_last_whole_batch(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        create_topic(broker, "torn")
        produce(broker, "torn", numbered(range(100)))
    segment = next((tmp_path / "logs" / "torn-0").glob("*.log"))
    whole = rows(dataDir=tmp_path, topic="torn")
    with segment.open("ab") as file:
        file.write(segment.read_bytes()[:200])
    assert rows(dataDir=tmp_path, topic="torn") == whole
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    with pytest.raises(PipelineError, match="has a wrong checksum"):
        rows(dataDir=tmp_path, topic="torn")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataDir": "/nowhere", "topic": "t"}, "/nowhere is no data directory of a broker"),
        ({"topic": "unknown"}, "no partition of 'unknown' is in"),
        ({"topic": "t", "bootstrap.servers": "a:1"}, "options 'dataDir' and 'bootstrap.servers' do not go together"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    own_broker: Broker, data_dir: str, options: dict[str, str], message: str
) -> None:
    create_topic(own_broker, "known")
    with pytest.raises(PipelineError, match=message):
        rows(**{"dataDir": data_dir, **options})
