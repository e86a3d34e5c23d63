"""Requests of every version are decoded, and responses built from plain values."""

from contextlib import nullcontext
from struct import pack
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema

from conveyor.kafka_api.wire.codec import build, decode_header, decode_request, encode_response
from conveyor.kafka_api.wire.skim import TooManyItems
from conveyor.kafka_api.wire.versions import SERVED_APIS
from conveyor.kernel.errors import ProtocolViolation
from tests.unit.kafka_api.requests import SOFTWARE, request, request_body, response
from tests.vectors.test_every_version import topic_requests

OFFSET = {"partition_index": 0, "error_code": 3, "timestamp": 5, "offset": 6, "leader_epoch": 7}


@pytest.mark.parametrize("version", [0, 3])
def test_a_request_is_decoded_with_its_header(version: int) -> None:
    values: dict[str, Any] = SOFTWARE if version == 3 else {}
    header, body = decode_request(18, version, memoryview(request(18, version, 42, **values)), 0)
    assert (header.correlation_id, header.client_id) == (42, "unit")
    assert getattr(body, "client_software_name", "test") == "test"


def test_a_request_is_decoded_without_a_client_id() -> None:
    header, _ = decode_request(18, 0, b"\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff", 0)
    assert header.client_id is None


@pytest.mark.parametrize("size", range(8, len(request(18, 3, **SOFTWARE))))
def test_a_request_that_ends_too_early_is_a_violation(size: int) -> None:
    with pytest.raises(ProtocolViolation):
        decode_request(18, 3, memoryview(request(18, 3, **SOFTWARE))[:size], 0)


def test_text_that_is_not_utf8_is_a_violation() -> None:
    frame = request(18, 3, client_software_name="name", client_software_version="1")
    with pytest.raises(ProtocolViolation, match="api key 18 version 3"):
        decode_request(18, 3, frame.replace(b"name", b"\xff\xfe\xfd\xfc"), 0)


SOUND = topic_requests(UUID(int=9))
FLEXIBLE = [
    (api.key, version)
    for api in SERVED_APIS.values()
    for version in api.versions
    if api.key in SOUND and load_request_schema(api.key, version).__flexible__
]
UNKNOWN = b"\x4d\x01x\x80\x01\x02\x00\xff"
"""Two tagged fields that no schema has: 77 and 128."""
MOST_ITEMS = 100


def decoded(api_key: int, version: int, frame: bytes) -> tuple[Any, Any]:
    header, body = decode_request(api_key, version, memoryview(frame), MOST_ITEMS)
    return (header.correlation_id, header.client_id), body


@pytest.mark.parametrize(("api_key", "version"), FLEXIBLE)
def test_unknown_tagged_fields_are_ignored(api_key: int, version: int) -> None:
    """Source: KIP-482."""
    frame = request(api_key, version, **SOUND[api_key])
    header_size = len(frame) - len(request_body(api_key, version, **SOUND[api_key]))
    header, body = frame[: header_size - 1], frame[header_size:]
    expected = decoded(api_key, version, frame)
    assert decoded(api_key, version, header + b"\2" + UNKNOWN + body) == expected
    assert decoded(api_key, version, header + b"\0" + body[:-1] + b"\2" + UNKNOWN) == expected
    assert decoded(api_key, version, header + b"\2" + UNKNOWN + body[:-1] + b"\2" + UNKNOWN) == expected


