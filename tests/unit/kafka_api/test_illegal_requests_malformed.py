"""Malformed requests, for which the protocol has no response: the broker closes the connection and keeps running."""

from collections.abc import Iterator
from dataclasses import fields
from struct import pack
from typing import Any, get_origin
from uuid import UUID

import pytest
from kio.index import load_request_schema

from conveyor.kafka_api.wire.versions import API_VERSIONS_KEY, SERVED_APIS
from conveyor.testing import Broker
from tests.unit.kafka_api.illegal_world import Wire
from tests.unit.kafka_api.requests import SOFTWARE, framed, request, response
from tests.vectors.test_every_version import topic_requests

SOUND = topic_requests(UUID(int=9))
FILTERS = {"states_filter": ("Stable",), "types_filter": ("classic",)}
VERSIONS = [(api.key, version) for api in SERVED_APIS.values() for version in api.versions]
NOT_SERVED = [4, 17, 25, 28, 59, 999, -1, -(2**15)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(memory=True, settings={"broker.auto_create_topics": False}) as running:
        yield running


def sound(api_key: int, version: int) -> bytes:
    return request(api_key, version, **SOUND[api_key])


def sent(broker: Broker, stream: bytes) -> bytes | None:
    """Send a frame and return the response; None if the broker closes the connection."""
    with Wire(broker) as wire:
        wire.stream(stream)
        return wire.receive()


def assert_closes(broker: Broker, stream: bytes) -> None:
    assert sent(broker, stream) is None
    with Wire(broker) as wire:
        assert int(wire.ask(API_VERSIONS_KEY, 4, **SOFTWARE).error_code) == 0


def versions_beyond() -> list[tuple[int, int]]:
    """Yield versions above the newest of every API, below the oldest, and negative."""
    beyond = [
        (api.key, version) for api in SERVED_APIS.values() for version in (api.max_version + 1, api.min_version - 1)
    ]
    return sorted({*beyond, *((key, 2**15 - 1) for key in SERVED_APIS), *((key, -(2**15)) for key in SERVED_APIS)})


def header(api_key: int, version: int) -> bytes:
    return pack(">hhihx", api_key, version, 7, -1)


@pytest.mark.parametrize(("api_key", "version"), versions_beyond())
def test_a_version_that_is_not_served_closes_the_connection(broker: Broker, api_key: int, version: int) -> None:
    """Except for ApiVersions, which returns the served versions in v0 (KIP-511)."""
    if api_key != API_VERSIONS_KEY:
        return assert_closes(broker, framed(header(api_key, version)))
    answer = sent(broker, framed(header(api_key, version)))
    assert answer is not None
    assert int(response(api_key, 0, answer).error_code) == 35


@pytest.mark.parametrize("api_key", NOT_SERVED)
def test_an_api_that_is_not_served_closes_the_connection(broker: Broker, api_key: int) -> None:
    assert_closes(broker, framed(header(api_key, 0)))


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_a_request_that_is_cut_off_closes_the_connection(broker: Broker, api_key: int, version: int) -> None:
    whole = sound(api_key, version)
    for size in {len(whole) - 1, (len(whole) + 10) // 2, 9}:
        assert_closes(broker, framed(whole[:size]))


@pytest.mark.parametrize("api_key", sorted(SERVED_APIS))
def test_bytes_after_a_request_are_ignored(broker: Broker, api_key: int) -> None:
    version = SERVED_APIS[api_key].max_version
    answer = sent(broker, framed(sound(api_key, version) + b"behind"))
    assert answer is not None
    response(api_key, version, answer)


def arrays() -> list[tuple[int, int, str]]:
    """Return every non-nullable array at the top level of a request."""
    return [
        (key, version, field.name)
        for key, version in VERSIONS
        for field in fields(load_request_schema(key, version))
        if get_origin(field.type) is tuple
    ]


def with_length(api_key: int, version: int, name: str, length: int) -> bytes:
    """Return a request with a wrong length of one array. A request without items shows the position of the length."""
    values: dict[str, Any] = FILTERS | SOUND[api_key]
    values = values | {name: values.get(name) or FILTERS.get(name)}
    whole, empty = (request(api_key, version, **arguments) for arguments in (values, values | {name: ()}))
    place = next(number for number, (one, other) in enumerate(zip(whole, empty, strict=False)) if one != other)
    if not load_request_schema(api_key, version).__flexible__:
        return whole[: place - 3] + pack(">i", length) + whole[place + 1 :]
    return whole[:place] + varint(length + 1) + whole[place + 1 :]


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize("length", [-1, 2**31 - 1])
@pytest.mark.parametrize(("api_key", "version", "name"), arrays())
def test_an_array_of_impossible_length_closes_the_connection(
    broker: Broker, api_key: int, version: int, name: str, length: int
) -> None:
    assert_closes(broker, framed(with_length(api_key, version, name, length)))


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 7, 2**31 - 1])
def test_a_frame_of_impossible_length_closes_the_connection(broker: Broker, length: int) -> None:
    assert_closes(broker, pack(">i", length))
