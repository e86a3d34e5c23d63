"""`conveyor produce`: lines of standard input become records."""

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
)


def produce(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic; made if it is not there and the broker allows it.")
    ],
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="What stands before it on a line is the key.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The same key for every record.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header for every record.")
    ] = None,
    partition: Annotated[int, typer.Option(help="The partition; -1: chosen by the key.")] = -1,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option(help="0, 1 or all: how safe a record must be before it counts.")] = "all",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Send each line of standard input as one record, and say how many the broker has taken.

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
    _check_topic(producer, bootstrap, topic)
    outcome = _Outcome()
    headers = [_header(each) for each in header or []]
    for line in sys.stdin.buffer:
        line_key, value = _parse(line.rstrip(b"\r\n"), key, key_separator)
        _send(producer, outcome, topic, value=value, key=line_key, partition=partition, headers=headers)
    producer.flush()
    if outcome.error is not None:
        raise ClientError(f"{counted(outcome.failed, 'record')} not taken: {outcome.error}")
    typer.echo(f"produced {counted(outcome.taken, 'record')} to {topic}", err=True)


class _Outcome:
    """Counts what the broker has answered."""

    def __init__(self) -> None:
        self.taken = self.failed = 0
        self.error: str | None = None

    def settle(self, error: Any, _message: Any) -> None:
        if error is None:
            self.taken += 1
        else:
            self.failed += 1
            self.error = error.str()


def _check_topic(producer: Any, bootstrap: str, topic: str) -> None:
    found = cluster_metadata(producer, bootstrap, topic).topics[topic]
    if found.error is not None:
        raise ClientError(f"topic '{topic}': {found.error.str()}")


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