def test_unknown_tagged_fields_of_items_are_ignored_among_known_ones() -> None:
    """The cluster id (0) and the high watermark (1) are known."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1, "high_watermark": 5}
    limits: dict[str, Any] = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1,
        "forgotten_topics_data": [],
        "cluster_id": "cluster",
    }
    frame = request(1, 18, topics=[{"topic_id": UUID(int=9), "partitions": [partition] * 2}], **limits)
    high_watermark, cluster_id = b"\1\1\x08" + pack(">q", 5), b"\1\0\x08\x08cluster"
    assert (frame.count(high_watermark), frame.count(cluster_id)) == (2, 1)
    more = frame.replace(high_watermark, b"\3" + high_watermark[1:] + UNKNOWN)
    more = more.replace(cluster_id, b"\5" + UNKNOWN + cluster_id[1:] + UNKNOWN)
    assert decoded(1, 18, more) == decoded(1, 18, frame)


def test_unknown_tagged_fields_within_a_known_one_are_ignored() -> None:
    """Within the state of the replica, which is a tagged field (1) of Fetch, and after it."""
    limits: dict[str, Any] = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1, "forgotten_topics_data": [], "topics": []}
    frame = request(1, 18, replica_state={"replica_id": 3, "replica_epoch": 4}, **limits)
    state = pack(">iq", 3, 4)
    assert frame.endswith(b"\1\1\x0d" + state + b"\0")
    inner = state + b"\2" + UNKNOWN
    more = frame[: -len(b"\1\1\x0d" + state + b"\0")] + b"\3\1" + bytes([len(inner)]) + inner + UNKNOWN
    assert decoded(1, 18, more) == decoded(1, 18, frame)


@pytest.mark.parametrize("size", [0, 7, 9, 0x7F])
def test_a_known_tagged_field_ends_where_its_size_says(size: int) -> None:
    """kio reads on where the content ends. A larger size could hide arrays from the check: one that claims four billion
    items, of which kio allocates all, or millions that are not counted.
    """
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1, "high_watermark": 5}
    limits: dict[str, Any] = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1, "forgotten_topics_data": []}
    frame = request(1, 18, topics=[{"topic_id": UUID(int=9), "partitions": [partition]}], **limits)
    tag, content = b"\1\1", pack(">q", 5)
    assert frame.count(tag + b"\x08" + content) == 1
    decoded(1, 18, frame)
    hidden = b"\0\xff\xff\xff\xff\x0f".ljust(0x7F - len(content), b"\0")
    with pytest.raises(ProtocolViolation, match="tagged field 1 of"):
        decoded(1, 18, frame.replace(tag + b"\x08" + content, tag + bytes([size]) + content + hidden))


def test_header_with_many_tagged_fields_is_refused_before_they_are_walked() -> None:
    """It is decoded before the items of a long request are counted."""
    frame = request(18, 3, **SOFTWARE)
    header_size = len(frame) - len(request_body(18, 3, **SOFTWARE))
    more = frame[: header_size - 1] + b"\xff\xff\x7f" + b"\x4d\0" * 0x1FFFFF + frame[header_size:]
    with pytest.raises(TooManyItems):
        decode_header(18, 3, memoryview(more))


@pytest.mark.parametrize("most_items", [3, 4])
def test_unknown_tagged_fields_count_as_items(most_items: int) -> None:
    """Four, in the header and in the body."""
    frame = request(18, 3, **SOFTWARE)
    header_size = len(frame) - len(request_body(18, 3, **SOFTWARE))
    more = frame[: header_size - 1] + b"\2" + UNKNOWN + frame[header_size:-1] + b"\2" + UNKNOWN
    with pytest.raises(TooManyItems) if most_items < 4 else nullcontext():
        decode_request(18, 3, more, most_items)


@pytest.mark.parametrize(("version", "field_names"), [(1, {"offset", "timestamp"}), (6, {"offset", "leader_epoch"})])
def test_a_response_has_the_fields_of_its_version(version: int, field_names: set[str]) -> None:
    body = {"topics": [{"name": "t", "partitions": [OFFSET]}]}
    answer = response(2, version, encode_response(2, version, 9, body))
    partition = answer.topics[0].partitions[0]
    assert all(getattr(partition, name) == OFFSET[name] for name in field_names)
    assert int(partition.error_code) == 3


def test_a_response_carries_the_requests_correlation_id() -> None:
    assert encode_response(18, 0, 77, {"error_code": 0, "api_keys": []})[:4] == b"\0\0\0M"


def test_a_response_is_not_throttled_unless_it_says_so() -> None:
    def throttled(**more: Any) -> Any:
        return response(2, 2, encode_response(2, 2, 1, {"topics": [], **more})).throttle_time

    assert throttled().total_seconds() == 0
    assert throttled(throttle_time=250).total_seconds() == 0.25


def test_a_missing_required_field_is_an_error() -> None:
    with pytest.raises(AssertionError, match="requires the field topics"):
        encode_response(2, 1, 1, {})


def test_null_stays_null() -> None:
    schema = load_response_schema(19, 5)
    topic = {"name": "t", "topic_id": None, "error_code": 0, "error_message": None, "configs": None}
    assert build(schema, {"topics": [topic]}).topics[0].configs is None
