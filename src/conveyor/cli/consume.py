"""`conveyor consume`: print the records of a topic."""

import json
import sys
from base64 import b64encode
from typing import Annotated, Any

import typer

from conveyor.cli.client import DEFAULT_BOOTSTRAP, TIMEOUT_S, Bootstrap, ClientError, client_config, require_topic

_START = {"earliest": -2, "latest": -1}
_LAST_OFFSET = (1 << 63) - 1


def consume(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    from_: Annotated[str, typer.Option("--from", help="earliest, latest, or an offset.")] = "latest",
    max_: Annotated[int | None, typer.Option("--max", "-n", help="Stop after so many records.")] = None,
    to_end: Annotated[bool, typer.Option("--exit", "-e", help="Stop at the end of what is there now.")] = False,
    group: Annotated[
        str | None, typer.Option(help="Read as a member of this consumer group, and commit what was printed.")
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", "-f", help="text (the value), key (key, tab, value), or json.")
    ] = "text",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print records as they come, one a line. Ctrl-C ends it.

    With --group, reading goes on where the group has stopped; --from says where a new group starts.
    """
    from confluent_kafka import Consumer

    write = _FORMATS.get(format_)
    if write is None:
        raise ClientError(f"--format {format_}: it is {', '.join(_FORMATS)}")
    start = _start(from_)
    config = client_config(bootstrap, **{"group.id": group or "conveyor-consume", "enable.auto.commit": False})
    config |= {"auto.offset.reset": "earliest" if from_ == "earliest" else "latest", "enable.partition.eof": True}
    consumer = Consumer(config)
    partitions = require_topic(consumer, bootstrap, topic).partitions
    if group is None:
        _assign(consumer, topic, list(partitions), start)
    else:
        consumer.subscribe([topic])
    try:
        _print_records(consumer, len(partitions), write, max_, to_end, commit=group is not None)
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()


def _start(text: str) -> int:
    if text in _START:
        return _START[text]
    if text.isdecimal() and int(text) <= _LAST_OFFSET:
        return int(text)
    raise ClientError(f"--from {text}: it is earliest, latest, or an offset")


def _assign(consumer: Any, topic: str, partitions: list[int], start: int) -> None:
    from confluent_kafka import TopicPartition

    consumer.assign([TopicPartition(topic, number, start) for number in partitions])


def _print_records(
    consumer: Any, partition_count: int, write: Any, limit: int | None, to_end: bool, *, commit: bool
) -> None:
    printed = 0
    ended: set[int] = set()
    while limit is None or printed < limit:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            continue
        if message.error() is not None:
            _check(message.error())
            ended.add(message.partition())
            if to_end and len(ended) == partition_count:
                return
            continue
        ended.discard(message.partition())
        sys.stdout.buffer.write(write(message) + b"\n")
        sys.stdout.buffer.flush()
        printed += 1
        if commit:
            consumer.commit(message)


def _check(error: Any) -> None:
    from confluent_kafka import KafkaError

    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
        raise ClientError(error.str())


def _text(message: Any) -> bytes:
    return message.value() or b""


def _key_and_text(message: Any) -> bytes:
    return (message.key() or b"") + b"\t" + (message.value() or b"")


def _json(message: Any) -> bytes:
    """Text as it is; what is not UTF-8 in base64, in a field of its own name."""
    document: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": message.timestamp()[1],
    }
    for name, content in (("key", message.key()), ("value", message.value())):
        document |= _readable(name, content)
    document["headers"] = [{"name": name} | _readable("value", value) for name, value in message.headers() or []]
    return json.dumps(document, ensure_ascii=False).encode()


def _readable(name: str, content: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(content or b"").decode()}


_FORMATS = {"text": _text, "key": _key_and_text, "json": _json}
