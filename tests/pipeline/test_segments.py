"""Segment files that are read themselves: the same records as a broker serves."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from conveyor.records.batch import iterate_batches
from conveyor.testing import Broker
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.spark_source import ConveyorDataSource
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
    with pytest.raises(PipelineError, match="has offsets 70 to 1502 here, but 1503 to 1502 were requested"):
        rows(dataDir=data_dir, topic=topic, startingOffsets=json.dumps({topic: {"0": 1503}}))
    with pytest.raises(PipelineError, match=r"partition 2 of .*, which does not exist or is not read"):
        rows(dataDir=data_dir, topic=topic, endingOffsets=json.dumps({topic: {"2": 0}}))
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
        file.write((100).to_bytes(8, "big") + segment.read_bytes()[8:200])
    assert rows(dataDir=tmp_path, topic="torn") == whole


def in_the_last_segment(segments: list[Path]) -> None:
    _overwrite(segments[-1], 8, b"\xff")


def in_a_record(segments: list[Path]) -> None:
    _overwrite(segments[0], 100, b"\xff")


def make_transactional(segments: list[Path]) -> None:
    _overwrite(segments[0], 22, b"\x10")


def make_control(segments: list[Path]) -> None:
    _overwrite(segments[0], 22, b"\x20")


def cut_off(segments: list[Path]) -> None:
    _, header = next(iterate_batches(segments[1].read_bytes()))
    os.truncate(segments[1], header.size)


def lose_a_segment(segments: list[Path]) -> None:
    segments[1].unlink()


def be_in_a_swap(segments: list[Path]) -> None:
    (segments[1].parent / "compaction-swap").touch()


def _overwrite(file: Path, position: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(content)


@pytest.fixture(scope="module")
def some_segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a topic of several segments, each of several batches."""
    path = tmp_path_factory.mktemp("segments")
    with Broker(data_dir=path) as broker:
        create_topic(broker, "files", segment_bytes="3000")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(100):
            producer.produce("files", b"%d" % number + bytes(100))
            if number % 5 == 4:
                producer.flush()
    return path


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (in_the_last_segment, "is damaged at byte 0"),
        (in_a_record, "has a wrong checksum"),
        (make_transactional, "has a wrong checksum"),
        (make_control, "has a wrong checksum"),
        (cut_off, "does not follow the segment before it"),
        (lose_a_segment, "does not follow the segment before it"),
        (be_in_a_swap, "compaction replaces files of .* now"),
    ],
)
def test_damaged_files_are_refused(
    some_segments: Path, tmp_path: Path, damage: Callable[[list[Path]], None], message: str
) -> None:
    shutil.copytree(some_segments, tmp_path, dirs_exist_ok=True)
    segments = sorted((tmp_path / "logs" / "files-0").glob("*.log"))
    assert len(segments) > 3
    assert len(rows(dataDir=tmp_path, topic="files")) == 100
    damage(segments)
    with pytest.raises(PipelineError, match=message):
        rows(dataDir=tmp_path, topic="files")


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
