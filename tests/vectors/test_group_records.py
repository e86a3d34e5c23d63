"""Records of `__consumer_offsets`, byte for byte as Kafka's schemas say.

Written out by hand from OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue (.json) of Kafka 4.
The version, two bytes, comes first; from version 4 on lengths are compact (one more than the length) and tags follow.
"""

from uuid import UUID

import pytest
from msgspec.structs import replace

from conveyor.groups.records.group_records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    decode_group,
    decode_key,
    decode_offset,
    group_record,
    offset_record,
)
from conveyor.kernel.errors import StorageFailure

OFFSET_KEY = OffsetKey(group_id="g1", topic="t", partition=7)
OFFSET_KEY_V1 = bytes.fromhex("0001 0002 6731 0001 74 00000007")
OFFSET = OffsetValue(offset=42, leader_epoch=5, metadata="note", commit_timestamp_ms=1_700_000_000_123)
OFFSET_V4_HEAD = bytes.fromhex("0004 000000000000002a 00000005 05 6e6f7465 0000018bcfe5687b")
OFFSET_V3 = bytes.fromhex("0003 000000000000002a 00000005 0004 6e6f7465 0000018bcfe5687b")

GROUP_KEY = GroupKey(group_id="g1")
GROUP_KEY_V2 = bytes.fromhex("0002 0002 6731")
MEMBER = MemberValue(
    member_id="m1",
    group_instance_id="i1",
    client_id="c",
    client_host="/h",
    rebalance_timeout_ms=60_000,
    session_timeout_ms=10_000,
    subscription=b"\x01\x02\x03",
    assignment=b"\x04\x05",
)
GROUP = GroupValue(
    protocol_type="consumer",
    generation_id=9,
    protocol_name="range",
    leader="m1",
    state_timestamp_ms=1_700_000_000_123,
    members=(MEMBER,),
)
GROUP_V3 = bytes.fromhex(
    "0003 0008 636f6e73756d6572 00000009 0005 72616e6765 0002 6d31 0000018bcfe5687b 00000001"
    "0002 6d31 0002 6931 0001 63 0002 2f68 0000ea60 00002710 00000003 010203 00000002 0405"
)
EMPTY_GROUP = replace(GROUP, protocol_name=None, leader=None, members=())
EMPTY_GROUP_V3 = bytes.fromhex("0003 0008 636f6e73756d6572 00000009 ffff ffff 0000018bcfe5687b 00000000")


def test_offset_record_is_written_in_version_3() -> None:
    record = offset_record(OFFSET_KEY, OFFSET)
    assert (record.key, record.value) == (OFFSET_KEY_V1, OFFSET_V3)


def test_offset_record_with_a_topic_id_is_written_in_version_4() -> None:
    topic_id = UUID("5b975b62-1d2c-4cfe-af6e-e88795d76230")
    record = offset_record(OFFSET_KEY, replace(OFFSET, topic_id=topic_id))
    assert (record.key, record.value) == (OFFSET_KEY_V1, OFFSET_V4_HEAD + bytes.fromhex("01 00 10") + topic_id.bytes)
    assert record.value is not None
    assert decode_offset(record.value) == replace(OFFSET, topic_id=topic_id)


def test_group_record_is_written_in_version_3() -> None:
    record = group_record(GROUP_KEY, GROUP)
    assert (record.key, record.value) == (GROUP_KEY_V2, GROUP_V3)


def test_empty_group_is_written_with_nulls() -> None:
    assert group_record(GROUP_KEY, EMPTY_GROUP).value == EMPTY_GROUP_V3


def test_dynamic_member_is_written_with_a_null_instance_id() -> None:
    value = replace(GROUP, members=(replace(MEMBER, group_instance_id=None),))
    assert group_record(GROUP_KEY, value).value == GROUP_V3.replace(b"\x00\x02i1", b"\xff\xff")


def test_tombstones_have_the_key_alone() -> None:
    offset, group = offset_record(OFFSET_KEY, None), group_record(GROUP_KEY, None)
    assert (offset.key, offset.value) == (OFFSET_KEY_V1, None)
    assert (group.key, group.value) == (GROUP_KEY_V2, None)


def test_text_is_written_as_utf_8_with_its_length_in_bytes() -> None:
    record = group_record(GroupKey(group_id="ü"), None)
    assert record.key == bytes.fromhex("0002 0002 c3bc")
    assert decode_key(record.key) == GroupKey(group_id="ü")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (OFFSET_KEY_V1, OFFSET_KEY),
        (bytes.fromhex("0000") + OFFSET_KEY_V1[2:], OFFSET_KEY),
        (GROUP_KEY_V2, GROUP_KEY),
        (bytes.fromhex("0011 0002 6731"), None),
        (bytes.fromhex("000f 0002 6731"), None),
    ],
)
def test_key_is_read(content: bytes, expected: OffsetKey | GroupKey | None) -> None:
    assert decode_key(content) == expected


