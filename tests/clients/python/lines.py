"""JSON lines in and out, and the commands: what the programs of all Python clients need."""

import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from threading import Event, Lock, Thread
from typing import Any

_SAYS = Lock()
SETTING = "retention.ms"


@dataclass(frozen=True, slots=True)
class Given:
    """A record to send."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


def say(**line: Any) -> None:
    """Print a line; lines of several threads do not mix."""
    _write(**line)
    sys.stdout.flush()


def say_record(
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes]],
    timestamp: int,
    partition: int,
    offset: int,
) -> None:
    """Print a record, in a while: at the latest, when something else is said, or at the end."""
    shown = [{"name": name, "value": _text(held)} for name, held in headers]
    _write(
        key=_text(key), value=_text(value), headers=shown, timestamp=timestamp, partition=partition, offset=offset
    )  # fmt: skip


def flush() -> None:
    """Write out what was printed: a process that is killed after a commit must have shown the records before it."""
    sys.stdout.flush()


def say_committed(offsets: Mapping[int, int]) -> None:
    """Print the offsets that the broker has confirmed, by partition."""
    if offsets:
        say(committed={str(partition): offset for partition, offset in offsets.items()})


def say_refused(name: str, *, retriable: bool) -> None:
    """Print an error that the client has left to the application. retriable: as the client classifies it."""
    say(refused=name, retriable=retriable)


def shown_acl(principal: str, operation: Enum, permission: Enum) -> str:
    """Show an ACL by Kafka's numbers."""
    return f"{principal} {operation.value} {permission.value}"


class Acknowledged:
    """Counts what is acknowledged, and tells each thousandth."""

    def __init__(self) -> None:
        self._count = 0

    def one_more(self) -> None:
        self._count += 1
        if self._count % 1000 == 0:
            say(acknowledged=self._count)


def given_records() -> Iterator[Given]:
    return map(_parsed, sys.stdin)


def some_records() -> list[Given]:
    """The next hundred of the input, or what is left of it."""
    return [_parsed(line) for line in islice(sys.stdin, 100)]


def end_of_input() -> Event:
    """What is set when the input has ended."""
    ended = Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    Thread(target=wait, daemon=True).start()
    return ended


def main(**commands: Callable[..., None]) -> None:
    """Run the command that the arguments name."""
    name, *rest = sys.argv[1:]
    commands[name](*rest)


def _write(**line: Any) -> None:
    with _SAYS:
        sys.stdout.write(json.dumps(line) + "\n")


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _parsed(line: str) -> Given:
    given = json.loads(line)
    key, value = (None if given[name] is None else b64decode(given[name]) for name in ("key", "value"))
    return Given(
        key, value, [(each["name"], b64decode(each["value"])) for each in given["headers"]], given["timestamp"]
    )
