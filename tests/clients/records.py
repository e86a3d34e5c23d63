"""The records that each client must read back as it sent them."""

from dataclasses import dataclass

COUNT = 20_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
BASE_TIME_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True, order=True)
class Sent:
    """A record as a client produces and reads it."""

    number: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


def sent(number: int) -> Sent:
    """The record of a number: every kind of key, value and header comes up."""
    return Sent(
        number=number,
        key=None if number % 7 == 0 else b"key-%d" % (number % 1000),
        value=b"%d:" % number + bytes((number + each) % 256 for each in range(number % 97)),
        headers=tuple((f"h{each}", b"v%d" % number) for each in range(number % 3)),
        timestamp_ms=BASE_TIME_MS + number,
    )


def number_of(value: bytes) -> int:
    return int(value.partition(b":")[0])
