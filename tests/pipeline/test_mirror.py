"""Topics that are mirrored to another cluster: the same records, once, and positions that mean the same."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from conveyor.cli.app import app
from conveyor.testing import Broker
from pyspark_conveyor.jobs.mirror_job import MirrorIdentity, mirrored_records
from tests.pipeline.topics import Sent, create_topic, delete_topic, numbered, numbers_of, produce, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(scope="module")
def west() -> Iterator[Broker]:
    with Broker(memory=True) as running:
        yield running


def mirror(source: Broker, target: Broker, topic: str, directory: Path, *options: str) -> str:
    """Run the command until the end. Returns what it prints, or the error."""
    command = ["pipeline", "mirror", "--from", source.bootstrap_servers, "--to", target.bootstrap_servers]
    command += ["--topic", topic, "--checkpoint", str(directory / "mirror"), "--until-end", *options]
    done = CliRunner().invoke(app, command)
    return done.stdout if done.exit_code == 0 else str(done.exception)


def contents(table: "DataFrame") -> list[tuple[object, ...]]:
    """Partition, key, value and time of each record, in their order."""
    return [
        tuple(row)
        for row in table.orderBy("partition", "offset").select("partition", "key", "value", "timestamp").collect()
    ]


def position(broker: Broker, group: str, topic: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    offset = consumer.committed([TopicPartition(topic, partition)], 10)[0].offset
    consumer.close()
    return int(offset)


def commit(broker: Broker, group: str, topic: str, partition: int, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()


def test_a_topic_is_mirrored_once_also_without_its_checkpoint(
    spark: "SparkSession", broker: Broker, west: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, [*numbered(range(100), partitions=2), Sent(value=None, key=b"x"), Sent(value=b"", key=b"")])
    aborted = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    aborted.init_transactions()
    aborted.begin_transaction()
    aborted.produce(topic, b"aborted", partition=0)
    aborted.flush()
    aborted.abort_transaction()
    assert mirror(broker, west, topic, tmp_path) == f"mirrored 102 records of {topic}\n"
    produce(broker, topic, numbered(range(100, 130), partitions=2))
    assert mirror(broker, west, topic, tmp_path) == f"mirrored 30 records of {topic}\n"
    shutil.rmtree(tmp_path / "mirror")
    assert mirror(broker, west, topic, tmp_path) == f"mirrored 0 records of {topic}\n"
    produce(broker, topic, numbered(range(130, 140), partitions=2))
    assert mirror(broker, west, topic, tmp_path, "--batch-records", "4") == f"mirrored 10 records of {topic}\n"
    assert contents(read(spark, west, topic)) == contents(read(spark, broker, topic))
    delete_topic(west, topic)
    assert f"topic '{topic}' is no longer in the target" in mirror(broker, west, topic, tmp_path)


def test_positions_of_groups_are_translated(
    spark: "SparkSession", broker: Broker, west: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic, partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    for number in range(40):  # Markers of the source give its records other offsets than in the target.
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=number % 2)
        producer.commit_transaction()
    commit(broker, f"{topic}-group", topic, 0, 21)
    commit(broker, f"{topic}-group", topic, 1, 40)
    done = mirror(broker, west, topic, tmp_path, "--group", f"{topic}-group", "--batch-records", "7")
    assert done == f"mirrored 40 records of {topic}\ntranslated 2 positions of group {topic}-group\n"
    here = read(spark, west, topic)
    unread = here.where(f"partition = 0 AND offset >= {position(west, f'{topic}-group', topic, 0)}")
    there = read(spark, broker, topic).where("partition = 0 AND offset >= 21")
    assert numbers_of(unread) == numbers_of(there) == list(range(22, 40, 2))
    end = position(west, f"{topic}-group", topic, 1)
    assert here.where(f"partition = 1 AND offset >= {end}").count() == 0
    commit(broker, f"{topic}-group", topic, 0, 3)
    assert "translated 0 positions" in mirror(broker, west, topic, tmp_path, "--group", f"{topic}-group")


def test_records_are_not_sent_back(spark: "SparkSession", broker: Broker, west: Broker, topic: str) -> None:
    create_topic(broker, topic)
    produce(broker, topic, [Sent(value=b"1"), Sent(value=b"2", headers=(("conveyor-mirrored-from", b"west/t/0/7"),))])
    identity = MirrorIdentity(source_cluster="east", target_cluster="west", topics=(topic,), prefix="east.")
    (row,) = mirrored_records(read(spark, broker, topic), identity, "east.").collect()
    assert (row.topic, row.value) == (f"east.{topic}", bytearray(b"1"))
    assert [(each.key, bytes(each.value)) for each in row.headers] == [
        ("conveyor-mirrored-from", f"east/{topic}/0/0".encode())
    ]


def test_what_cannot_be_mirrored_is_said_in_one_line(broker: Broker, west: Broker, topic: str, tmp_path: Path) -> None:
    assert "unknown topic 'nothing'" in mirror(broker, west, "nothing", tmp_path)
    create_topic(broker, topic, partitions=2)
    assert "source and target are the same cluster: give a --prefix" in mirror(broker, broker, topic, tmp_path)
    create_topic(west, f"few.{topic}")
    assert "has 1 partitions, and" in mirror(broker, west, topic, tmp_path / "few", "--prefix", "few.")
    create_topic(west, f"own.{topic}", partitions=2)
    produce(west, f"own.{topic}", numbered(range(3)))
    own = mirror(broker, west, topic, tmp_path / "own", "--prefix", "own.")
    assert f"partition 0 of 'own.{topic}' has records that are not mirrored from '{topic}'" in own
    assert mirror(broker, west, topic, tmp_path) == f"mirrored 0 records of {topic}\n"
    other = mirror(broker, west, topic, tmp_path, "--prefix", "other.")
    assert "is the checkpoint of another mirror" in other
