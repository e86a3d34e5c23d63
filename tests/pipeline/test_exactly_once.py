"""Tasks, drivers and brokers are killed between every two steps of a write: exactly once stays exactly once."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from conveyor.testing import Broker
from tests.pipeline.faulty_sink import DRIVER_STEPS, EXECUTOR, TASK_STEPS, FaultySink
from tests.pipeline.sink_streams import SinkStream
from tests.pipeline.topics import HasAddress, Sent, await_markers, create_topic, numbered, numbers_of, produce, read
from tests.processes import BrokerProcess
from tests.sweep import part_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 150
BROKER_STEPS = ("before produce_all", "after produce_all", "after add_marker")


@pytest.fixture
def stream(spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path) -> SinkStream:
    return filled_stream(spark, broker, topic, tmp_path)


def filled_stream(spark: "SparkSession", broker: HasAddress, topic: str, directory: Path) -> SinkStream:
    """Two partitions with the numbers to 150, to be written to another topic in three batches of two tasks."""
    for name in (topic, f"{topic}-copy"):
        create_topic(broker, name, partitions=2)
    produce(broker, topic, numbered(range(COUNT), partitions=2))
    spark.dataSource.register(FaultySink)
    return SinkStream(spark, broker.bootstrap_servers, topic, f"{topic}-copy", directory / "checkpoint")


def start_again(process: BrokerProcess) -> None:
    """Start a broker once it has been killed."""
    process.wait()
    process.kill()
    process.start()


def copied(spark: "SparkSession", broker: HasAddress, topic: str) -> list[int]:
    await_markers(broker, f"{topic}-copy")
    return sorted(numbers_of(read(spark, broker, f"{topic}-copy")))


@pytest.mark.parametrize("step", part_of(TASK_STEPS, "after produce_all", "after add_marker"))
def test_a_task_is_killed(
    spark: "SparkSession", broker: Broker, topic: str, stream: SinkStream, tmp_path: Path, step: str
) -> None:
    check_kill_of_a_task(spark, broker, topic, stream, tmp_path, step)


def check_kill_of_a_task(
    spark: "SparkSession", broker: HasAddress, topic: str, stream: SinkStream, directory: Path, step: str
) -> None:
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        stream.run("faulty", step=step, latch=str(directory / "latch"))
    stream.run("faulty", step=step, latch=str(directory / "latch"))
    assert copied(spark, broker, topic) == list(range(COUNT))


def run_program(broker: Broker, topic: str, stream: SinkStream, latch: Path, *arguments: str) -> int:
    """Run the stream in a process of its own. arguments: step, master, victim, and the id of the stream if it has one.
    Returns its exit code.
    """
    step, *others = arguments
    command = [sys.executable, "-m", "tests.pipeline.sink_program", broker.bootstrap_servers, topic, f"{topic}-copy"]
    command += [str(stream.checkpoint), step, str(latch), *others]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert latch.exists(), done.stdout + done.stderr
    return done.returncode


@pytest.mark.parametrize("step", part_of(DRIVER_STEPS, "between commits"))
def test_the_driver_is_killed(
    spark: "SparkSession", broker: Broker, topic: str, stream: SinkStream, tmp_path: Path, step: str
) -> None:
    assert run_program(broker, topic, stream, tmp_path / "latch", step, "local[2]", "0") != 0
    stream.run()
    assert copied(spark, broker, topic) == list(range(COUNT))


@pytest.mark.sweep
def test_an_executor_is_killed_and_spark_goes_on_with_another(
    spark: "SparkSession", broker: Broker, topic: str, stream: SinkStream, tmp_path: Path
) -> None:
    master = "local-cluster[2,1,1024]"
    assert run_program(broker, topic, stream, tmp_path / "latch", "after add_marker", master, str(EXECUTOR)) == 0
    assert copied(spark, broker, topic) == list(range(COUNT))


@pytest.mark.parametrize("step", part_of(BROKER_STEPS, "after add_marker"))
def test_the_broker_is_killed(spark: "SparkSession", topic: str, tmp_path: Path, step: str) -> None:
    process = BrokerProcess(tmp_path / "data")
    process.start()
    try:
        for name in (topic, f"{topic}-copy"):
            create_topic(process, name, partitions=2)
        produce(process, topic, numbered(range(COUNT), partitions=2))
        spark.dataSource.register(FaultySink)
        stream = SinkStream(spark, process.kafka, topic, f"{topic}-copy", tmp_path / "checkpoint")
        starter = threading.Thread(target=start_again, args=[process])
        starter.start()
        stream.run("faulty", step=step, latch=str(tmp_path / "latch"), victim=str(process.pid))
        starter.join()
        assert copied(spark, process, topic) == list(range(COUNT))
    finally:
        process.end()


def test_a_checkpoint_is_copied_back(
    spark: "SparkSession", broker: Broker, topic: str, stream: SinkStream, tmp_path: Path
) -> None:
    stream.run()
    for directory in ("commits", "offsets"):
        for number in (1, 2):
            (stream.checkpoint / directory / str(number)).unlink()
            (stream.checkpoint / directory / f".{number}.crc").unlink()
    shutil.copytree(stream.checkpoint, tmp_path / "older")
    stream.run()
    assert copied(spark, broker, topic) == list(range(COUNT))
    produce(broker, topic, numbered(range(COUNT, COUNT + 60)))
    shutil.rmtree(stream.checkpoint)
    shutil.copytree(tmp_path / "older", stream.checkpoint)
    with pytest.raises(Exception, match="the checkpoint was changed, or rows are not always given to the same task"):
        stream.run()
    assert copied(spark, broker, topic) == list(range(COUNT))


def test_a_deleted_checkpoint_makes_a_new_stream(
    spark: "SparkSession", broker: Broker, topic: str, stream: SinkStream
) -> None:
    """Unless the stream has an id; see below."""
    stream.run()
    shutil.rmtree(stream.checkpoint)
    stream.run()
    assert copied(spark, broker, topic) == sorted([*range(COUNT), *range(COUNT)])


def test_a_stream_with_an_id_writes_from_one_checkpoint(
    spark: "SparkSession", broker: Broker, topic: str, stream: SinkStream, tmp_path: Path
) -> None:
    stream.run(streamId=topic)
    produce(broker, topic, numbered(range(COUNT, COUNT + 60), partitions=2))
    stream.run(streamId=topic)
    shutil.move(stream.checkpoint, tmp_path / "saved")
    for _ in range(2):
        with pytest.raises(Exception, match=r"has written its batches up to \d+ from another checkpoint"):
            stream.run(streamId=topic)
    assert copied(spark, broker, topic) == list(range(COUNT + 60))
    shutil.rmtree(stream.checkpoint)
    shutil.move(tmp_path / "saved", stream.checkpoint)
    produce(broker, topic, numbered(range(COUNT + 60, COUNT + 80), partitions=2))
    stream.run(streamId=topic)
    assert copied(spark, broker, topic) == list(range(COUNT + 80))


def test_the_driver_of_a_stream_with_an_id_is_killed(
    spark: "SparkSession", broker: Broker, topic: str, stream: SinkStream, tmp_path: Path
) -> None:
    assert run_program(broker, topic, stream, tmp_path / "latch", "between commits", "local[2]", "0", topic) != 0
    stream.run(streamId=topic)
    assert copied(spark, broker, topic) == list(range(COUNT))


def test_the_sink_refuses_in_the_middle_of_a_batch(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic)
    create_topic(broker, f"{topic}-copy", max_message_bytes="2000")
    produce(broker, topic, [*numbered(range(20)), Sent(value=b"7" * 3000), *numbered(range(20, 40))])
    stream = SinkStream(spark, broker.bootstrap_servers, topic, f"{topic}-copy", tmp_path / "checkpoint")
    with pytest.raises(Exception, match="records were refused"):
        stream.run()
    assert copied(spark, broker, topic) == []
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    larger = ConfigEntry("max.message.bytes", "10000", incremental_operation=AlterConfigOpType.SET)
    for done in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, f"{topic}-copy", incremental_configs=[larger])]
    ).values():
        done.result(30)
    stream.run()
    assert copied(spark, broker, topic) == [*range(40), int("7" * 3000)]


def test_at_least_once_is_at_least_once(
    spark: "SparkSession", broker: Broker, topic: str, stream: SinkStream, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        stream.run("faulty", "at-least-once", step="after produce_all", latch=str(tmp_path / "latch"))
    stream.run(delivery="at-least-once")
    assert sorted(set(copied(spark, broker, topic))) == list(range(COUNT))
