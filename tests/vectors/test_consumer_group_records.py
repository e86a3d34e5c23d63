"""Records of the consumer protocol's groups in `__consumer_offsets`, byte for byte as Kafka's schemas say.

Written out by hand from ConsumerGroupMetadata, ConsumerGroupPartitionMetadata, ConsumerGroupMemberMetadata,
ConsumerGroupTargetAssignmentMetadata, ConsumerGroupTargetAssignmentMember and ConsumerGroupCurrentMemberAssignment
(Key and Value, .json) of Kafka 4. Keys are plain; values are of version 0 and flexible.
"""

from collections.abc import Callable
from uuid import UUID

import pytest

from conveyor.groups.records.consumer_member import ClassicMember, Current, MemberState, MemberSubscription
from conveyor.groups.records.consumer_records import (
    ConsumerKey,
    ConsumerKeyKind,
    current_record,
    decode_current,
    decode_epoch,
    decode_subscription,
    decode_target,
    decode_topics,
    epoch_record,
    subscription_record,
    target_epoch_record,
    target_record,
    tombstone,
    topics_record,
)
from conveyor.groups.records.group_records import decode_key
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.state_machine import LogRecord

ONE, TWO = UUID(int=1), UUID(int=2)
ONE_HEX, TWO_HEX = "00000000000000000000000000000001", "00000000000000000000000000000002"
PARTITIONS = frozenset({(TWO, 0), (ONE, 5), (ONE, 3)})
PARTITIONS_HEX = f"03 {ONE_HEX} 03 00000003 00000005 00 {TWO_HEX} 02 00000000 00"
SUBSCRIPTION = MemberSubscription(
    instance_id=None,
    rack_id="r",
    client_id="c",
    client_host="/h",
    topics=frozenset({"t1", "t2"}),
    pattern="a.*",
    rebalance_timeout_ms=300_000,
    assignor=None,
)
SUBSCRIPTION_HEX = "0000 00 02 72 02 63 03 2f68 03 03 7431 03 7432 04 612e2a 000493e0 00 00"
CLASSIC = MemberSubscription(
    instance_id="i",
    rack_id=None,
    client_id="c",
    client_host="/h",
    topics=frozenset(),
    pattern=None,
    rebalance_timeout_ms=-1,
    assignor="range",
    classic=ClassicMember(session_timeout_ms=10_000, protocols=(("range", b"\x01\x02"),)),
)
CLASSIC_HEX = (
    "0000 02 69 00 02 63 03 2f68 01 00 ffffffff 06 72616e676501 00 11 01 00002710 02 06 72616e6765 03 0102 00 00"
)
CURRENT = Current(
    epoch=7, previous_epoch=6, state=MemberState.UNREVOKED, assigned=PARTITIONS, revoking=frozenset({(TWO, 9)})
)
CURRENT_HEX = f"0000 00000007 00000006 01 {PARTITIONS_HEX} 02 {TWO_HEX} 02 00000009 00 00"
TOPICS = {"t2": (TWO, 3), "t1": (ONE, 1)}
TOPICS_HEX = f"0000 03 {ONE_HEX} 03 7431 00000001 01 00 {TWO_HEX} 03 7432 00000003 01 00 00"

RECORDS: list[tuple[LogRecord, str, str]] = [
    (epoch_record("g1", 9), "0003 0002 6731", "0000 00000009 00"),
    (topics_record("g1", TOPICS), "0004 0002 6731", TOPICS_HEX),
    (subscription_record("g1", "m1", SUBSCRIPTION), "0005 0002 6731 0002 6d31", SUBSCRIPTION_HEX),
    (subscription_record("g1", "m1", CLASSIC), "0005 0002 6731 0002 6d31", CLASSIC_HEX),
    (target_epoch_record("g1", 9), "0006 0002 6731", "0000 00000009 00"),
    (target_record("g1", "m1", PARTITIONS), "0007 0002 6731 0002 6d31", f"0000 {PARTITIONS_HEX} 00"),
    (current_record("g1", "m1", CURRENT), "0008 0002 6731 0002 6d31", CURRENT_HEX),
]


@pytest.mark.parametrize(("record", "key", "value"), RECORDS)
def test_record_is_written_in_kafkas_format(record: LogRecord, key: str, value: str) -> None:
    assert (record.key, record.value) == (bytes.fromhex(key), bytes.fromhex(value))


@pytest.mark.parametrize(
    ("content", "kind", "name"),
    [
        ("0003 0002 6731", ConsumerKeyKind.GROUP, ""),
        ("0006 0002 6731", ConsumerKeyKind.TARGET_EPOCH, ""),
        ("0008 0002 6731 0002 6d31", ConsumerKeyKind.CURRENT, "m1"),
    ],
)
def test_key_is_read(content: str, kind: ConsumerKeyKind, name: str) -> None:
    assert decode_key(bytes.fromhex(content)) == ConsumerKey(kind=kind, group_id="g1", name=name)
    assert tombstone(kind, "g1", name) == LogRecord(bytes.fromhex(content), None)


def test_regular_expressions_of_kafka_are_ignored() -> None:
    assert decode_key(bytes.fromhex("0010 0002 6731 0003 612e2a")) is None


READ: list[tuple[Callable[[bytes], object], str, object]] = [
    (decode_epoch, "0000 00000009 00", 9),
    (decode_epoch, "0000 00000009 02 00 08 0102030405060708 01 08 0102030405060708", 9),
    (decode_topics, TOPICS_HEX, TOPICS),
    (
        decode_topics,
        f"0000 02 {ONE_HEX} 03 7431 00000001 02 00000000 03 02 72 02 73 00 00 00",
        {"t1": (ONE, 1)},
    ),
    (decode_subscription, SUBSCRIPTION_HEX, SUBSCRIPTION),
    (decode_subscription, CLASSIC_HEX, CLASSIC),
    (decode_target, f"0000 {PARTITIONS_HEX} 00", PARTITIONS),
    (decode_current, CURRENT_HEX, CURRENT),
    (
        decode_current,
        f"0000 00000007 00000006 00 02 {ONE_HEX} 02 00000003 01 00 05 02 00000007 01 00",
        Current(epoch=7, previous_epoch=6, assigned=frozenset({(ONE, 3)})),
    ),
]


@pytest.mark.parametrize(("decode", "content", "expected"), READ)
def test_value_is_read(decode: Callable[[bytes], object], content: str, expected: object) -> None:
    assert decode(bytes.fromhex(content)) == expected


@pytest.mark.parametrize(("decode", "content", "expected"), READ)
def test_value_of_an_unknown_version_is_refused(
    decode: Callable[[bytes], object], content: str, expected: object
) -> None:
    with pytest.raises(StorageFailure, match="newer broker"):
        decode(bytes.fromhex("0001") + bytes.fromhex(content)[2:])


def test_unknown_member_state_is_refused() -> None:
    with pytest.raises(StorageFailure, match="newer broker"):
        decode_current(bytes.fromhex("0000 00000007 00000006 05 01 01 00"))