@pytest.mark.parametrize(
    ("content", "leader_epoch"),
    [
        ("0000 000000000000002a 0004 6e6f7465 0000018bcfe5687b", -1),
        ("0001 000000000000002a 0004 6e6f7465 0000018bcfe5687b 0000018bcfe5ffff", -1),
        ("0002 000000000000002a 0004 6e6f7465 0000018bcfe5687b", -1),
        ("0003 000000000000002a 00000005 0004 6e6f7465 0000018bcfe5687b", 5),
        ("0004 000000000000002a 00000005 05 6e6f7465 0000018bcfe5687b 00", 5),
        ("0004 000000000000002a 00000005 05 6e6f7465 0000018bcfe5687b 01 00 02 aaaa", 5),
    ],
)
def test_offset_is_read_in_every_version(content: str, leader_epoch: int) -> None:
    assert decode_offset(bytes.fromhex(content)) == replace(OFFSET, leader_epoch=leader_epoch)


HEAD = "0008 636f6e73756d6572 00000009 0005 72616e6765 0002 6d31"
TAIL = "00002710 00000003 010203 00000002 0405"
COMPACT_HEAD = "09 636f6e73756d6572 00000009 06 72616e6765 03 6d31 0000018bcfe5687b 02"
COMPACT_TAIL = "02 63 03 2f68 0000ea60 00002710 04 010203 03 0405"


@pytest.mark.parametrize(
    ("content", "group_fields", "member_fields"),
    [
        (
            f"0000 {HEAD} 00000001 0002 6d31 0001 63 0002 2f68 {TAIL}",
            {"state_timestamp_ms": -1},
            {"group_instance_id": None, "rebalance_timeout_ms": 10_000},
        ),
        (
            f"0001 {HEAD} 00000001 0002 6d31 0001 63 0002 2f68 0000ea60 {TAIL}",
            {"state_timestamp_ms": -1},
            {"group_instance_id": None},
        ),
        (
            f"0002 {HEAD} 0000018bcfe5687b 00000001 0002 6d31 0001 63 0002 2f68 0000ea60 {TAIL}",
            {},
            {"group_instance_id": None},
        ),
        (f"0004 {COMPACT_HEAD} 03 6d31 03 6931 {COMPACT_TAIL} 00 00", {}, {}),
        (f"0004 {COMPACT_HEAD} 03 6d31 00 {COMPACT_TAIL} 00 00", {}, {"group_instance_id": None}),
        (f"0004 {COMPACT_HEAD} 03 6d31 03 6931 {COMPACT_TAIL} 02 05 01 aa 06 00 01 00 02 bbbb", {}, {}),
    ],
)
def test_group_is_read_in_every_version(
    content: str, group_fields: dict[str, int], member_fields: dict[str, int | None]
) -> None:
    member = MemberValue(**{name: getattr(MEMBER, name) for name in MemberValue.__struct_fields__} | member_fields)
    values = {name: getattr(GROUP, name) for name in GroupValue.__struct_fields__} | group_fields
    assert decode_group(bytes.fromhex(content)) == GroupValue(**values | {"members": (member,)})


def test_what_is_written_is_read() -> None:
    assert decode_group(GROUP_V3) == GROUP
    assert decode_group(EMPTY_GROUP_V3) == EMPTY_GROUP
    assert decode_offset(OFFSET_V3) == OFFSET


def test_empty_group_is_read_in_version_4() -> None:
    content = bytes.fromhex("0004 09 636f6e73756d6572 00000009 00 00 0000018bcfe5687b 01 00")
    assert decode_group(content) == EMPTY_GROUP


@pytest.mark.parametrize("version", ["0005", "ffff"])
def test_value_of_an_unknown_version_is_refused(version: str) -> None:
    for decode, content in ((decode_offset, OFFSET_V3), (decode_group, GROUP_V3)):
        with pytest.raises(StorageFailure, match="newer broker"):
            decode(bytes.fromhex(version) + content[2:])


def test_record_that_is_cut_anywhere_is_refused() -> None:
    for decode, content in (
        (decode_key, OFFSET_KEY_V1),
        (decode_key, GROUP_KEY_V2),
        (decode_offset, OFFSET_V3),
        (decode_group, GROUP_V3),
    ):
        for length in range(len(content)):
            with pytest.raises(StorageFailure, match="truncated"):
                decode(content[:length])
