"""A request that claims more items or bytes than it contains is refused before it is decoded."""

import struct
from typing import Any

import pytest
from kio.index import load_request_schema

from conveyor.kafka_api.wire.skim import TooManyItems, skimmer
from conveyor.kernel.errors import ProtocolViolation
from tests.unit.kafka_api.requests import request_body

PARTITION = {"index": 0, "records": b"records"}
PRODUCE = {"acks": 1, "timeout": 1, "topic_data": [{"name": "topic", "partition_data": [PARTITION, PARTITION]}]}
CREATE = {
    "topics": [
        {
            "name": "topic",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [{"partition_index": 0, "broker_ids": (1, 2)}],
            "configs": [{"name": "segment.bytes", "value": None}],
        }
    ],
    "timeout": 1,
    "validate_only": False,
}
METADATA: dict[str, Any] = {"topics": None, "allow_auto_topic_creation": True}
METADATA |= {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
SOUND = [(0, 3, PRODUCE), (0, 9, PRODUCE), (19, 2, CREATE), (19, 7, CREATE), (3, 4, METADATA), (3, 9, METADATA)]

HUGE = 2**31 - 1


MOST_ITEMS = 200


def skim(api_key: int, version: int, body: bytes, most_items: int = MOST_ITEMS) -> int:
    schema = load_request_schema(api_key, version)
    header = struct.pack(">hhih", api_key, version, 1, -1) + b"\0" * schema.__header_schema__.__flexible__
    return skimmer(schema)(header + body, most_items, [])


@pytest.mark.parametrize(("api_key", "version", "values"), SOUND)
def test_a_valid_request_passes(api_key: int, version: int, values: dict[str, Any]) -> None:
    skim(api_key, version, request_body(api_key, version, **values))


@pytest.mark.parametrize(("api_key", "version", "values"), SOUND)
def test_a_request_that_ends_too_early_is_a_violation(api_key: int, version: int, values: dict[str, Any]) -> None:
    body = request_body(api_key, version, **values)
    for size in range(len(body)):
        with pytest.raises(ProtocolViolation):
            skim(api_key, version, body[:size])


@pytest.mark.parametrize("count", [HUGE, MOST_ITEMS + 1, 100])
def test_an_array_that_the_frame_cannot_hold_is_a_violation(count: int) -> None:
    announced = b"\xff\xff" + bytes(6) + count.to_bytes(4, "big") + bytes(20)
    with pytest.raises(ProtocolViolation, match=f"an array of {count} items"):
        skim(0, 3, announced)


def test_an_array_inside_an_array_is_checked_too() -> None:
    inner = b"\x00\x01t" + HUGE.to_bytes(4, "big")
    with pytest.raises(ProtocolViolation, match=f"an array of {HUGE} items"):
        skim(0, 3, b"\xff\xff" + bytes(6) + (1).to_bytes(4, "big") + inner)


def test_a_compact_array_is_checked_too() -> None:
    with pytest.raises(ProtocolViolation, match=f"an array of {HUGE - 1} items"):
        skim(0, 9, b"\x00" + bytes(6) + b"\xff\xff\xff\xff\x07")


def test_more_items_than_the_limit_are_a_violation_even_if_present() -> None:
    assert skim(3, 0, MOST_ITEMS.to_bytes(4, "big") + bytes(2 * MOST_ITEMS)) == MOST_ITEMS
    with pytest.raises(TooManyItems):
        skim(3, 0, (MOST_ITEMS + 1).to_bytes(4, "big") + bytes(2 * MOST_ITEMS + 2))


@pytest.mark.parametrize(("api_key", "version", "values"), SOUND)
def test_items_of_all_arrays_are_counted(api_key: int, version: int, values: dict[str, Any]) -> None:
    """A Produce request has a topic and two partitions; CreateTopics a topic, an assignment of two brokers, a setting;
    and Metadata none.
    """
    body, expected = request_body(api_key, version, **values), {0: 3, 19: 5, 3: 0}[api_key]
    assert skim(api_key, version, body) == expected
    if expected:
        with pytest.raises(TooManyItems):
            skim(api_key, version, body, expected - 1)


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize(("size", "items"), [(1_000, 3), (1_100, 4), (32_700, 34)])
def test_each_kib_of_a_string_is_an_item(version: int, size: int, items: int) -> None:
    """Of a Produce request most is records, which weigh what they are in the frame. Names weigh more once decoded."""
    named = PRODUCE | {"topic_data": [{"name": "t" * size, "partition_data": [PARTITION, PARTITION]}]}
    assert skim(0, version, request_body(0, version, **named)) == items


def test_tagged_fields_are_counted_as_items() -> None:
    body = request_body(18, 3, client_software_name="a", client_software_version="b")[:-1]
    assert skim(18, 3, body + b"\x02\x07\x00\x09\x00") == 2
    with pytest.raises(TooManyItems):
        skim(18, 3, body + b"\x02\x07\x00\x09\x00", most_items=1)


def test_tagged_fields_of_the_header_are_counted_too() -> None:
    header = struct.pack(">hhih", 18, 3, 1, -1) + b"\x02\x07\x00\x09\x00"
    body = request_body(18, 3, client_software_name="a", client_software_version="b")
    assert skimmer(load_request_schema(18, 3))(header + body, MOST_ITEMS, []) == 2


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (3, struct.pack(">hhiihiii", -1, 1, 1, 1, 0, 1, 0, -1)),
        (9, b"\0" + struct.pack(">hi", 1, 1) + b"\x02\x01\x02" + bytes(4) + b"\0\0\0\0"),
    ],
)
def test_a_partition_with_null_records_is_a_violation(version: int, body: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="null instead of records"):
        skim(0, version, body)


def test_a_null_array_passes() -> None:
    skim(3, 1, b"\xff\xff\xff\xff")


def test_a_varint_without_end_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="more than five bytes"):
        skim(0, 9, b"\xff" * 40)


def test_unknown_tagged_fields_are_skipped() -> None:
    body = request_body(18, 3, client_software_name="a", client_software_version="b")
    skim(18, 3, body[:-1] + b"\x02\x07\x01x\x09\x02yz")


@pytest.mark.parametrize("tags", [b"\x01", b"\x01\x00\x7f", b"\xff\xff\xff\xff\x0f"])
def test_tagged_fields_beyond_the_frame_are_a_violation(tags: bytes) -> None:
    body = request_body(18, 3, client_software_name="a", client_software_version="b")
    with pytest.raises(ProtocolViolation):
        skim(18, 3, body[:-1] + tags)
