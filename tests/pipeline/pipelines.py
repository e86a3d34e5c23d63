"""Running declared pipelines and transforms by their commands, and reading what they wrote."""

from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from conveyor.cli.pipeline import app
from conveyor.testing import Broker
from tests.clients.python.security import librdkafka
from tests.pipeline.topics import HasAddress

PIPELINE_MASTER = ("--master", "local[2]")


def pipeline(*arguments: str) -> str:
    """Run a command in this process, on the session that the test has; returns what it printed. Raises its error."""
    done = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def transform(broker: Broker, checkpoint: Path, *arguments: str) -> str:
    place = ("--checkpoint", str(checkpoint), "--bootstrap", broker.bootstrap_servers)
    return pipeline("transform", "--until-end", *place, *PIPELINE_MASTER, *arguments)


def run_file(broker: Broker, file: Path, *arguments: str) -> str:
    return pipeline("run", str(file), "--bootstrap", broker.bootstrap_servers, *PIPELINE_MASTER, *arguments)


def committed(broker: HasAddress, topic: str, partitions: int = 1) -> list[Any]:
    """The records of a topic that are not in aborted transactions, as a consumer sees them."""
    consumer = Consumer(
        librdkafka(broker.bootstrap_servers)
        | {
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    records: list[Any] = []
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(30)
        assert message is not None, "the topic ends"
        if message.error():
            ended.add(message.partition())
        else:
            records.append(message)
    consumer.close()
    return records


def values(broker: HasAddress, topic: str, partitions: int = 1) -> list[str]:
    return sorted(record.value().decode() for record in committed(broker, topic, partitions))
