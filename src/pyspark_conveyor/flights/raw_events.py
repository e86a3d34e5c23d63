"""The raw events of the second demonstration: the flights, and in between events that are broken in known ways."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from pyspark_conveyor.flights.flight_events import FLIGHTS, Event, events

RAW, CLEAN, ENRICHED, REJECTED = "flights-raw", "flights-clean", "flights-enriched", "flights-rejected"
BROKEN_EVERY = 211
"""One of so many flights is broken; the kinds take turns."""


def raw_events(flights: int | None) -> Iterator[Event]:
    """Yield planes and weather as they are, then flights as raw events. flights: their number, None for all."""
    stream = events()
    for event in stream:
        if event.topic == FLIGHTS:
            break
        yield event
    else:
        return
    for number, flight in enumerate(islice(_from(event, stream), flights)):
        raw = replace(flight, topic=RAW)
        yield replace(raw, value=_broken(raw.value, number // BROKEN_EVERY)) if is_broken(number) else raw


def is_broken(number: int) -> bool:
    return number % BROKEN_EVERY == BROKEN_EVERY - 1


def _from(first: Event, others: Iterator[Event]) -> Iterator[Event]:
    yield first
    yield from others


def _broken(value: bytes, kind: int) -> bytes:
    match kind % 4:
        case 0:
            return value[: len(value) // 2]
        case 1:
            return value.replace(b'"distance": ', b'"distance": "about ').replace(b', "hour"', b'", "hour"')
        case 2:
            return value.replace(b'"carrier"', b'"airline"')
        case _:
            return value.replace(b'"distance": ', b'"distance": -')
