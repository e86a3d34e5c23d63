"""`conveyor produce`: publish the lines of standard input as records."""

import sys
from typing import Annotated, Any

import typer

from conveyor.cli.terminal.kafka_client import (
    DEFAULT_BOOTSTRAP,
    TIMEOUT_S,
    Bootstrap,
    ClientError,
    client_config,
    cluster_metadata,
    counted,
    named_value,
    unknown_partition_error,
)


def produce(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic; created if it does not exist and the broker allows that.")
    ],
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="Text that ends the key on each line.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every record; can be repeated."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The partition; by default chosen by key.")
    ] = None,
    compression: Annotated[str, typer.Option(help="Codec: none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[
        str, typer.Option(help="When a record is acknowledged. 0: never, 1: once appended, all: once durable.")
    ] = "all",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Publish each line of standard input as a record and print how many were acknowledged.

    \b
    Examples:
      echo "hello" | conveyor produce greetings
      echo "user-1:signed up" | conveyor produce events -K :
    """
    from confluent_kafka import KafkaException, Producer

    try:
        config = client_config(bootstrap, acks=acks, **{"compression.type": compression, "linger.ms": 5})
        producer = Producer(config | {"message.timeout.ms": int(TIMEOUT_S * 1000)})
    except KafkaException as error:
        raise ClientError(error.args[0].str()) from error
    _check_topic(producer, bootstrap, topic, partition)
    outcome = _Outcome()
    headers = [_header(text) for text in header or []]
    for line in sys.stdin.buffer:
        line_key, value = _parse(line.rstrip(b"\r\n"), key, key_separator)
        place = {} if partition is None else {"partition": partition}
        _send(producer, outcome, topic, value=value, key=line_key, headers=headers, **place)
    producer.flush()
    if outcome.error is not None:
        raise ClientError(f"{counted(outcome.failed, 'record')} not acknowledged: {outcome.error}")
    typer.echo(f"produced {counted(outcome.taken, 'record')} to {topic}", err=True)


class _Outcome:
    """Counts acknowledged and failed records."""

    def __init__(self) -> None:
        self.taken = self.failed = 0
        self.error: str | None = None

    def settle(self, error: Any, _message: Any) -> None:
        if error is None:
            self.taken += 1
        else:
            self.failed += 1
            self.error = error.str()


def _check_topic(producer: Any, bootstrap: str, topic: str, partition: int | None) -> None:
    metadata = cluster_metadata(producer, bootstrap, topic).topics[topic]
    if metadata.error is not None:
        raise ClientError(f"topic '{topic}': {metadata.error.str()}")
    if partition is not None and partition not in metadata.partitions:
        raise unknown_partition_error(topic, partition, len(metadata.partitions))


def _send(producer: Any, outcome: _Outcome, topic: str, **record: Any) -> None:
    from confluent_kafka import KafkaException

    while True:
        try:
            producer.produce(topic, on_delivery=outcome.settle, **record)
        except BufferError:
            producer.poll(0.1)
        except KafkaException as error:
            raise ClientError(error.args[0].str()) from error
        else:
            producer.poll(0)
            return


def _parse(line: bytes, key: str | None, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is not None and separator.encode() in line:
        before, _, value = line.partition(separator.encode())
        return before, value
    return None if key is None else key.encode(), line


def _header(text: str) -> tuple[str, bytes]:
    name, value = named_value("--header", text, "source=web")
    return name, value.encode()
